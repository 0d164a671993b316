"""How a step of a run ended, by its exit code and its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verify_attn.record import (
    BAD_USAGE,
    FAILED,
    INCONCLUSIVE,
    INTERRUPTED,
    PASSED,
    SERVER_DEAD,
    RecordError,
    read_record,
)
from verify_attn.run_steps import Ended

STATUS = {
    PASSED: "pass", FAILED: "fail", INCONCLUSIVE: "inconclusive", SERVER_DEAD: "error",
    BAD_USAGE: "error",
}  # fmt: skip
FINISHED = (PASSED, FAILED, INCONCLUSIVE)


def outcome(record: Path, ended: Ended) -> tuple[int, str, str | None]:
    """(exit code, status, reason) of the step that was to write ``record``."""
    if ended.code == INTERRUPTED or (
        ended.interrupted and not (record.exists() and ended.code in FINISHED)
    ):
        return INTERRUPTED, "inconclusive", f"interrupted after {ended.seconds:.0f} s"
    if ended.code not in STATUS:
        how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
        return ended.code, "error", f"it ended with {how}: {ended.error}"
    status = STATUS[ended.code]
    try:
        cases = read_record(record)["cases"]
    except RecordError:
        return ended.code, status, None if ended.code == PASSED else ended.error
    if ended.code == PASSED:
        return ended.code, status, None
    if ended.code in (BAD_USAGE, SERVER_DEAD):
        return ended.code, status, ended.error
    return ended.code, status, _counts(cases)


def _counts(cases: list[dict[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for case in cases:
        counts[case["status"]] = counts.get(case["status"], 0) + 1
    return f"of {len(cases)} cases " + ", ".join(f"{n} {status}" for status, n in counts.items())
