"""A measured point as a case of a run record: what was measured, and why the rest was not."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import ServerTimings
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.across import Split, worst_window
from verify_attn.live.bound import STEPS_FOR_BOUNDS
from verify_attn.live.client import Answer
from verify_attn.live.measure import Measurement, Window
from verify_attn.live.points import Point, Trial
from verify_attn.live.verdict import Verdict, interval


class Figures:
    """Metrics that exist only where they were measured, and the reasons for the others."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.absent: dict[str, str] = {}

    def put(self, name: str, value: Any) -> None:
        """Keep a figure, or why there is none."""
        if isinstance(value, Absent):
            self.absent[name] = value.reason
        elif value is not None:
            self.metrics[name] = value


def case_of(point: Point, verdict: Verdict, splits: list[Split], corpus: str) -> dict[str, Any]:
    """The case; ``metrics`` in seconds, milliseconds and tokens a second, as the names say."""
    figures = Figures()
    if point.trials:
        figures.put("prompt_tokens", point.context)
        figures.put("first_token_s", point.first_token_s)
        figures.put("prefill_tok_s", _middle([t.prefill_tok_s for t in point.trials]))
        figures.put("decode_tok_s", point.decode_tok_s)
        figures.put("committed_per_step", point.committed_per_step)
        figures.put("accepted_drafts_per_step", _less_one(point.committed_per_step))
        figures.put("step_ms", point.step_ms)
        if point.concurrency > 1:
            _streams(figures, point)
        for name in ("burst_tok_s", "two_point_tok_s", "whole_tok_s"):
            figures.put(name, _middle([getattr(t.measurement, name) for t in point.trials]))
        found = interval(point)
        if found is not None:
            few = Absent(f"{found.steps} steps are too few for bounds, it takes {STEPS_FOR_BOUNDS}")
            enough = found.steps >= STEPS_FOR_BOUNDS
            figures.put("decode_tok_s_low", found.low if enough else few)
            figures.put("decode_tok_s_high", found.high if enough else few)
            figures.put("steps", found.steps)
        figures.metrics["audit"] = audit(point)
    findings = [*point.findings]
    for trial in point.trials:
        findings += [f for f in trial.findings if f not in findings]
    return {
        "id": point.name,
        "parameters": {
            "context": point.asked_context, "concurrency": point.concurrency, "corpus": corpus,
        },
        "status": verdict.status,
        "reason": verdict.reason,
        "metrics": figures.metrics,
        "absent": figures.absent,
        "floors": [check.as_json() for check in verdict.checks],
        "findings": [finding.as_json() for finding in findings],
        "attribution": [split.as_json() for split in splits],
        "died": point.died is not None,
        "notes": list(point.notes),
        "answers": [_trial(trial) for trial in point.trials],
    }  # fmt: skip


def _streams(figures: Figures, point: Point) -> None:
    """Several streams: the total with the time it is over, and how far they lie apart."""
    figures.put("total_tok_s", point.total_tok_s())
    rounds = [found for found in point.rounds() if not isinstance(found, Absent)]
    if rounds:
        figures.metrics["total_over"] = "; ".join(sorted({found.over for found in rounds}))
        figures.metrics["total_seconds"] = statistics.fmean(found.seconds for found in rounds)
        figures.metrics["total_streams"] = min(found.streams for found in rounds)
    for name, values in (
        ("stream_tok_s", [t.measurement.decode_tok_s for t in point.usable]),
        ("stream_first_token_s", [t.measurement.first_token_s for t in point.trials]),
    ):
        known = [value for value in values if not isinstance(value, Absent)]
        if known:
            figures.metrics[f"{name}_lowest"] = min(known)
            figures.metrics[f"{name}_median"] = float(statistics.median(known))
            figures.metrics[f"{name}_highest"] = max(known)
    counted = [a for a in point.counted.values() if isinstance(a, Acceptance)]
    if counted:
        figures.metrics["server"] = [a.as_metrics() for a in counted]
    else:
        figures.put("server", next(iter(point.counted.values()), None))


def audit(point: Point) -> dict[str, Any]:
    """How far each short method would have misled, as a ratio to the sustained rate."""
    found: dict[str, Any] = {}
    for name in ("burst_tok_s", "two_point_tok_s", "whole_tok_s"):
        ratios = [
            value / rate
            for t in point.usable
            if not isinstance(value := getattr(t.measurement, name), Absent)
            and not isinstance(rate := t.measurement.decode_tok_s, Absent)
        ]
        if ratios:
            found[f"{name.removesuffix('_tok_s')}_to_sustained"] = statistics.median(ratios)
    slowest = [
        min(w.tok_per_s for w in t.measurement.windows) / rate
        for t in point.usable
        if t.measurement.windows and not isinstance(rate := t.measurement.decode_tok_s, Absent)
    ]
    if slowest:
        found["worst_window_to_sustained"] = statistics.median(slowest)
    return found


def _less_one(committed: float | Absent) -> float | Absent:
    return committed if isinstance(committed, Absent) else committed - 1


def _middle(values: list[float | Absent]) -> float | Absent:
    known = [value for value in values if not isinstance(value, Absent)]
    if known:
        return float(statistics.median(known))
    return next(iter(values), Absent("nothing was measured"))


def _trial(trial: Trial) -> dict[str, Any]:
    m = trial.measurement
    figures = Figures()
    for name in (
        "prompt_tokens", "completion_tokens", "first_event_s", "first_token_s", "first_answer_s",
        "last_token_s", "decode_tok_s", "burst_tok_s", "two_point_tok_s", "whole_tok_s",
        "max_gap_s",
    ):  # fmt: skip
        figures.put(name, getattr(m, name))
    figures.put("committed_per_step", trial.committed_per_step)
    figures.put("committed_per_event_seen", m.committed_per_step)
    figures.put("step_ms", trial.step_ms)
    figures.put("cached_tokens", trial.cached_tokens)
    figures.put("prefill_tok_s", trial.prefill_tok_s)
    slowest = worst_window(m)
    figures.put("worst_window", slowest if isinstance(slowest, Absent) else slowest.as_json())
    if isinstance(trial.timings, ServerTimings):
        figures.metrics["server_timings"] = {
            name: value for name, value in asdict(trial.timings).items() if value is not None
        }
    if isinstance(trial.acceptance, Acceptance):
        figures.metrics["server"] = trial.acceptance.as_metrics()
        if trial.acceptance.problems:
            figures.metrics["server"]["problems"] = trial.acceptance.problems
    else:
        figures.absent["server"] = trial.acceptance.reason
    return {
        "repeat": trial.repeat,
        "asked_tokens": trial.asked_tokens,
        "outcome": m.outcome,
        "reason": m.reason,
        "finish_reason": m.finish,
        "tokens_from": m.timeline.source,
        "tokens_exact": m.timeline.exact,
        "steps_from": m.steps.kind,
        "metrics": figures.metrics,
        "absent": figures.absent,
        "arrival": _arrival(m),
        "windows": [_window(window) for window in m.windows],
        "notes": list(m.notes),
    }


def _arrival(m: Measurement) -> dict[str, Any]:
    """How the answer came in: events a read, tokens an event, gaps between steps."""
    line = m.timeline
    if len(line.t_s) == 0:
        return {}
    reads = len(np.unique(line.read))
    found: dict[str, Any] = {
        "events": len(line.t_s), "reads": reads, "events_per_read": len(line.t_s) / reads,
    }  # fmt: skip
    if not isinstance(line.tokens, Absent):
        found["tokens_per_event"] = float(line.tokens.mean())
        found["first_event_tokens"] = float(line.tokens[0])
    gaps = np.diff(m.steps.t_s) * 1e3
    if len(gaps):
        p50, p90, p99 = np.quantile(gaps, [0.5, 0.9, 0.99])
        found |= {"gap_ms_p50": float(p50), "gap_ms_p90": float(p90), "gap_ms_p99": float(p99)}
    return found


def _window(window: Window) -> dict[str, Any]:
    figures = Figures()
    figures.put("committed_per_step", window.committed)
    figures.put("step_ms", window.step_ms)
    return {
        "first_token": window.first, "tokens": window.tokens, "seconds": window.seconds,
        "tok_per_s": window.tok_per_s, **figures.metrics,
    }  # fmt: skip


def reads_of(answer: Answer) -> dict[str, Any]:
    """The optional per-read data of one answer: ms, bytes, events, characters."""
    sent = answer.sent_ns or answer.started_ns
    return {
        "path": answer.path,
        "reads": [
            [
                round((read.t_ns - sent) / 1e6, 3), read.size_bytes, read.events,
                sum(chunk.text_chars for chunk in read.chunks),
            ]
            for read in answer.stream.reads
        ],
        "columns": ["ms", "bytes", "events", "characters"],
    }  # fmt: skip
