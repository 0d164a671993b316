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
    """The bookkeeping all allocators share: which pages are out."""

    def __init__(self, pages: int, first_page: int = 0) -> None:
        self._range = range(first_page, first_page + pages)
        self._out: set[int] = set()

    @property
    def free_pages(self) -> int:
        return len(self._range) - len(self._out)

    def _take(self, pages: list[int]) -> PageIds:
        self._out.update(pages)
        return np.array(pages, dtype=np.int32)

    def _require(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count is {count}; it must not be negative")
        if count > self.free_pages:
            raise OutOfPagesError(f"{count} pages asked for, {self.free_pages} are free")

    def _give_back(self, pages: Iterable[int]) -> list[int]:
        returned = [int(page) for page in pages]
        freed: set[int] = set()
        for page in returned:
            if page not in self._out or page in freed:
                raise ValueError(f"page {page} is freed but not allocated; free each page once")
            freed.add(page)
        self._out -= freed  # all of them or, after an error, none
        return returned


class FifoAllocator(_Allocator):
    """A queue: allocate from the front, free to the back.

    SGLang's token allocator at page_size 1 works like this; its pool's slot 0 is a dummy, hence
    ``first_page=1`` there.  After some churn a request's pages come in the order in which others
    were freed, which is no order at all.
    """

    def __init__(self, pages: int, first_page: int = 0) -> None:
        super().__init__(pages, first_page)
        self._queue = deque(self._range)

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        return self._take([self._queue.popleft() for _ in range(count)])

    def free(self, pages: Iterable[int]) -> None:
        self._queue.extend(self._give_back(pages))


class SortedAllocator(_Allocator):
    """Always the lowest free pages: scattered still, but ascending."""

    def __init__(self, pages: int, first_page: int = 0) -> None:
        super().__init__(pages, first_page)
        self._free = np.ones(pages, dtype=np.bool_)

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        chosen = np.flatnonzero(self._free)[:count]
        self._free[chosen] = False
        return self._take((chosen + self._range.start).tolist())

    def free(self, pages: Iterable[int]) -> None:
        for page in self._give_back(pages):
            self._free[page - self._range.start] = True


class ContiguousAllocator(SortedAllocator):
    """The first free run that is long enough; the lowest free pages where there is none."""

    def allocate(self, count: int) -> PageIds:
        self._require(count)
        start = first_run(self._free, count)
        if start is None:
            return super().allocate(count)
        self._free[start : start + count] = False
        first = start + self._range.start
        return self._take(list(range(first, first + count)))


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
