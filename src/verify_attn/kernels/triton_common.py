"""What the Triton kernels share: tiles by architecture, addressing, the online softmax."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import triton
import triton.language as tl

from verify_attn.kernels.base import Capabilities, UnsupportedError
from verify_attn.problem import VerifyBatch

LOG2_E = 1.4426950408889634
INTERPRETED = triton.knobs.runtime.interpret

DTYPES = (torch.float16, torch.bfloat16)
INTERPRETER_DTYPES = (torch.float16, torch.float32)


@dataclass(frozen=True)
class Tile:
    """Rows (of q) and tokens (of KV) of one tile, and how Triton compiles it.

    ``block_n`` divides 64 (see `tree_visible`); ``registers`` caps a thread's; ``branch`` hides
    the second product from the layout of the first (see `verify_attn.kernels.triton_split`).
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    registers: int | None = None
    branch: bool = False


def architecture(device: torch.device) -> tuple[int, int]:
    """Compute capability of the device; the interpreter has none and counts as (0, 0)."""
    return (0, 0) if device.type != "cuda" else torch.cuda.get_device_capability(device)


def pick(tiles: dict[tuple[int, int], Tile], arch: tuple[int, int]) -> Tile:
    """The tile of that architecture, or of the nearest older one in the table."""
    known = [a for a in sorted(tiles) if a <= arch]
    if not known:
        raise UnsupportedError(
            f"architecture {arch} is older than {min(tiles)}, the oldest with a tile"
        )
    return tiles[known[-1]]


@triton.jit
def _count(length, out):
    for i in range(0, tl.load(length)):
        tl.store(out + i, 1)


@cache
def interpreter_fault() -> str | None:
    """Why Triton's interpreter can run no kernel of ours here, or None if it can.

    That of Triton 3.6 fails at a loop of a loaded length if numpy is 2.4 or newer; such a failure
    must not be told as the kernel's.
    """
    if not INTERPRETED:
        return None
    length, out = torch.tensor([3], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    try:
        _count[(1,)](length, out)
    except Exception as error:
        versions = f"Triton {triton.__version__} with numpy {np.__version__}"
        return f"the interpreter of {versions} cannot loop: {error}; try another of the two"
    return None


def refuses(capabilities: Capabilities, batch: VerifyBatch) -> str | None:
    """What the Triton kernels cannot take, on a GPU or in the interpreter."""
    fault = interpreter_fault()
    if fault:
        return fault
    if INTERPRETED and batch.q.dtype not in INTERPRETER_DTYPES:
        return (
            f"{str(batch.q.dtype).removeprefix('torch.')} in the Triton interpreter computes "
            "nonsense without an error; float16 and float32 are right there"
        )
    if not INTERPRETED and batch.device.type != "cuda":
        return "the Triton kernels are compiled for a GPU here, the batch is on the CPU"
    return capabilities.refuses(batch)


def capabilities() -> Capabilities:
    """Both Triton kernels declare the same."""
    return Capabilities(
        dtypes=INTERPRETER_DTYPES if INTERPRETED else DTYPES, capture=True, deterministic=True
    )


def padded(width: int) -> int:
    """A power of two of at least 16, the least that tl.dot takes."""
    return max(16, int(triton.next_power_of_2(width)))


@triton.jit
def token_offsets(table, position, page_size, stride_page, stride_row):
    """Offset of each token position's row in the pool, in 64 bits: pools pass 2^31 elements."""
    page = tl.load(table + position // page_size).to(tl.int64)
    return page * stride_page + (position % page_size).to(tl.int64) * stride_row


@triton.jit
def load_rows(base, offsets, dim, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """[rows, BLOCK] of rows that are WIDTH wide; the padding columns are 0."""
    pointers = base + offsets[:, None] + dim[None, :]
    if WIDTH == BLOCK:
        return tl.load(pointers)
    return tl.load(pointers, mask=(dim < WIDTH)[None, :], other=0.0)


@triton.jit
def masked_rows(base, offsets, keep, dim, WIDTH: tl.constexpr):
    """[rows, dims], 0 where ``keep`` [rows] is false and in the padding columns."""
    mask = keep[:, None] & (dim < WIDTH)[None, :]
    return tl.load(base + offsets[:, None] + dim[None, :], mask=mask, other=0.0)


@triton.jit
def masked_columns(base, offsets, keep, dim, WIDTH: tl.constexpr):
    """The same rows as `masked_rows`, transposed: [dims, rows]."""
    mask = keep[None, :] & (dim < WIDTH)[:, None]
    return tl.load(base + offsets[None, :] + dim[:, None], mask=mask, other=0.0)


@triton.jit
def softmax_step(scores, highest, total):
    """One tile of the online softmax, base 2.

    scores [M, n], highest and total [M] so far -> weights [M, n], the factor by which what was
    summed before fades, and the new highest and total.  A row that has seen nothing has highest
    -inf; its weights are 0, not NaN.
    """
    peak = tl.maximum(highest, tl.max(scores, 1))
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(highest - base)
    return weights, fade, peak, total * fade + tl.sum(weights, 1)


@triton.jit
def tree_visible(tree_mask, row_offsets, start, n):
    """[M, tile] bool: do the rows see nodes start + n?

    The tile must not straddle a 64-bit word: start is a multiple of its width, which divides 64.
    """
    words = tl.load(tree_mask + row_offsets + start // 64)
    return ((words[:, None] >> (start % 64 + n).to(tl.int64)[None, :]) & 1) != 0
