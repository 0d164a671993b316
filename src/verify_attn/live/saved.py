"""A saved run to compare with: the rates, committed tokens and step times of an earlier record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verify_attn.record import RecordError, read_record

SLACK = 0.1  # as for floors: how far outside its contexts it still holds


@dataclass(frozen=True)
class SavedPoint:
    """One case of a record; rates in tokens/s, the others as there."""

    context: int
    concurrency: int
    decode_tok_s: float
    committed: float | None
    step_ms: float | None


@dataclass(frozen=True)
class SavedRun:
    """Points by ascending context."""

    name: str
    points: tuple[SavedPoint, ...]
    about: dict[str, Any] = field(default_factory=dict)  # model, engine, max_tokens

    def near(self, context: int, concurrency: int) -> SavedPoint | None:
        """The saved point at this context, give or take a tenth."""
        same = [p for p in self.points if p.concurrency == concurrency]
        best = min(same, key=lambda p: abs(p.context - context), default=None)
        if best is None or abs(best.context - context) > SLACK * max(context, best.context):
            return None
        return best

    def rate_at(self, context: int, concurrency: int) -> float | None:
        """The rate at a context, the time of a token interpolated between two points."""
        same = [p for p in self.points if p.concurrency == concurrency]
        below = [p for p in same if p.context <= context]
        above = [p for p in same if p.context >= context]
        if below and above:
            a, b = below[-1], above[0]
            if a.context == b.context:
                return a.decode_tok_s
            part = (context - a.context) / (b.context - a.context)
            return 1 / ((1 - part) / a.decode_tok_s + part / b.decode_tok_s)
        near = self.near(context, concurrency)
        return None if near is None else near.decode_tok_s


def read_saved(path: Path) -> SavedRun:
    """Read a sweep's record; raises `RecordError` if it has no measured point."""
    record = read_record(path)
    points = [p for case in record["cases"] if (p := _point(case)) is not None]
    if not points:
        raise RecordError(f"{path} has no measured point of a sweep")
    server = record.get("server")
    server = server if isinstance(server, dict) else {}
    facts = server.get("facts")
    about = {
        "model": server.get("model"),
        "engine": facts.get("engine") if isinstance(facts, dict) else None,
        "max_tokens": server.get("max_tokens"),
    }
    return SavedRun(path.name, tuple(sorted(points, key=lambda p: p.context)), about)


def _point(case: dict[str, Any]) -> SavedPoint | None:
    metrics, parameters = case.get("metrics"), case.get("parameters")
    if not isinstance(metrics, dict) or not isinstance(parameters, dict):
        return None
    context, rate = metrics.get("prompt_tokens"), metrics.get("decode_tok_s")
    streams = parameters.get("concurrency")
    if not isinstance(context, int) or not isinstance(rate, float | int) or rate <= 0:
        return None
    if not isinstance(streams, int):
        return None

    def known(name: str) -> float | None:
        value = metrics.get(name)
        return float(value) if isinstance(value, float | int) and value > 0 else None

    return SavedPoint(context, streams, float(rate), known("committed_per_step"), known("step_ms"))
