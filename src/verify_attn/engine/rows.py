"""Move KV rows within the pool, as though one after the other.

A later move may read what an earlier one wrote, and may overwrite what an earlier one read (the
cycles of a compaction do both), so gathering everything and then scattering it is wrong.  Moves
that have no slot in common, though, are independent.  On a GPU such groups run in parallel, in one
launch for all layers; on the CPU, stretches of the list that read nothing they have written are
gathered and scattered at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from verify_attn.engine.step import Moves, Slots

STRETCH = 4096  # moves gathered at a time: bounds the memory for it
# Independent lists that a launch is cut into.  With 61 layers this is several times what a large
# GPU runs at once, and a whole compaction still has long lists.
MOST_LISTS = 1024
SHORT = 32  # moves up to which one list is done sooner than the host could have cut it


def move_rows(pool: torch.Tensor, moves: Moves) -> None:
    """Do the moves in ``pool`` [layers, pages, page_size, width], contiguous, of any dtype.

    Raises ``ValueError`` for a pool or slots that are not so; reads no device value.
    """
    rows = rows_of(pool)
    check_slots(moves, rows.shape[1])
    if len(moves) == 0:
        return
    if pool.is_cuda:
        from verify_attn.engine.rows_triton import launch

        launch(rows, moves)
    else:
        move_plainly(rows, moves)


def move_plainly(rows: torch.Tensor, moves: Moves) -> None:
    """The moves in ``rows`` [layers, slots, ...] by torch's indexing, on any device."""
    for start, end in stretches(moves):
        sources = torch.from_numpy(moves.sources[start:end]).to(rows.device)
        targets = torch.from_numpy(moves.targets[start:end]).to(rows.device)
        rows[:, targets] = rows[:, sources]


def rows_of(pool: torch.Tensor) -> torch.Tensor:
    """The pool as [layers, slots, elements] of the widest integers that a row is made of."""
    if pool.dim() != 4 or not pool.is_contiguous():
        raise ValueError(
            f"the pool has shape {tuple(pool.shape)} and strides {pool.stride()}; rows are moved "
            "in a contiguous [layers, pages, page_size, width]"
        )
    layers, pages, page_size, width = pool.shape
    row_bytes = width * pool.element_size()
    rows = pool.view(layers, pages * page_size, width)
    for dtype in (torch.int64, torch.int32, torch.int16):
        size = dtype.itemsize
        if row_bytes % size == 0 and pool.data_ptr() % size == 0:
            return rows.view(dtype)
    return rows.view(torch.uint8)


def check_slots(moves: Moves, slots: int) -> None:
    """Raise ``ValueError`` for a move from or to outside the pool."""
    for name, given in (("source", moves.sources), ("target", moves.targets)):
        outside = np.flatnonzero((given < 0) | (given >= slots))
        if outside.size:
            raise ValueError(
                f"move {outside[0]} has {name} slot {given[outside[0]]}; the pool has slots "
                f"0..{slots - 1}"
            )
    if len(moves.sources) != len(moves.targets):
        raise ValueError(f"{len(moves.sources)} sources, {len(moves.targets)} targets")


def stretches(moves: Moves) -> Iterator[tuple[int, int]]:
    """(start, end) of parts of the list that read and write no slot written within the part."""
    written: set[int] = set()
    start = 0
    pairs = zip(moves.sources.tolist(), moves.targets.tolist(), strict=True)
    for i, (source, target) in enumerate(pairs):
        if source in written or target in written or i - start == STRETCH:
            yield start, i
            written.clear()
            start = i
        written.add(target)
    if start < len(moves):
        yield start, len(moves)


def independent_lists(moves: Moves, most: int = MOST_LISTS) -> tuple[Slots, Slots]:
    """(order, starts): the moves as at most ``most`` lists that have no slot in common.

    List i is ``order[starts[i]:starts[i + 1]]``, indices into the moves, rising wherever it
    matters.  The lists are about equally long if no group of dependent moves is longer than that.
    """
    if len(moves) <= SHORT:
        return np.arange(len(moves)), np.array([0, len(moves)])
    group = _groups(moves)
    sizes = np.bincount(group)
    lists = min(len(sizes), most)
    # Deal the groups out, the largest first, and back again: 0 1 2 2 1 0 0 1 2 ...
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    turn, place = np.divmod(rank, lists)
    dealt = np.where(turn % 2 == 0, place, lists - 1 - place)
    order = np.argsort(dealt[group], kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(dealt[group], minlength=lists))])
    return order.astype(np.int64), starts.astype(np.int64)


def _groups(moves: Moves) -> npt.NDArray[np.int64]:
    """[moves]: a number for each group of moves that are tied by the slots they have in common."""
    slots, ends = np.unique(np.concatenate([moves.sources, moves.targets]), return_inverse=True)
    a, b = ends.reshape(2, -1)
    root = np.arange(len(slots))
    while True:
        low, high = np.minimum(root[a], root[b]), np.maximum(root[a], root[b])
        if np.array_equal(low, high):
            break
        np.minimum.at(root, high, low)  # hang a root below one of its neighbours ...
        while not np.array_equal(root, root[root]):
            root = root[root]  # ... and everything below it directly under the new root
    _, number = np.unique(root[a], return_inverse=True)
    return number.reshape(-1)
