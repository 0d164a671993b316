"""Compaction of a fragmented KV pool, in place: which page is copied where, in which order.

A plan is a list of page copies, each onto a page that holds nothing live at that moment.  So it can
stop after any of them: the page tables of the copies done so far are right, a budget is a prefix
of the list, and a crash in the middle of a copy is made good by going on with that copy.  Where a
wanted page is taken, what holds it is moved out of the way first, to its own place if that is
free; the pages of a cycle of k so take k + 1 copies, since one of them is parked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Table = npt.NDArray[np.int32]


class DefragError(ValueError):
    """Page tables that no pool can have; the message names the request and the page."""


@dataclass(frozen=True)
class Fragmentation:
    """How scattered one request's pages are.

    ``runs``             stretches of consecutive pages; 1 is contiguous
    ``mean_run_pages``   pages a stretch
    ``spanned_pages``    from the lowest page to the highest, both included
    """

    runs: int
    mean_run_pages: float
    spanned_pages: int


def fragmentation(table: npt.ArrayLike) -> Fragmentation:
    """Of one request's page table; raises `DefragError` for an empty one."""
    pages = np.asarray(table, dtype=np.int64)
    if pages.size == 0:
        raise DefragError("an empty page table has no fragmentation")
    runs = 1 + int(np.count_nonzero(np.diff(pages) != 1))
    return Fragmentation(runs, pages.size / runs, int(pages.max() - pages.min()) + 1)


@dataclass(frozen=True)
class Copy:
    """One page copied, in all layers; ``target`` holds nothing live at that moment."""

    source: int
    target: int


def plan_compaction(
    tables: Mapping[int, npt.ArrayLike], pages: int, budget_pages: int | None = None
) -> list[Copy]:
    """Copies that make the requests contiguous one after the other, packed from page 0 up.

    ``tables``        the live requests' page tables in token order; pages may be shared
    ``pages``         of the pool
    ``budget_pages``  the most copies; None for all that it takes

    Requests keep the order of their lowest pages; those that share their beginning, as a prefix
    cache lets them, stay together, the shared pages in the first of them.  A
    pool without a free page cannot move a cycle: then the list ends before it.
    """
    goal = _goal(tables, pages)
    at = {page: page for page in goal}  # where each live page's content is now
    holds = {page: page for page in goal}  # whose content a page holds; free pages are not in it
    free = sorted(set(range(pages)) - set(goal))
    copies: list[Copy] = []

    def move(content: int, target: int) -> None:
        source = at[content]
        copies.append(Copy(source, target))
        free.remove(target)
        free.append(source)
        del holds[source]
        at[content], holds[target] = target, content

    for content, target in sorted(goal.items(), key=lambda item: item[1]):
        if at[content] == target:
            continue
        in_the_way = holds.get(target)
        if in_the_way is not None:
            if not free:
                break
            home = goal[in_the_way]
            # The highest free page: the low ones are wanted next.
            move(in_the_way, home if home in free else max(free))
        move(content, target)
    return copies if budget_pages is None else copies[: max(budget_pages, 0)]


def tables_after(tables: Mapping[int, npt.ArrayLike], copies: Sequence[Copy]) -> dict[int, Table]:
    """The page tables once ``copies`` are done."""
    moved: dict[int, int] = {}
    origin: dict[int, int] = {}
    for copy in copies:
        first = origin.pop(copy.source, copy.source)
        moved[first] = copy.target
        origin[copy.target] = first
    return {
        request: np.array([moved.get(int(p), int(p)) for p in np.asarray(table)], dtype=np.int32)
        for request, table in tables.items()
    }


def apply_copies(pool: torch.Tensor, copies: Sequence[Copy]) -> None:
    """Do the copies one by one in ``pool`` [..., pages, page_size, width], along its pages.

    The plain way, on any device; the order is the plan's.
    """
    for copy in copies:
        pool[..., copy.target, :, :] = pool[..., copy.source, :, :]


def _goal(tables: Mapping[int, npt.ArrayLike], pages: int) -> dict[int, int]:
    """Where every live page's content should be."""
    own = {request: np.asarray(table, dtype=np.int64) for request, table in tables.items()}
    for request, table in own.items():
        outside = table[(table < 0) | (table >= pages)]
        if outside.size:
            raise DefragError(
                f"request {request} has page {outside[0]}; the pool has pages 0..{pages - 1}"
            )
        if len(np.unique(table)) != len(table):
            raise DefragError(f"request {request} has a page twice in its table")
    lowest: dict[int, int] = {}  # page of any request with this first page
    for table in own.values():
        if table.size:
            first = int(table[0])
            lowest[first] = min(lowest.get(first, pages), int(table.min()))
    goal: dict[int, int] = {}
    tables_in_order = sorted(
        (table.tolist() for table in own.values() if table.size),
        key=lambda table: (lowest[table[0]], table),
    )
    for table in tables_in_order:
        for page in table:
            goal.setdefault(page, len(goal))
    return goal
