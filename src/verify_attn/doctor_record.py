"""``python -m verify_attn.doctor_record FILE``: what `verify-attn doctor` finds, as a record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from verify_attn.record import PASSED, RecordError, new_record, write_record
from verify_attn.terminal import error

CANNOT = "cannot run"


def doctor_record() -> dict[str, Any]:
    """A case a line of doctor, its text as ``found``; a built-in kernel that cannot run is
    ``skipped``."""
    from verify_attn.doctor import findings

    record = new_record(["verify-attn", "doctor"])
    for name, text in findings():
        cannot = name.startswith("kernel ") and text.startswith(CANNOT)
        record["cases"].append({
            "id": name, "parameters": {"found": text}, "metrics": {},
            "status": "skipped" if cannot else "pass", "reason": text if cannot else None,
        })  # fmt: skip
    return record


def main(path: Path) -> int:
    """Write the record and print what is in it; returns the exit code."""
    record = doctor_record()
    for case in record["cases"]:
        print(f"{case['id']}: {case['parameters']['found']}")
    try:
        write_record(path, record)
    except RecordError as wrong:
        return error(str(wrong))
    return PASSED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
