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
    ``slack_tiles``        a block more may cost for it that each row tile has its own blocks
    ``resources``          of a block, at its limits
    ``key_reads``          how often a block reads a KV tile in shared memory for the scores
    ``value_reads``        and its latent part for the weighted values
    ``weight_reads``       and the tile of weights, written once
    ``query_pieces``       of q, 16 x 16, in shared memory and read for each tile, of all warps
    ``sum_moves``          writes and reads of a tile's float32 scores, from warp to warp
    """

    rows: int
    tokens: int
    least_tiles: int
    slack_tiles: int
    resources: Resources
    key_reads: int
    value_reads: int
    weight_reads: int
    query_pieces: int
    sum_moves: int

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
            + self.query_pieces * 16 * 16 * ELEMENT
            + self.sum_moves * self.rows * self.tokens * 4
        )

    def occupancy(self, arch: str) -> Occupancy:
        """Blocks of it on one multiprocessor."""
        return occupancy(self.resources, limits_of(arch))


DESIGNS = {
    # csrc/verify_sm120.cu: four warps make scores in pairs, each from one half of the dims for 32
    # rows, with 8 of its 36 pieces of q in shared memory; it gives the other of its pair the sums
    # of 16 rows.  Eight multiply weights of all rows with 64 columns of the values each.
    "sm120": Design(
        64, 16, 3, 4, Resources(12, 168, 0, 101_376, 0, 0, 0),
        key_reads=2, value_reads=1, weight_reads=8, query_pieces=4 * 8, sum_moves=2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A cell's tiles over a GPU.

    ``row_tiles``   of the request with most
    ``tiles``       of rows by tokens, all together
    ``blocks``      that share them, ``at_once`` as many as run at a time
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
    """As the kernel deals tiles out on the device: equal ranges, or the row tiles of a lone request
    get as many blocks each, where that costs no block more than ``slack_tiles``."""
    row_tiles = math.ceil(cell.nodes * cell.heads / design.rows)
    tiles = sum(
        row_tiles * math.ceil((prefix + cell.nodes) / design.tokens) for prefix in cell.prefix_lens
    )
    at_once = chip.sms * design.occupancy(chip.arch).blocks
    blocks = max(1, min(at_once, tiles // design.least_tiles))
    each = blocks // row_tiles
    if cell.requests == 1 and each:
        own = tiles // row_tiles
        if (blocks - each * row_tiles) * own <= design.slack_tiles * each * blocks:
            return Spread(row_tiles, tiles, each * row_tiles, at_once, math.ceil(own / each))
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
