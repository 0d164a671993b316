"""Each fault of `serve --inject`, in a real server, is caught by `verify-attn sweep`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verify_attn.embedded import serving

pytestmark = pytest.mark.timing


def sweep(tmp_path: Path, serve: list[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, record, output) of a sweep of `serve tiny` with these arguments."""
    record = tmp_path / "record.json"
    with serving(["tiny", "--no-prefix-cache", *serve]) as url:
        command = [sys.executable, "-m", "verify_attn.cli", "sweep", "--url", url, "--budget", "0",
                   "--json", str(record), *arguments]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return done.returncode, json.loads(record.read_text()), done.stdout + done.stderr


def causes(record: dict[str, Any]) -> set[str]:
    findings = record["findings"] + [f for case in record["cases"] for f in case["findings"]]
    return {finding["cause"] for finding in findings}


PINNED = ["--drafter", "replay", "--pin", "4", "--fill-prompts", "1"]


def test_nothing_injected_is_nothing_found(tmp_path: Path):
    code, record, output = sweep(
        tmp_path, PINNED, "--contexts", "256,512", "--max-tokens", "200"
    )  # fmt: skip
    assert causes(record) == set(), output
    assert code == 0
    for case in record["cases"]:
        assert case["metrics"]["committed_per_step"] == pytest.approx(4, rel=0.02)
        assert "prefill_tok_s" not in case["metrics"]
        assert "did not compute" in case["absent"]["prefill_tok_s"]


def test_a_step_time_that_grows(tmp_path: Path):
    code, record, output = sweep(
        tmp_path, [*PINNED, "--inject", "step-time=20"], "--contexts", "256,2k,8k",
        "--max-tokens", "60",
    )  # fmt: skip
    assert "step-time-linear-in-context" in causes(record), output
    assert code == 3


def test_memory_that_runs_out(tmp_path: Path):
    code, record, output = sweep(
        tmp_path, [*PINNED, "--inject", "out-of-memory=6000"], "--contexts", "256,8k",
        "--max-tokens", "40",
    )  # fmt: skip
    assert [case["status"] for case in record["cases"]] == ["pass", "error"], output
    assert "out of memory" in record["cases"][1]["reason"]
    assert code == 4


def test_death_in_prefill(tmp_path: Path):
    code, record, output = sweep(
        tmp_path, ["--inject", "die-in-prefill=3000"], "--contexts", "256,4k", "--max-tokens", "40"
    )
    assert [case["status"] for case in record["cases"]] == ["pass", "error"], output
    assert code == 4


def test_a_stall(tmp_path: Path):
    code, record, output = sweep(
        tmp_path, [*PINNED, "--inject", "stall=60:3"], "--contexts", "256", "--max-tokens", "120"
    )
    assert causes(record) == {"stall"}, output
    assert code == 3  # no floor says that it may stall


def test_acceptance_that_falls(tmp_path: Path):
    """The trained drafter's own, on a text that it is good at."""
    code, record, output = sweep(
        tmp_path, ["--inject", "acceptance=300"], "--contexts", "512", "--max-tokens", "600",
        "--corpus", "repetitive",
    )  # fmt: skip
    assert "acceptance-falls" in causes(record), (code, output)
