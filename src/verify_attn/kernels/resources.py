"""What a compiled kernel takes of a multiprocessor, what there is, and how many blocks fit.

All of it is arithmetic on the compiler's figures: nothing here needs Triton or a GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The same on every architecture below.  Registers go to warps in units of 256, in each of the
# four sub-partitions on its own; shared memory goes to blocks in units of 128 bytes, and the
# driver keeps 1 KB of every block's.  Source: cuda_occupancy.h of CUDA 12.9.
REGISTERS_PER_SM = 65_536
REGISTER_UNIT = 256
SUB_PARTITIONS = 4
SHARED_UNIT = 128
SHARED_RESERVED = 1_024
THREADS_PER_WARP = 32
WARPS_PER_BLOCK = 32
# Columns of Blackwell's tensor memory, per multiprocessor.
TENSOR_COLUMNS = 512


class ArchitectureError(ValueError):
    """An architecture without a row in `ARCHITECTURES`; the message lists what there is."""


@dataclass(frozen=True)
class Limits:
    """One architecture: ``shared_per_block`` is the most that one block may opt in to, in bytes."""

    name: str
    capability: tuple[int, int]
    shared_per_sm: int
    shared_per_block: int
    warps_per_sm: int
    blocks_per_sm: int


# Sources: the CUDA Programming Guide's table of technical specifications per compute capability;
# blocks and the largest shared memory also in cuda_occupancy.h (CUDA 12.9).  For 12.0 the Blackwell
# Tuning Guide says 32 blocks and 128 KB; devices report what stands here.
ARCHITECTURES = {
    limits.name: limits
    for limits in (
        Limits("sm_80", (8, 0), 167_936, 166_912, 64, 32),
        Limits("sm_86", (8, 6), 102_400, 101_376, 48, 16),
        Limits("sm_89", (8, 9), 102_400, 101_376, 48, 24),
        Limits("sm_90", (9, 0), 233_472, 232_448, 64, 32),
        Limits("sm_100", (10, 0), 233_472, 232_448, 64, 32),
        Limits("sm_120", (12, 0), 102_400, 101_376, 48, 24),
    )
}


def limits_of(name: str) -> Limits:
    """The limits of ``sm_90`` and the like."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        raise ArchitectureError(
            f"no architecture {name!r}; there are: {', '.join(ARCHITECTURES)}"
        ) from None


@dataclass(frozen=True)
class Resources:
    """What one block takes.

    ``registers``       of one thread
    ``shared_static``, ``shared_dynamic``   bytes of the block, without the driver's 1 KB
    ``stack``           bytes of local memory of one thread
    ``spill_stores``, ``spill_loads``       bytes that the code of one thread writes to and reads
                        from local memory for want of registers; a loop counts once
    ``tensor_columns``  of Blackwell's tensor memory, else 0
    """

    warps: int
    registers: int
    shared_static: int
    shared_dynamic: int
    stack: int
    spill_stores: int
    spill_loads: int
    tensor_columns: int = 0

    @property
    def shared(self) -> int:
        """Shared memory of the block in bytes."""
        return self.shared_static + self.shared_dynamic

    @property
    def spills(self) -> int:
        """Spill stores and loads together, in bytes."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit a multiprocessor at a time, their warps, and what allows no more."""

    blocks: int
    warps: int
    limited_by: tuple[str, ...]


_PROPERTIES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USED = re.compile(r"Used (\d+) registers[^\n]*")
_STATIC = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_KERNEL = re.compile(r"Compiling entry function '([^']+)'")


def parse_ptxas(log: str, warps: int, shared_dynamic: int, tensor_columns: int = 0) -> Resources:
    """Resources from what ``ptxas -v`` says about a module with one kernel.

    Functions that the kernel calls have stack and spills of their own, which are added; registers
    are stated for the kernel alone and include theirs.
    """
    properties = [tuple(map(int, found)) for found in _PROPERTIES.findall(log)]
    used = list(_USED.finditer(log))
    if len(used) != 1 or not properties:
        raise ValueError(
            f"ptxas -v told of {len(used)} kernels and {len(properties)} functions; one kernel was "
            f"expected.  It said: {log.strip()[-500:] or 'nothing'}"
        )
    static = _STATIC.search(used[0].group())
    stack, stores, loads = (sum(column) for column in zip(*properties, strict=True))
    return Resources(
        warps, int(used[0].group(1)), int(static.group(1)) if static else 0, shared_dynamic,
        stack, stores, loads, tensor_columns,
    )  # fmt: skip


def by_kernel(log: str) -> dict[str, str]:
    """What ``ptxas -v`` says about each kernel of a module, every part fit for `parse_ptxas`."""
    _, *parts = _KERNEL.split(log)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def occupancy(resources: Resources, limits: Limits) -> Occupancy:
    """Blocks on one multiprocessor, as cuda_occupancy.h counts them."""
    per_warp = _round_up(resources.registers * THREADS_PER_WARP, REGISTER_UNIT)
    warps_at_once = SUB_PARTITIONS * (REGISTERS_PER_SM // SUB_PARTITIONS // max(1, per_warp))
    # A block's warps are counted as if they were spread evenly over the sub-partitions.
    whole = per_warp * _round_up(resources.warps, SUB_PARTITIONS) <= REGISTERS_PER_SM
    blocks = {
        "registers": warps_at_once // resources.warps if whole else 0,
        "shared memory": limits.shared_per_sm
        // _round_up(resources.shared + SHARED_RESERVED, SHARED_UNIT),
        "warps": limits.warps_per_sm // resources.warps,
        "blocks": limits.blocks_per_sm,
    }
    if resources.tensor_columns:
        blocks["tensor memory"] = TENSOR_COLUMNS // resources.tensor_columns
    fewest = min(blocks.values())
    names = tuple(name for name, fit in blocks.items() if fit == fewest)
    return Occupancy(fewest, fewest * resources.warps, names)


def broken_limits(
    resources: Resources, limits: Limits, max_spill_bytes: int | None = None
) -> tuple[str, ...]:
    """The limits that a launch would break, as sentences with both numbers; empty if none.

    Spills cost time and are no error, unless the caller sets a limit.
    """
    broken = []
    if resources.shared > limits.shared_per_block:
        broken.append(
            f"shared memory {resources.shared:,} bytes is over the {limits.shared_per_block:,} "
            f"that a block may have on {limits.name}"
        )
    if resources.tensor_columns > TENSOR_COLUMNS:
        broken.append(
            f"{resources.tensor_columns} columns of tensor memory are over the {TENSOR_COLUMNS} "
            f"of {limits.name}"
        )
    if resources.warps > WARPS_PER_BLOCK:
        broken.append(f"{resources.warps} warps are over the {WARPS_PER_BLOCK} of a block")
    elif "registers" in (o := occupancy(resources, limits)).limited_by and o.blocks == 0:
        broken.append(
            f"{resources.registers} registers a thread in {resources.warps} warps are over the "
            f"{REGISTERS_PER_SM:,} of {limits.name}"
        )
    if max_spill_bytes is not None and resources.spills > max_spill_bytes:
        broken.append(
            f"spills {resources.spills:,} bytes ({resources.spill_stores:,} stored, "
            f"{resources.spill_loads:,} loaded) are over the limit of {max_spill_bytes:,}"
        )
    return tuple(broken)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
