"""Run records: one JSON file a command, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verify_attn.commit import current_commit
from verify_attn.environment import environment
from verify_attn.file_errors import why
from verify_attn.whole_file import beside, where, write_whole

SCHEMA_VERSION = 1
STATUSES = ("pass", "fail", "inconclusive", "error", "skipped")

# Exit codes of every command; the first that applies, in this order.
INTERRUPTED, BAD_USAGE, SERVER_DEAD, FAILED, INCONCLUSIVE, PASSED = 130, 2, 4, 1, 3, 0


class RecordError(ValueError):
    """A record that cannot be read or written; the message says which file, and the rule."""


def new_record(command: Sequence[str]) -> dict[str, Any]:
    """A record without cases.  ``command`` is the command line that makes it again."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "environment": environment(),
        "cases": [],
    }


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write beside the target and rename, so that a reader never sees half a record."""
    bad = [case for case in record["cases"] if case.get("status") not in STATUSES]
    if bad:
        raise RecordError(f"case {bad[0].get('id')} has status {bad[0].get('status')!r}")
    try:
        text = json.dumps(record, indent=1, allow_nan=False)
    except ValueError as error:
        raise RecordError(f"{path} is not written: {error}") from None
    check_writable(path)
    try:
        write_whole(path, f"{text}\n".encode())
    except OSError as wrong:
        raise RecordError(f"{path} is not written: {why(wrong)}") from None


def check_writable(path: Path) -> None:
    """Raise `RecordError` if a record could not be written here; leaves what is there alone."""
    try:
        target = where(path)
        wrong_kind = target.is_dir() or (target.exists() and not target.is_file())
        if not wrong_kind:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = beside(target)
            os.close(handle)
            os.unlink(temporary)
    except OSError as error:
        raise RecordError(f"no record can be written to {path}: {why(error)}") from None
    if wrong_kind:
        raise RecordError(f"{path} is no regular file; a record replaces the file it is written to")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; raises `RecordError` for anything else."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise RecordError(f"no record at {path}") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {why(error)}") from None
    except ValueError as error:
        raise RecordError(f"{path} is no record: {error}") from None
    return parse_record(text, str(path))


def parse_record(text: str | bytes, path: str) -> dict[str, Any]:
    """A record that was read from somewhere; ``path`` is for the `RecordError` of anything else."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is no record: {error}") from None
    version = record.get("schema_version") if isinstance(record, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:  # True and 1.0 are equal to 1
        raise RecordError(
            f"{path} has schema_version {version!r}; this version reads {SCHEMA_VERSION}"
        )
    cases = record.get("cases")
    if not isinstance(cases, list) or not all(
        isinstance(case, dict) and case.get("status") in STATUSES for case in cases
    ):
        raise RecordError(
            f"{path} has no list of cases, each with a status out of {', '.join(STATUSES)}"
        )
    return dict(record)


def not_finite(data: Any) -> str | None:
    """The first figure that is none, such as ``cases[3].metrics.run_ms is nan``.  Python's json
    reads NaN and Infinity, and 1e999 as infinity; no record is written with one."""
    waiting = [(data, "")]
    while waiting:  # a loop: a hostile file is nested deeper than Python may recurse
        value, where = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"{where.lstrip('.')} is {value}"
        if isinstance(value, dict):
            waiting += [(inner, f"{where}.{key}") for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
    return None


def exit_code(cases: list[dict[str, Any]], interrupted: bool = False) -> int:
    """The exit code that the cases' statuses ask for."""
    statuses = {case["status"] for case in cases}
    if interrupted:
        return INTERRUPTED
    if statuses & {"fail", "error"}:
        return FAILED
    if "inconclusive" in statuses or "pass" not in statuses:
        return INCONCLUSIVE
    return PASSED
