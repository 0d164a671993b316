"""Row moves of all layers in one launch."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from verify_attn.engine.rows import independent_lists
from verify_attn.engine.step import Moves

BLOCK = 256  # elements of a row that a program moves: 2 KiB, so all of an MLA row


@triton.jit(do_not_specialize=("moves",))
def move_kernel(rows, index, moves, elements, stride_layer, BLOCK: tl.constexpr):
    """One (list of moves, layer, tile of the row): the list in order.

    rows [layers, slots, elements]; index: starts [lists + 1], then sources and targets [moves],
    list by list.
    """
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = column < elements
    rows += tl.program_id(1).to(tl.int64) * stride_layer + column
    first = tl.load(index + tl.program_id(0))
    end = tl.load(index + tl.program_id(0) + 1)
    sources = index + tl.num_programs(0) + 1
    for move in range(first, end):
        source = tl.load(sources + move) * elements
        target = tl.load(sources + moves + move) * elements
        tl.store(rows + target, tl.load(rows + source, mask=inside), mask=inside)
        # The next move may read what this one wrote, or write what it read, and the threads that
        # do so need not be those that did.
        tl.debug_barrier()


def launch(rows: torch.Tensor, moves: Moves) -> None:
    """Do the moves in ``rows`` [layers, slots, elements], contiguous."""
    index, lists = upload(moves, rows.device)
    launch_lists(rows, index, lists, len(moves))


def upload(moves: Moves, device: torch.device) -> tuple[torch.Tensor, int]:
    """What `move_kernel` takes as ``index``, in one transfer, and how many lists it has."""
    order, starts = independent_lists(moves)
    host = torch.from_numpy(np.concatenate([starts, moves.sources[order], moves.targets[order]]))
    if device.type == "cuda":
        host = host.pin_memory()  # else the upload would wait for what the GPU is doing
    return host.to(device, non_blocking=True), len(starts) - 1


def launch_lists(rows: torch.Tensor, index: torch.Tensor, lists: int, moves: int) -> None:
    """The launch alone; asynchronous on a GPU."""
    layers, _, elements = rows.shape
    move_kernel[(lists, layers, triton.cdiv(elements, BLOCK))](
        rows, index, moves, elements, rows.stride(0), BLOCK=BLOCK, num_warps=1, num_stages=1
    )
