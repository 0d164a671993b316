"""From one answer, and what the server said around it, to a trial of a point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    LogReading,
    NothingDrafted,
    cached_tokens,
    filled_tokens,
    from_events,
    server_timings,
)
from verify_attn.live.causes import HIGH, Finding
from verify_attn.live.client import Answer
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.points import Point, Trial
from verify_attn.live.prompts import MAX_CHARS_A_TOKEN
from verify_attn.live.requests import asked_tokens
from verify_attn.live.server.errors import context_overflow
from verify_attn.live.within import diagnose_answer


@dataclass(frozen=True)
class Around:
    """What the server's counters and its log said of the time of one round."""

    acceptance: Acceptance | Absent
    cached_tokens: int | Absent
    lines: LogReading | None


def skip_too_long(point: Point, words: str) -> None:
    """The point does not fit the server: skipped, with its words."""
    point.skipped = f"context overflow: {words}"
    point.findings.append(Finding("context-overflow", HIGH, words, (point.name,)))


def make_trial(
    point: Point,
    answer: Answer,
    body: dict[str, Any],
    around: Around,
    repeat: int,
    window_tokens: int,
    prompt_chars: int = 0,
) -> Trial | None:
    """Measure an answer; None where there is none to measure, which the point then says.

    ``prompt_chars`` of our own prompt; 0 where it is somebody else's.
    """
    refusal = _overflowed(answer)
    if refusal is not None:
        skip_too_long(point, refusal)
        return None
    if answer.unreachable is not None or answer.status != 200:
        stalled = (answer.unreachable or "").startswith("no token within")
        cause = "stall" if stalled else "request-failed"
        point.error = str(answer.failure)
        point.findings.append(Finding(cause, HIGH, point.error, (point.name,)))
        return None
    alone = point.concurrency == 1
    acceptance = _acceptance(answer, around, alone=alone)
    drafted = not isinstance(acceptance, NothingDrafted)
    counted = measure(answer, window_tokens, drafted=drafted)
    m = _with_sound_prompt(counted, prompt_chars)
    if m is not counted and isinstance(m.prompt_tokens, Absent):
        point.notes.append(m.prompt_tokens.reason)
    cached = _cached(answer, around, alone=alone)
    sent_ns = answer.sent_ns if answer.sent_ns is not None else answer.started_ns
    trial = Trial(m, asked_tokens(body), acceptance, cached, repeat, sent_ns)
    trial.filled_tokens = filled_tokens(answer.stream.events)
    timings = server_timings(answer.stream.events)
    trial.timings = None if isinstance(timings, Absent) else timings
    trial.findings = diagnose_answer(m, trial.asked_tokens, acceptance, cached)
    if answer.failure is not None or m.outcome == "truncated":
        point.error = answer.failure or m.reason
    if m.outcome == "stopped":
        note = f"{m.completion_tokens} of {trial.asked_tokens} tokens: {m.reason}" if not (
            isinstance(m.completion_tokens, Absent)
        ) else m.reason  # fmt: skip
        point.notes.append(note)
    return trial


def _with_sound_prompt(m: Measurement, chars: int) -> Measurement:
    """Without a count of the prompt that cannot be one."""
    counted = m.prompt_tokens
    if isinstance(counted, Absent) or counted * MAX_CHARS_A_TOKEN >= chars:
        return m
    why = Absent(
        f"the server counts {counted:,} tokens in a prompt of {chars:,} characters, which is no "
        "count of it"
    )
    return replace(m, prompt_tokens=why)


def _acceptance(answer: Answer, around: Around, *, alone: bool) -> Acceptance | Absent:
    """The answer's own, else what counters or the log say of the time in which it was alone."""
    own = from_events(answer.stream.events)
    if not alone or isinstance(own, Acceptance | NothingDrafted):
        return own
    if isinstance(around.acceptance, Absent) and around.lines is not None:
        return around.lines.acceptance
    return around.acceptance


def _cached(answer: Answer, around: Around, *, alone: bool) -> int | Absent:
    cached = cached_tokens(answer.stream.events)
    if alone and isinstance(cached, Absent) and not isinstance(around.cached_tokens, Absent):
        cached = around.cached_tokens
    if isinstance(cached, Absent) and around.lines is not None:
        cached = around.lines.cached_tokens
    return cached


def _overflowed(answer: Answer) -> str | None:
    """The refusal's words, if the prompt was too long for the server, in any engine's way."""
    if answer.status is None:
        return None
    for body in (answer.error_body, *answer.stream.events):
        words = context_overflow(answer.status, body)
        if words is not None:
            return words
    return None
