"""Run records: one JSON file a command, written whole or not at all."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verify_attn.environment import environment

SCHEMA_VERSION = 1
STATUSES = ("pass", "fail", "inconclusive", "error", "skipped")

# Exit codes of every command; the first that applies, in this order.
INTERRUPTED, BAD_USAGE, SERVER_DEAD, FAILED, INCONCLUSIVE, PASSED = 130, 2, 4, 1, 3, 0


class RecordError(ValueError):
    """A record that cannot be read; the message says which file, what is there and the rule."""


def new_record(command: Sequence[str]) -> dict[str, Any]:
    """A record without cases.  ``command`` is the command line that makes it again."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(command),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(),
        "cases": [],
    }


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write beside the target and rename, so that a reader never sees half a record."""
    bad = [case for case in record["cases"] if case.get("status") not in STATUSES]
    if bad:
        raise RecordError(f"case {bad[0].get('id')} has status {bad[0].get('status')!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1, allow_nan=False)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_record(path: Path) -> dict[str, Any]:
    """Read a record; raises `RecordError` for anything else."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise RecordError(f"no record at {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{path} is no record: {error}") from None
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version {version!r}; this version reads {SCHEMA_VERSION}"
        )
    return dict(record)


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
