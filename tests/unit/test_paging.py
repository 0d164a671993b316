"""Allocators: whose page is next, what they refuse, what churn leaves behind."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.paging import (
    ALLOCATORS,
    ContiguousAllocator,
    FifoAllocator,
    OutOfPagesError,
    PageAllocator,
    SortedAllocator,
    churn,
    runs,
)

PAGES = 24
every_allocator = pytest.mark.parametrize("name", list(ALLOCATORS))
several = settings(max_examples=80, deadline=None)

# What a server does: positive, allocate that many; negative, free the request of that number.
steps = st.lists(st.one_of(st.integers(0, 9), st.integers(-9, -1)), max_size=40)


def replay(allocator: PageAllocator, actions: list[int]) -> list[tuple[list[int], set[int]]]:
    """(pages handed out, pages free before) of each allocation, in order."""
    live: deque[list[int]] = deque()
    free = set(range(1, PAGES + 1))
    handed = []
    for action in actions:
        if action < 0 and live:
            live.rotate(action)
            pages = live.popleft()
            allocator.free(pages)
            free |= set(pages)
        elif 0 <= action <= len(free):
            pages = allocator.allocate(action).tolist()
            handed.append((pages, set(free)))
            live.append(pages)
            free -= set(pages)
        assert allocator.free_pages == len(free)
    return handed


class TestOrder:
    def test_fifo_worked_example(self) -> None:
        """SGLang at page_size 1: slot 0 is a dummy; pop at the front, append at the back."""
        allocator = FifoAllocator(6, first_page=1)
        first, second = allocator.allocate(2), allocator.allocate(3)
        assert (first.tolist(), second.tolist()) == ([1, 2], [3, 4, 5])
        allocator.free(second[::-1])  # the freed order stays
        allocator.free(first)
        assert allocator.allocate(5).tolist() == [6, 5, 4, 3, 1]
        assert allocator.allocate(1).tolist() == [2]

    @several
    @given(steps)
    def test_fifo_is_a_list(self, actions: list[int]) -> None:
        """Against SGLang's list, step by step."""
        allocator = FifoAllocator(PAGES, first_page=1)
        free_list = list(range(1, PAGES + 1))
        live: list[list[int]] = []
        for action in actions:
            if action < 0 and live:
                pages = live.pop(action % len(live))
                allocator.free(pages)
                free_list = free_list + pages
            elif 0 <= action <= len(free_list):
                pages = allocator.allocate(action).tolist()
                assert pages == free_list[:action]
                free_list = free_list[action:]
                live.append(pages)

    @several
    @given(steps)
    def test_sorted_takes_the_lowest(self, actions: list[int]) -> None:
        for pages, free in replay(SortedAllocator(PAGES, first_page=1), actions):
            assert pages == sorted(free)[: len(pages)]

    @several
    @given(steps)
    def test_contiguous_takes_the_first_run(self, actions: list[int]) -> None:
        for pages, free in replay(ContiguousAllocator(PAGES, first_page=1), actions):
            count = len(pages)
            starts = [p for p in sorted(free) if set(range(p, p + count)) <= free]
            if starts and count:
                assert pages == list(range(starts[0], starts[0] + count))
            else:
                assert pages == sorted(free)[:count]

    def test_contiguous_worked_example(self) -> None:
        allocator = ContiguousAllocator(10)
        allocator.allocate(10)
        allocator.free([0, 1, 4, 5, 6, 9])
        assert allocator.allocate(3).tolist() == [4, 5, 6]  # not 0, 1, 4
        assert allocator.allocate(3).tolist() == [0, 1, 9]  # no run of three is left

    @every_allocator
    @several
    @given(steps)
    def test_pages_are_distinct_and_were_free(self, name: str, actions: list[int]) -> None:
        for pages, free in replay(ALLOCATORS[name](PAGES, first_page=1), actions):
            assert len(set(pages)) == len(pages)
            assert set(pages) <= free

    @every_allocator
    def test_ids_are_int32_in_the_range(self, name: str) -> None:
        allocator = ALLOCATORS[name](5, first_page=3)
        pages = allocator.allocate(5)
        assert pages.dtype == np.int32
        assert sorted(pages.tolist()) == [3, 4, 5, 6, 7]
        assert allocator.allocate(0).tolist() == []


@every_allocator
class TestErrors:
    def test_too_many(self, name: str) -> None:
        allocator = ALLOCATORS[name](4)
        allocator.allocate(3)
        with pytest.raises(OutOfPagesError, match="2 pages asked for, 1 are free"):
            allocator.allocate(2)
        assert allocator.allocate(1).size == 1  # a refusal takes nothing

    def test_negative(self, name: str) -> None:
        with pytest.raises(ValueError, match="count is -1; it must not be negative"):
            ALLOCATORS[name](4).allocate(-1)

    @pytest.mark.parametrize("pages", [[2, 2], [2, 0], [2, 9], [2, -1]])
    def test_freed_but_not_allocated(self, name: str, pages: list[int]) -> None:
        """Twice in one call, still free, outside the pool: nothing at all is freed."""
        allocator = ALLOCATORS[name](4, first_page=1)
        allocator.allocate(3)
        with pytest.raises(ValueError, match=f"page {pages[1]} is freed but not allocated"):
            allocator.free(pages)
        assert allocator.free_pages == 1
        assert allocator.allocate(1).tolist() == [4]
        allocator.free([2])
        assert allocator.allocate(1).tolist() == [2]

    def test_freed_again(self, name: str) -> None:
        allocator = ALLOCATORS[name](4)
        pages = allocator.allocate(2)
        allocator.free(pages)
        with pytest.raises(ValueError, match="page 0 is freed but not allocated; free each"):
            allocator.free(pages)


class TestChurn:
    @every_allocator
    @pytest.mark.parametrize("load", [0.5, 0.9])
    def test_leaves_the_pool_empty(self, name: str, load: float) -> None:
        allocator = ALLOCATORS[name](200)
        churn(allocator, np.random.default_rng(1), load=load, steps=50)
        assert allocator.free_pages == 200
        assert sorted(allocator.allocate(200).tolist()) == list(range(200))

    def test_leaves_fifo_shuffled_and_the_others_in_order(self) -> None:
        left = {}
        for name, kind in ALLOCATORS.items():
            allocator = kind(500)
            churn(allocator, np.random.default_rng(2), load=0.8, steps=100)
            left[name] = runs(allocator.allocate(500))
        assert left["sorted"] == left["contiguous"] == 1
        assert left["fifo"] > 50

    def test_seed(self) -> None:
        tables = []
        for seed in (3, 3, 4):
            allocator = FifoAllocator(100)
            churn(allocator, np.random.default_rng(seed), load=0.8, steps=40)
            tables.append(allocator.allocate(100).tolist())
        assert tables[0] == tables[1] != tables[2]

    @pytest.mark.parametrize("pages", [1, 2, 7])
    def test_tiny_pools(self, pages: int) -> None:
        allocator = FifoAllocator(pages)
        churn(allocator, np.random.default_rng(5), load=1.0, steps=20)
        assert allocator.free_pages == pages


@pytest.mark.parametrize(
    ("table", "count"),
    [([], 0), ([7], 1), ([3, 4, 5], 1), ([5, 4, 3], 3), ([0, 1, 8, 9, 2], 3), ([4, 4], 2)],
)
def test_runs(table: list[int], count: int) -> None:
    assert runs(table) == count
    assert runs(np.array(table, dtype=np.int32)) == count
