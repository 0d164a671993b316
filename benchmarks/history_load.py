"""How long `verify-attn history` takes with 200 records of real size.

    python -m benchmarks.history_load [--records 200]

Half are of bench (24 cells, 2 kernels, all samples), half of sweep (6 contexts, 3 answers each).
All figures in them are random: only their form and size are those of real records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXTS = (1427, 11402, 31952, 63903, 127802, 184728)
GPU = {
    "index": 0, "name": "NVIDIA H200", "uuid": "GPU-0", "driver": "580.159.04",
    "compute_capability": "9.0", "memory_bytes": 150754820096, "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201, "power_limit_w": 700.0, "temperature_c": 42,
}  # fmt: skip
IDENTITY = ("name", "compute_capability", "memory_bytes", "driver", "power_limit_w")


def record(command: str, number: int, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything but the cases; one record each six hours, each of its own commit."""
    return {
        "schema_version": 1, "command": f"verify-attn {command} --json {command}.json",
        "started": (FIRST + timedelta(hours=6 * number)).isoformat(),
        "commit": hashlib.sha1(str(number).encode()).hexdigest(),
        "environment": {
            "gpus": [GPU], "triton": "compiled", "platform": "Linux", "cpu_count": 16,
            "versions": {"torch": "2.11.0", "triton": "3.6.0"}, "executable": "python3",
        },
        "cases": cases,
    }  # fmt: skip


def bench(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """24 cells of 2 kernels; from the middle on one of them takes 10 % longer."""
    cases = []
    for kernel in ("triton-unsplit", "triton-split"):
        for cell in range(24):
            slower = 1.1 if kernel == "triton-split" and number >= 100 else 1.0
            level = (0.1 + cell / 20) * slower * float(np.exp(0.01 * rng.normal()))
            parts = {
                part: list(level * factor * np.exp(0.005 * rng.normal(size=45)))
                for part, factor in (("run", 1.0), ("prepare_run", 1.2), ("graph", 0.97))
            }
            metrics: dict[str, Any] = {"limit_ms": 0.05 + cell / 40, "binds": "memory"}
            for part, taken in parts.items():
                middle = float(np.median(taken))
                metrics |= {f"{part}_ms": middle, f"{part}_low_ms": middle * 0.998,
                            f"{part}_high_ms": middle * 1.002}  # fmt: skip
            metrics["limit_share"] = metrics["limit_ms"] / metrics["run_ms"]
            shape = f"kimi-k2.6-tp8 r1 c{1000 * (cell + 1)} n32 h8 p1 shuffled tree bfloat16"
            cases.append({
                "id": f"{kernel} | {shape}", "parameters": {"kernel": kernel, "case": shape},
                "status": "pass", "reason": None, "metrics": metrics, "notes": [],
                "samples_ms": parts,
                "methods": {part: {"timer": "events", "l2": "flushed: 120 MB"} for part in parts},
            })  # fmt: skip
    found = record("bench", number, cases)
    found["environment"]["bench"] = {"identity": {key: GPU[key] for key in IDENTITY}}
    return found


def sweep(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """6 contexts, 3 answers of 1,500 tokens each in windows of 128, as the client keeps them."""
    cases = []
    for context in CONTEXTS:
        step = (20 + context / 2000) * float(np.exp(0.01 * rng.normal()))
        windows = [
            {"first_token": 128 * i, "tokens": 128.0, "seconds": step * 0.032 * rng.random(),
             "tok_per_s": 4000 / step * rng.random(), "committed_per_step": 4 * rng.random(),
             "step_ms": step * rng.random()} for i in range(45)
        ]  # fmt: skip
        rate = 4000 / step
        metrics = {
            "prompt_tokens": context, "decode_tok_s": rate, "decode_tok_s_low": rate * 0.99,
            "decode_tok_s_high": rate * 1.01, "step_ms": step,
            "first_token_s": context / 8000 * float(np.exp(0.03 * rng.normal())),
        }  # fmt: skip
        cases.append({
            "id": f"ctx={context}",
            "parameters": {"context": context, "concurrency": 1, "corpus": "mixed"},
            "status": "pass", "reason": "measured; held to no floor", "metrics": metrics,
            "answers": [{"repeat": i, "metrics": metrics, "windows": windows} for i in range(3)],
        })  # fmt: skip
    found = record("sweep", number, cases)
    return found | {"server": {"url": "http://gpu:8000", "model": "tiny"}, "floors_given": 0}


def write(folder: Path, count: int) -> int:
    """Write the records; returns their bytes together."""
    rng, size = np.random.default_rng(0), 0
    for number in range(count):
        made = (bench, sweep)[number % 2](number, rng)
        text = json.dumps(made, indent=1)
        (folder / f"{number:04d}.json").write_text(text)
        size += len(text)
    return size


def main() -> None:
    """Write, load, judge, show; print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, asked.records)
        start = time.perf_counter()
        from verify_attn.report.history import make_series
        from verify_attn.report.kept import read_folder

        records = read_folder(folder)
        loaded = time.perf_counter()
        import verify_attn.report.change_points  # noqa: F401

        imported = time.perf_counter()
        series = make_series(records)
        judged = time.perf_counter()
        command = (sys.executable, "-m", "verify_attn.cli", "history", name)
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        done = time.perf_counter()
    print(f"{asked.records} records, {size / 1e6:.1f} MB, {size / asked.records / 1e3:.0f} KB each")
    print(f"read: {loaded - start:.2f} s")
    print(f"import of scipy and ruptures: {imported - loaded:.2f} s")
    print(f"{len(series)} series judged: {judged - imported:.2f} s")
    print(f"the whole command in a process of its own: {done - judged:.2f} s, "
          f"exit code {shown.returncode}")  # fmt: skip
    print(f"its last line: {shown.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    main()
