"""KV pages: allocators, page tables, and what churn does to them.

A pool is ``pages`` pages of ``page_size`` token rows.  Token position p of a request lives in page
``table[p // page_size]`` at row ``p % page_size``.  The allocators differ only in which free
page they hand out next, and that alone decides how scattered a request's KV becomes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]


class OutOfPagesError(RuntimeError):
    """The pool has too few free pages; the message says how many were asked for and are free."""


class PageAllocator(Protocol):
    """Hands out page ids and takes them back."""

    @property
    def free_pages(self) -> int:
        """Pages that could be allocated now."""

    def allocate(self, count: int) -> PageIds:
        """``count`` distinct page ids, in the order of the token positions they will hold."""

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; each must be allocated."""


class _Allocator:
    """The bookkeeping all allocators share: which pages are out.  Arrays: pools have 10^6 pages."""

    def __init__(self, pages: int, first_page: int = 0) -> None:
        self._first = first_page
        self._free = np.ones(pages, dtype=np.bool_)
        self._free_pages = pages

    @property
    def free_pages(self) -> int:
        return self._free_pages

    def _take(self, pages: npt.NDArray[np.integer]) -> PageIds:
        self._free[pages - self._first] = False
        self._free_pages -= len(pages)
        return pages.astype(np.int32)

    def _require(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count is {count}; it must not be negative")
        if count > self.free_pages:
            raise OutOfPagesError(f"{count} pages asked for, {self.free_pages} are free")

    def _give_back(self, pages: Iterable[int]) -> PageIds:
        """All of them or, with an error, none."""
        listed = pages if isinstance(pages, np.ndarray) else list(pages)
        returned = np.asarray(listed, dtype=np.int64)
        where = returned - self._first
        known = bool(((where >= 0) & (where < len(self._free))).all())
        if not known or self._free[where].any():
            raise self._not_out(returned)
        self._free[where] = True
        if np.count_nonzero(self._free) != self._free_pages + len(where):  # a page came twice
            self._free[where] = False
            raise self._not_out(returned)
        self._free_pages += len(where)
        return returned.astype(np.int32)

    def _not_out(self, pages: npt.NDArray[np.int64]) -> ValueError:
        """Names the first page that was not allocated, or not any more."""
        out = {int(page) + self._first for page in np.flatnonzero(~self._free)}
        for page in pages.tolist():
            if page not in out:
                break
            out.remove(page)
        return ValueError(f"page {page} is freed but not allocated; free each page once")


class FifoAllocator(_Allocator):
    """A queue: allocate from the front, free to the back.

    SGLang's token allocator at page_size 1 works like this; its pool's slot 0 is a dummy, hence
    ``first_page=1`` there.  After some churn a request's pages come in the order in which others
    were freed, which is no order at all.
    """

    def __init__(self, pages: int, first_page: int = 0) -> None:
        super().__init__(pages, first_page)
        self._queue = deque([np.arange(first_page, first_page + pages, dtype=np.int32)])

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        taken = [np.empty(0, dtype=np.int32)]
        while count:
            pages = self._queue.popleft()
            if len(pages) > count:
                self._queue.appendleft(pages[count:])
                pages = pages[:count]
            taken.append(pages)
            count -= len(pages)
        return self._take(np.concatenate(taken))

    def free(self, pages: Iterable[int]) -> None:
        self._queue.append(self._give_back(pages))


class SortedAllocator(_Allocator):
    """Always the lowest free pages: scattered still, but ascending."""

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        return self._take(np.flatnonzero(self._free)[:count] + self._first)

    def free(self, pages: Iterable[int]) -> None:
        self._give_back(pages)


class ContiguousAllocator(SortedAllocator):
    """The first free run that is long enough; the lowest free pages where there is none."""

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        start = first_run(self._free, count)
        if start is None:
            return super().allocate(count)
        return self._take(np.arange(start, start + count) + self._first)


ALLOCATORS: dict[str, Callable[[int], PageAllocator]] = {
    "fifo": FifoAllocator,
    "sorted": SortedAllocator,
    "contiguous": ContiguousAllocator,
}


def first_run(free: npt.NDArray[np.bool_], count: int) -> int | None:
    """Start of the first run of ``count`` true entries, None if there is none."""
    if count == 0:
        return None
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long_enough = np.flatnonzero(ends - starts >= count)
    return int(starts[long_enough[0]]) if long_enough.size else None


def churn(allocator: PageAllocator, rng: np.random.Generator, *, load: float, steps: int) -> None:
    """Age an allocator as a busy server would: requests come, grow page by page, and go.

    Keeps about ``load`` (0..1) of the pages in use for ``steps`` arrivals of random length, then
    frees everything in random order, so that the pool is empty but no longer in order.
    """
    total = allocator.free_pages
    live: list[list[int]] = []
    for _ in range(steps):
        length = int(rng.integers(1, max(2, total // 8 + 1)))
        while live and allocator.free_pages - length < (1.0 - load) * total:
            allocator.free(live.pop(int(rng.integers(len(live)))))
        if allocator.free_pages >= length:
            live.append(allocator.allocate(length).tolist())
        if live and allocator.free_pages > 0:  # one request decodes past its last page
            live[int(rng.integers(len(live)))].extend(allocator.allocate(1).tolist())
    for index in rng.permutation(len(live)):
        allocator.free(live[index])


def runs(table: npt.ArrayLike) -> int:
    """Runs of consecutive pages in one request's page table; 1 is contiguous, 0 empty."""
    pages = np.asarray(table, dtype=np.int64)
    return 0 if pages.size == 0 else 1 + int(np.count_nonzero(np.diff(pages) != 1))
