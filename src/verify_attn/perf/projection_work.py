"""How a kernel spreads a cell over multiprocessors, and what each resource needs for it.

Only kernels with a `Design` can be projected: Triton's choose other tiles and, on Hopper, other
instructions than on sm_120, so that a time of theirs says nothing about another architecture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verify_attn.geometry import AttentionGeometry
from verify_attn.kernels.resources import Occupancy, Resources, limits_of, occupancy
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection_chips import SHARED_BYTES_PER_CLOCK, Chip
from verify_attn.perf.roofline import Work

ELEMENT = 2  # bytes of bf16 and float16


@dataclass(frozen=True)
class Design:
    """What a kernel does on every architecture alike.

    ``rows``, ``tokens``   of a tile: (node, head) pairs of one request, and KV rows
    ``least_tiles``        that a block is started for
    ``resources``          of a block, at its limits
    ``key_reads``          how often a block reads a KV tile in shared memory for the scores
    ``value_reads``        and its latent part for the weighted values
    ``weight_reads``       and the tile of weights, written once
    ``query_steps``        of q, 16 dims each, that are in shared memory and read for each tile
    """

    rows: int
    tokens: int
    least_tiles: int
    resources: Resources
    key_reads: int
    value_reads: int
    weight_reads: int
    query_steps: int

    def flops(self, geometry: AttentionGeometry) -> int:
        """Of one tile of rows by one tile of tokens."""
        return 2 * self.rows * self.tokens * (geometry.qk_dim + geometry.latent_dim)

    def shared_bytes(self, geometry: AttentionGeometry) -> int:
        """Read and written in shared memory for the same."""
        tile = self.tokens * geometry.qk_dim * ELEMENT
        values = self.tokens * geometry.latent_dim * ELEMENT
        weights = self.rows * self.tokens * ELEMENT
        return (
            tile * (1 + self.key_reads)
            + values * self.value_reads
            + weights * (1 + self.weight_reads)
            + self.query_steps * self.rows * 16 * ELEMENT
        )

    def occupancy(self, arch: str) -> Occupancy:
        """Blocks of it on one multiprocessor."""
        return occupancy(self.resources, limits_of(arch))


DESIGNS = {
    # csrc/verify_sm120.cu: four warps make scores of 16 rows each out of the whole KV tile, eight
    # multiply weights of all rows with 64 columns of the values each.
    "sm120": Design(
        64, 16, 2, Resources(12, 168, 0, 101_376, 0, 0, 0),
        key_reads=4, value_reads=1, weight_reads=8, query_steps=8,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A cell's tiles over a GPU.

    ``row_tiles``   of the request with most
    ``tiles``       of rows by tokens, all together
    ``blocks``      that share them in equal ranges, ``at_once`` as many as run at a time
    ``longest``     tiles of the longest range
    """

    row_tiles: int
    tiles: int
    blocks: int
    at_once: int
    longest: int

    @property
    def waves(self) -> int:
        """Of blocks; ranges are made for as many as run at once, so it is one."""
        return math.ceil(self.blocks / self.at_once)


def spread(design: Design, cell: Cell, chip: Chip) -> Spread:
    """Equal ranges, as the kernel makes them on the device."""
    row_tiles = math.ceil(cell.nodes * cell.heads / design.rows)
    tiles = sum(
        row_tiles * math.ceil((prefix + cell.nodes) / design.tokens) for prefix in cell.prefix_lens
    )
    at_once = chip.sms * design.occupancy(chip.arch).blocks
    blocks = max(1, min(at_once, tiles // design.least_tiles))
    return Spread(row_tiles, tiles, blocks, at_once, math.ceil(tiles / blocks))


@dataclass(frozen=True)
class Speed:
    """A GPU's rates at one end of the range.

    ``rereads``  row tiles that walk the KV out of step read it from memory again
    """

    gb_per_s: float
    clock_hz: float
    mma_flops: float
    l2_gb_per_s: float
    rereads: bool = False


def needed_s(design: Design, cell: Cell, work: Work, chip: Chip, speed: Speed) -> dict[str, float]:
    """Seconds that each resource alone needs: ``memory``, ``tensor cores``, ``shared memory``,
    ``L2``."""
    geometry, spread_ = cell.case().attention_geometry, spread(design, cell, chip)
    tile_bytes = design.tokens * geometry.row_bytes(ELEMENT)
    # Equal ranges start their row tiles at so many places; between two walks over the same rows
    # lies that part of the KV, which an L2 of twice its size keeps.
    walks = spread_.row_tiles // math.gcd(spread_.blocks, spread_.row_tiles)
    if not speed.rereads or work.kv_bytes / walks <= chip.l2_bytes / 2:
        walks = 1
    clocks = spread_.longest / speed.clock_hz
    return {
        "memory": (walks * work.kv_bytes + work.other_bytes) / (speed.gb_per_s * 1e9),
        "tensor cores": clocks * design.flops(geometry) / speed.mma_flops,
        "shared memory": clocks * design.shared_bytes(geometry) / SHARED_BYTES_PER_CLOCK,
        "L2": spread_.tiles * tile_bytes / (speed.l2_gb_per_s * 1e9),
    }
