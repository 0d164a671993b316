"""Compaction of a fragmented KV pool, in place: which page is copied where, in which order.

A plan is a list of page copies, each onto a page that holds nothing live at that moment.  So it can
stop after any of them: the page tables of the copies done so far are right, a budget is a prefix
of the list, and a crash in the middle of a copy is made good by going on with that copy.  Where
pages must move is a permutation.  Each of its paths ends at a free page and is filled from there,
one copy a page; a cycle has no free page, so one of its pages is parked first, which makes it a
path of one copy more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    Requests come to lie in the order given, shared pages with the first that has them.  That order
    does not depend on where pages are now, so a plan made anew where a budget ended the last one
    goes on with the rest of it.  A pool without a free page cannot move a cycle: such a list has
    none.
    """
    order = _order(tables, pages)
    held = np.zeros(pages, dtype=np.bool_)
    held[order] = True
    unheld = np.flatnonzero(~held)
    if not unheld.size:
        return []
    budget = 2 * len(order) if budget_pages is None else max(budget_pages, 0)
    targets = np.arange(len(order))
    belongs = np.full(pages, -1)
    belongs[order] = targets
    wanted = order.tolist()  # target page -> where its content is now
    home = belongs.tolist()  # page -> where its content should be, -1 if nothing lives there
    spare = int(unheld[-1])  # a page that holds nothing; high ones are not wanted soon
    copies: list[Copy] = []
    for first in targets[order != targets].tolist():
        if len(copies) >= budget:
            break
        if wanted[first] == first:
            continue  # done with an earlier path
        end = first
        while home[end] not in (-1, first):
            end = home[end]  # what is in the way, and where that belongs
        if home[end] == first:  # a cycle: its last page is parked
            copies.append(Copy(end, spare))
            wanted[first] = spare
        free = end
        while free < len(wanted) and wanted[free] != free and len(copies) < budget:
            source = wanted[free]
            copies.append(Copy(source, free))
            wanted[free] = free
            if free == spare:
                spare = source
            free = source
    return copies


def places_after(copies: Iterable[Copy]) -> dict[int, int]:
    """Page before -> page once ``copies`` are done, of the content of every page moved."""
    moved: dict[int, int] = {}
    origin: dict[int, int] = {}
    for copy in copies:
        first = origin.pop(copy.source, copy.source)
        moved[first] = copy.target
        origin[copy.target] = first
    return moved


def tables_after(tables: Mapping[int, npt.ArrayLike], copies: Sequence[Copy]) -> dict[int, Table]:
    """The page tables once ``copies`` are done."""
    moved = places_after(copies)
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


def _order(tables: Mapping[int, npt.ArrayLike], pages: int) -> npt.NDArray[np.int64]:
    """Every live page once, in the order in which their contents should lie from page 0 up."""
    own = {request: np.asarray(table, dtype=np.int64) for request, table in tables.items()}
    for request, table in own.items():
        outside = table[(table < 0) | (table >= pages)]
        if outside.size:
            raise DefragError(
                f"request {request} has page {outside[0]}; the pool has pages 0..{pages - 1}"
            )
        if table.size and np.bincount(table).max() > 1:
            raise DefragError(f"request {request} has a page twice in its table")
    every = np.concatenate([np.zeros(0, dtype=np.int64), *own.values()])
    place = np.arange(len(every))
    first_seen = np.zeros(pages, dtype=np.int64)
    first_seen[every[::-1]] = place[::-1]  # of a repeated index the last value stays
    order: npt.NDArray[np.int64] = every[first_seen[every] == place]
    return order
