"""Compaction plans: every live row moved once to where it belongs, none lost, at any stop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.defrag import (
    Copy,
    DefragError,
    apply_copies,
    fragmentation,
    plan_compaction,
    tables_after,
)

PAGE_SIZE, WIDTH, LAYERS = 2, 3, 2


@st.composite
def pools(draw: st.DrawFn) -> tuple[int, dict[int, list[int]]]:
    """(pages, page tables); requests may share a prefix of pages, and the pool may be full."""
    pages = draw(st.integers(1, 24))
    order = draw(st.permutations(range(pages)))
    tables: dict[int, list[int]] = {}
    at = 0
    for request in range(draw(st.integers(0, 5))):
        take = draw(st.integers(0, pages - at))
        table = list(order[at : at + take])
        at += take
        shared = draw(st.integers(0, len(tables[request - 1]) if request else 0))
        if shared:
            table = [*tables[request - 1][:shared], *table]
        tables[request] = table
    return pages, tables


def filled(pages: int) -> torch.Tensor:
    """[layers, pages, page_size, width], every element different."""
    return torch.arange(LAYERS * pages * PAGE_SIZE * WIDTH).view(LAYERS, pages, PAGE_SIZE, WIDTH)


def read(pool: torch.Tensor, table: object) -> torch.Tensor:
    return pool[:, torch.as_tensor(np.asarray(table), dtype=torch.int64)]


def least_copies(tables: dict[int, list[int]], after: dict[int, np.ndarray]) -> int:
    """One for each page that must move, and one more for each cycle among them."""
    to = {b: int(a) for r, table in tables.items() for a, b in zip(after[r], table, strict=True)}
    moving = {page: target for page, target in to.items() if page != target}
    cycles, seen = 0, set()
    for page in moving:
        at = page
        while at in moving and at not in seen:
            seen.add(at)
            at = moving[at]
            cycles += at == page
    return len(moving) + cycles


@settings(max_examples=200)
@given(pools(), st.data())
def test_any_stop_is_a_right_state(
    drawn: tuple[int, dict[int, list[int]]], data: st.DataObject
) -> None:
    pages, tables = drawn
    copies = plan_compaction(tables, pages)
    done = data.draw(st.integers(0, len(copies)))
    pool, before = filled(pages), filled(pages)
    apply_copies(pool, copies[:done])
    after = tables_after(tables, copies[:done])
    for request, table in tables.items():
        assert torch.equal(read(pool, after[request]), read(before, table))
    if done < len(copies):
        # A crash in the middle of the next copy: half of it is there.  Going on makes it good.
        half = copies[done]
        pool[0, half.target, 0] = -1
        apply_copies(pool, copies[done:])
        after = tables_after(tables, copies)
        for request, table in tables.items():
            assert torch.equal(read(pool, after[request]), read(before, table))


@settings(max_examples=200)
@given(pools())
def test_a_whole_plan_packs_and_copies_no_more_than_it_must(
    drawn: tuple[int, dict[int, list[int]]],
) -> None:
    pages, tables = drawn
    copies = plan_compaction(tables, pages)
    after = tables_after(tables, copies)
    live = {page for table in tables.values() for page in table}
    if len(live) < pages:
        used = {int(page) for table in after.values() for page in table}
        assert used == set(range(len(live)))
        for request, table in after.items():
            # What it shares with none of the others is one run; all of it, where nothing is shared.
            others = {int(p) for r, t in after.items() if r != request for p in t}
            own = [int(page) for page in table if int(page) not in others]
            assert not own or own == list(range(own[0], own[0] + len(own)))
        assert len(copies) == least_copies(tables, after)
    again = plan_compaction(after, pages)
    assert not again or len(live) == pages


@settings(max_examples=200)
@given(pools())
def test_no_copy_writes_a_live_page(drawn: tuple[int, dict[int, list[int]]]) -> None:
    pages, tables = drawn
    copies = plan_compaction(tables, pages)
    for i, copy in enumerate(copies):
        now = tables_after(tables, copies[:i])
        live = {int(page) for table in now.values() for page in table}
        assert copy.target not in live
        assert copy.source in live


@given(pools(), st.integers(0, 10))
def test_a_budget_is_a_prefix(drawn: tuple[int, dict[int, list[int]]], budget: int) -> None:
    pages, tables = drawn
    assert plan_compaction(tables, pages, budget) == plan_compaction(tables, pages)[:budget]


@settings(max_examples=200)
@given(pools(), st.integers(1, 3))
def test_plans_made_anew_after_each_budget_cost_no_more(
    drawn: tuple[int, dict[int, list[int]]], budget: int
) -> None:
    pages, tables = drawn
    now, total = tables, 0
    for _ in range(2 * pages):
        copies = plan_compaction(now, pages, budget)
        if not copies:
            break
        total += len(copies)
        now = tables_after(now, copies)
    whole = plan_compaction(tables, pages)
    assert total == len(whole)
    final = tables_after(tables, whole)
    assert all(np.array_equal(now[r], final[r]) for r in tables)


@settings(max_examples=200)
@given(pools())
def test_a_page_moves_once_unless_it_is_parked(drawn: tuple[int, dict[int, list[int]]]) -> None:
    pages, tables = drawn
    copies = plan_compaction(tables, pages)
    live = {page for table in tables.values() for page in table}
    at = {page: page for page in live}
    moves = dict.fromkeys(live, 0)
    for copy in copies:
        content = next(page for page, where in at.items() if where == copy.source)
        at[content] = copy.target
        moves[content] += 1
    assert all(count <= 2 for count in moves.values())
    if copies:
        assert set(at.values()) == set(range(len(live)))
        assert len(copies) == least_copies(tables, tables_after(tables, copies))


def test_a_cycle_takes_one_parking() -> None:
    # Contents of pages 1, 2, 0 belong to pages 0, 1, 2; page 3 is free.
    copies = plan_compaction({7: [1, 2, 0]}, 4)
    assert copies == [Copy(1, 3), Copy(2, 1), Copy(0, 2), Copy(3, 0)]
    assert tables_after({7: [1, 2, 0]}, copies)[7].tolist() == [0, 1, 2]
    assert plan_compaction({7: [1, 2, 0]}, 3) == []  # no page is free


def test_a_path_needs_no_parking() -> None:
    # Page 2 is free and wanted; what lies on 0 and 1 goes up, one copy each.
    assert plan_compaction({0: [5, 0, 1]}, 6) == [Copy(1, 2), Copy(0, 1), Copy(5, 0)]


def test_measures() -> None:
    assert fragmentation([4, 5, 6]).runs == 1
    found = fragmentation([4, 5, 9, 2])
    assert (found.runs, found.spanned_pages) == (3, 8)
    assert found.mean_run_pages == pytest.approx(4 / 3)
    with pytest.raises(DefragError, match="empty"):
        fragmentation([])


@pytest.mark.parametrize(
    ("tables", "message"),
    [({3: [0, 9]}, "request 3 has page 9; the pool has pages 0..3"), ({3: [1, 1]}, "twice")],
)
def test_what_is_no_table(tables: dict[int, list[int]], message: str) -> None:
    with pytest.raises(DefragError, match=message):
        plan_compaction(tables, 4)
