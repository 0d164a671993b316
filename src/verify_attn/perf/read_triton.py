"""Reading memory as fast as it goes: a Triton kernel that loads a buffer once and adds it up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK, WARPS = 8192, 8  # 32 words a thread: eight loads of 16 bytes in flight


@triton.jit
def _add_up(words, sums, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    offsets = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + block, tl.sum(tl.load(words + offsets)))  # [BLOCK] -> one sum


class Reader:
    """``read()`` loads every word of a buffer once and writes a sum for each block of them.

    ``words``  int32 [a multiple of BLOCK], contiguous; sums wrap around
    """

    def __init__(self, words: torch.Tensor) -> None:
        blocks, rest = divmod(words.numel(), BLOCK)
        if rest or words.dtype != torch.int32 or not words.is_contiguous():
            raise ValueError(
                f"{words.numel()} words of {words.dtype}; a contiguous int32 buffer of a multiple "
                f"of {BLOCK} words is read"
            )
        self.words = words
        self.sums = torch.empty(blocks, dtype=torch.int32, device=words.device)

    def read(self) -> None:
        """Enqueues on the current stream."""
        _add_up[(self.sums.numel(),)](self.words, self.sums, BLOCK=BLOCK, num_warps=WARPS)
