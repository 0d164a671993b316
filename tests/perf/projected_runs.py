"""A record of the kernel `sm120` on an H200, made up: times that grow as a line does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from verify_attn.perf.axes import Cell

CONTEXTS = (1_427, 11_402, 31_952, 63_903, 127_802, 184_728)
NODES = (8, 32, 64)
FIXED_MS = 0.008
A_THOUSAND_MS = {8: 0.42e-3, 32: 1.3e-3, 64: 2.3e-3}  # tokens, by nodes
CELLS = tuple(Cell(context=c, nodes=n) for c in CONTEXTS for n in NODES)


def made_up(cell: Cell) -> float:
    """Its milliseconds."""
    return FIXED_MS + A_THOUSAND_MS[cell.nodes] * cell.context / 1e3


def record(
    cells: Sequence[Cell] = CELLS,
    ms: Callable[[Cell], float] = made_up,
    kernel: str = "sm120",
    gpu: str = "NVIDIA H200",
    gb_per_s: float = 4306.0,
    tflops: float = 763.0,
) -> dict[str, Any]:
    """As bench writes it."""
    return {
        "schema_version": 1, "command": "verify-attn bench sm120 --json bench.json",
        "environment": {"bench": {
            "identity": {"name": gpu},
            "ceilings": {"rates": {"gb_per_s": gb_per_s, "tflops": tflops, "source": "measured"}},
        }},
        "cases": [
            {
                "id": f"{kernel} | {cell.id}", "status": "pass", "reason": None, "notes": [],
                "parameters": {"kernel": kernel, **asdict(cell), "case": cell.case().to_json()},
                "metrics": {"run_ms": ms(cell), "sm_clock_mhz_least": 1980,
                            "sm_clock_mhz_most": 1980, "limit_ms": 0.05},
            }
            for cell in cells
        ],
    }  # fmt: skip
