"""Run records and pytest-benchmark files to compare, made without a GPU."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

IDENTITY = {
    "name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 150_754_820_096,
    "driver": "580.95.05", "power_limit_w": 700.0,
}  # fmt: skip
METHOD = {"timer": "events", "l2": "flushed before each call by 1024 MiB of writes", "calls": 1,
          "drained": False}  # fmt: skip


def times(part: str, ms: float, half: float = 0.005) -> dict[str, float]:
    """A part's median and interval; ``half`` is the interval's share on either side."""
    return {f"{part}_ms": ms, f"{part}_low_ms": ms * (1 - half), f"{part}_high_ms": ms * (1 + half)}


def case(
    context: int = 31952, ms: float = 0.1, half: float = 0.005, kernel: str = "triton-split"
) -> dict[str, Any]:
    """A measured case, as bench writes it: bandwidth and speedup fall as the time grows."""
    metrics = times("run", ms, half) | times("graph", 0.9 * ms, half)
    metrics |= {"gb_per_s": 40 / ms, "speedup": 5 / ms}
    metrics |= {"speedup_low": 5 / ms * (1 - half), "speedup_high": 5 / ms * (1 + half)}
    return {
        "id": f"{kernel} | kimi-k2.6-tp8 r1 c{context} n32 h8 p1 shuffled tree bfloat16",
        "parameters": {"kernel": kernel, "context": context, "nodes": 32, "case": "{}"},
        "status": "pass", "reason": None, "metrics": metrics,
        "methods": {"run": dict(METHOD), "graph": {**METHOD, "timer": "graph", "calls": 8}},
        "notes": [],
    }  # fmt: skip


def unmeasured(status: str, reason: str, context: int = 31952) -> dict[str, Any]:
    """A case without a time."""
    return case(context) | {"status": status, "reason": reason, "metrics": {}, "methods": {}}


def record(*cases: dict[str, Any], **identity: Any) -> dict[str, Any]:
    """A record of bench; keywords change the GPU's identity."""
    return {
        "schema_version": 1, "command": "verify-attn bench --json run.json",
        "environment": {
            "versions": {"torch": "2.11.0", "triton": "3.6.0"},
            "bench": {"identity": IDENTITY | identity, "baseline": "triton-unsplit"},
        },
        "cases": copy.deepcopy(list(cases)),
    }  # fmt: skip


def pytest_file(*cases: dict[str, Any], **identity: Any) -> dict[str, Any]:
    """The same in pytest-benchmark's format, a test a case."""
    about = {"identity": IDENTITY | identity, "versions": {"torch": "2.11.0"}}
    return {
        "machine_info": {"node": "gpu-runner", "verify_attn": about},
        "benchmarks": [
            {
                "name": f"test_kernel[{c['parameters']['context']}]",
                "fullname": f"tests/perf/test_mine.py::test_kernel[{c['parameters']['context']}]",
                "extra_info": {
                    "verify_attn": {"parameters": c["parameters"], "metrics": c["metrics"]}
                },
                "stats": {"median": 1e-4, "data": [1e-4]},
            }
            for c in cases
        ],
        "datetime": "2026-01-01T00:00:00+00:00", "version": "5.3.1",
    }  # fmt: skip


def saved(path: Path, content: Any) -> Path:
    """Written as JSON, or as it is."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
