"""Correctness: checks against kernels, and each failure down to the line that makes it again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from verify_attn.conformance.reproduce import reproduce
from verify_attn.report.html.figure import Section
from verify_attn.report.html.values import (
    LONG,
    Record,
    cases,
    listed,
    mapping,
    metric,
    objects,
    parameter,
    plain,
)

KERNELS, FAILURES = 40, 30  # columns and failures shown in full
BAD = ("fail", "error", "inconclusive")
MARKS = {"pass": "✓", "fail": "✗", "error": "✗", "inconclusive": "?", "skipped": "-"}


@dataclass
class Column:
    """A kernel's cells by check."""

    kernel: str
    cells: dict[str, Record] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """How many of its checks did not pass, those that were skipped not counted."""
        return sum(c.get("status") in BAD for c in self.cells.values())


def correctness(record: Record | None, problem: str) -> Section:
    """Kernels with failures first, where there are more than fit."""
    title = "Correctness"
    columns: dict[str, Column] = {}
    checks: dict[str, None] = {}
    for case in cases(record):
        kernel, check = plain(parameter(case, "kernel"), 120), plain(parameter(case, "check"), 60)
        if kernel and check:
            columns.setdefault(kernel, Column(kernel)).cells[check] = case
            checks[check] = None
    if not columns:
        return Section("correctness", title, empty=problem or "no check was run")
    order = list(columns.values())
    if len(order) > KERNELS:
        order.sort(key=lambda c: -c.bad)
    kept, left = order[:KERNELS], order[KERNELS:]
    failed = [(col, name) for col in order for name in checks
              if col.cells.get(name, {}).get("status") in BAD]  # fmt: skip
    shown = {(col.kernel, name): i for i, (col, name) in enumerate(failed[:FAILURES])}
    notes = []
    if left:
        bad = sum(c.bad for c in left)
        notes.append(
            f"{len(left):,} more kernels are in the record, with {bad:,} checks that did not pass."
        )
    if len(failed) > FAILURES:
        notes.append(f"{FAILURES} of {len(failed):,} failures are told in full.")
    return Section(
        "correctness", title, kind="matrix", notes=[*notes, *_stopped(record)], lead=_mode(record),
        more={
            "kernels": [c.kernel for c in kept],
            "rows": [
                (name, [_cell(c.cells.get(name), shown.get((c.kernel, name))) for c in kept])
                for name in checks
            ],
            "failures": [_failure(col, name, i) for i, (col, name) in enumerate(failed[:FAILURES])],
            "skipped": _skipped(kept),
        },
    )  # fmt: skip


def _mode(record: Record | None) -> str:
    environment = mapping(mapping(record).get("environment"))
    if environment.get("triton") == "interpreter":
        return "Triton kernels ran in its interpreter: their arithmetic was tested, not the GPU."
    return ""


def _stopped(record: Record | None) -> list[str]:
    why = mapping(record).get("stopped_early")
    return [f"The check ended before its last example: {plain(why)}."] if why else []


def _cell(case: Record | None, failure: int | None) -> dict[str, Any]:
    if case is None:
        return {"status": "absent", "text": "not run", "mark": "", "failure": None}
    status, count = str(case.get("status")), metric(case, "executed")
    text = f"{count:,.0f}" if status == "pass" and count is not None else status
    return {"status": status, "text": text, "mark": MARKS.get(status, ""), "failure": failure}


def _skipped(kept: list[Column]) -> list[tuple[str, str]]:
    """(reason, the cells it holds for)."""
    found: dict[str, list[str]] = {}
    for column in kept:
        for name, case in column.cells.items():
            if case.get("status") == "skipped":
                reason = plain(case.get("reason"), 300) or "no reason given"
                found.setdefault(reason, []).append(f"{column.kernel}/{name}")
    return [(reason, plain(", ".join(ids))) for reason, ids in list(found.items())[:40]]


def _failure(column: Column, check: str, i: int) -> dict[str, Any]:
    case = column.cells[check]
    smallest = shown_failure(case)
    given = mapping(smallest.get("case"))
    kernel = str(parameter(case, "kernel"))
    line = json.dumps(given, separators=(",", ":")) if given else ""
    if line:
        line = reproduce(kernel, str(parameter(case, "check")), line)
    return {
        "id": f"failure-{i}", "kernel": column.kernel, "check": check,
        "status": str(case.get("status")),
        "text": plain(smallest.get("text") or case.get("reason"), LONG),
        "line": plain(line, LONG),
    }  # fmt: skip


def shown_failure(case: Record) -> Record:
    """Workers may have found one each: the first, as in the terminal."""
    return next(iter(objects(case.get("failures"))), {})


def first_failure(record: Record | None) -> tuple[Record, Record] | None:
    """(case of the record, its first failure) of the first check that failed with a case."""
    for case in cases(record):
        found = shown_failure(case)
        if listed(mapping(found.get("case")).get("requests")):
            return case, found
    return None
