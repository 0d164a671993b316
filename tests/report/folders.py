"""Run folders out of committed records: what `verify-attn run` would have left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS, DATA = ROOT / "results", ROOT / "tests/data/report"
DONE = {"doctor": 0, "check": 0, "bench": None, "sweep": 0}
STATUS = {0: "pass", 1: "fail", 3: "inconclusive", 4: "error", 2: "error", 130: "inconclusive"}

# The least that a bench which passed leaves.
BENCH: dict[str, Any] = {"schema_version": 1, "command": "verify-attn bench", "cases": [
    {"id": "k|ctx=1k", "status": "pass", "reason": None, "metrics": {"run_ms": 0.1},
     "parameters": {"kernel": "k"}}
]}  # fmt: skip


def swept(name: str) -> Path:
    """A sweep of `verify-attn serve` with that fault injected."""
    return DATA / f"{name}.json"


def step(
    name: str, code: int | None, reason: str | None = None, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A step's case in run.json."""
    status = "skipped" if code is None else STATUS.get(code, "error")
    if code is None:
        reason = reason or "no GPU here: kernels were not timed"
    return {
        "id": name, "parameters": {"command": f"verify-attn {name}", "record": f"{name}.json"},
        "status": status, "reason": reason, "metrics": {"seconds": 2.5}, "exit_code": code,
        "notes": list(notes),
    }  # fmt: skip


def run_record(
    steps: dict[str, int | None] | None = None, finished: bool = True, **more: Any
) -> dict[str, Any]:
    """run.json; ``steps``: the exit code of each that was begun, None: skipped."""
    cases = [step(name, code) for name, code in (DONE if steps is None else steps).items()]
    environment = {"gpus": [], "triton": "interpreter"}
    return {
        "schema_version": 1, "command": "verify-attn run", "started": "2026-01-01T00:00:00+00:00",
        "environment": environment, "cases": cases, "finished": finished,
        "interrupted": not finished, **more,
    }  # fmt: skip


def folder(path: Path, run: dict[str, Any] | None, **records: Path | dict[str, Any]) -> Path:
    """Write run.json and the steps' records (a file, or what is in it) into ``path``."""
    if run is not None:
        (path / "run.json").write_text(json.dumps(run))
    cases = {} if run is None else {case["id"]: case for case in run["cases"]}
    for name, record in records.items():
        known = json.loads(record.read_text()) if isinstance(record, Path) else record
        if name in cases:  # as if this run had made it
            command = cases[name]["parameters"].get("command", f"verify-attn {name}")
            known = {**known, "command": command}
        (path / f"{name}.json").write_text(json.dumps(known))
    return path
