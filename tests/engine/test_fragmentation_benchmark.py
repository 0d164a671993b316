"""benchmarks/fragmentation.py, small and on the CPU: it moves and compares what it says."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks import fragmentation
from benchmarks.fragmentation import (
    check_rows,
    in_pages,
    interval,
    page_layouts,
    time_layouts,
    time_moves,
)

from verify_attn.conformance.trial import CheckFailed
from verify_attn.generate import Case, build
from verify_attn.kernels.registry import load
from verify_attn.paging import runs

CASE = Case(((40, "random:6:1"),), page_size=2, dtype="float32")
CPU = torch.device("cpu")


def timer(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def test_layouts_are_what_they_are_called() -> None:
    layouts = page_layouts(400, 300)
    assert all(len(set(table.tolist())) == 300 for table in layouts.values())
    assert runs(layouts["contiguous"]) == 1
    assert 10 < runs(layouts["churned"]) < runs(layouts["shuffled"])


def test_the_same_rows_in_other_pages() -> None:
    batch = build(CASE)
    table = page_layouts(int(batch.kv_pool.shape[0]), 23)["shuffled"]
    moved = in_pages(batch, table)
    moved.validate()
    rows = [
        b.kv_pool[b.page_table[0, :23].long()].flatten(0, 1)[: b.stored_tokens(0)]
        for b in (batch, moved)
    ]
    assert torch.equal(*rows)
    assert moved.page_table[0, :23].tolist() == table.tolist()


def test_layouts_are_timed_and_a_wrong_kernel_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "ROUNDS", 3)
    kernel = load("torch")
    cases = time_layouts({"torch": kernel}, CASE, CPU, timer)
    assert [case["id"] for case in cases] == [
        f"torch/{layout}/2/40" for layout in ("contiguous", "churned", "shuffled")
    ]
    assert cases[0]["metrics"]["ratio_to_contiguous_median"] == 1
    assert cases[2]["metrics"]["runs"] > 1
    assert all(case["metrics"]["rounds"] == 3 for case in cases)

    run = kernel.run
    monkeypatch.setattr(kernel, "run", lambda b, p, out, lse: (run(b, p, out, lse), out.add_(1)))
    with pytest.raises(CheckFailed, match="torch is wrong in contiguous pages"):
        time_layouts({"torch": kernel}, CASE, CPU, timer)


@pytest.mark.parametrize("page_size", [1, 4])
def test_moves_are_checked_and_timed(page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "ROUNDS", 4)
    pool = torch.empty((2, 600 // page_size, page_size, 4), dtype=torch.bfloat16)
    pool.view(torch.int16).random_()
    cases = time_moves(pool, 480, timer)
    assert [case["id"] for case in cases] == [
        f"{what}/{layout}/{page_size}"
        for layout in ("churned", "shuffled")
        for what in ("commit", "compaction")
    ]
    assert cases[0]["metrics"]["rows"] == 4
    for case in cases[1::2]:
        assert case["metrics"]["runs"] > case["metrics"]["runs_after"] == 1
        moved = 2 * case["metrics"]["pages_copied"] * page_size * 2 * 4 * 2
        assert case["metrics"]["bytes_read_and_written"] == moved


def test_a_row_that_did_not_arrive_is_told() -> None:
    rows = torch.arange(24).view(2, 6, 2)
    before = rows.clone()
    rows[1, 3] = 0
    check_rows(rows[:1], before[:1], np.array([2, 3]), np.array([2, 3]))
    with pytest.raises(AssertionError, match="layer 1: 1 of 2 rows are wrong, slot 3 the first"):
        check_rows(rows, before, np.array([2, 3]), np.array([2, 3]))


def test_the_interval_of_a_median() -> None:
    # For 20 values the order statistics 6 and 15 (tables of the sign test, 95 %).
    found = interval([float(v) for v in range(1, 21)][::-1])
    assert (found.low, found.median, found.high) == (6, 10.5, 15)
    found = interval([3.0, 1.0, 2.0])
    assert (found.low, found.median, found.high) == (1, 2, 3)
