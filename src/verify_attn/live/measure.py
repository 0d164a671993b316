"""The figures of one streamed answer; what cannot be known is `Absent`, with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.client import Answer
from verify_attn.live.steps import Steps, find_steps
from verify_attn.live.tokens import Floats, Timeline, timeline

BURST_TOKENS = 200
TWO_POINT = (8, 264)  # max_tokens of the two requests of the two-point method
# An answer that arrived whole: faster than any engine, and in a sliver of the wait before it.
MIN_TOKEN_TIME_S = 1e-4
MAX_WHOLE_SHARE = 0.1


@dataclass(frozen=True)
class Window:
    """A stretch of the generation.

    ``first`` and ``tokens`` in tokens after the first step's; ``committed`` tokens a step;
    ``step_ms`` mean time of a step.  The last two are Absent where steps cannot be told apart.
    """

    first: int
    tokens: float
    seconds: float
    committed: float | Absent
    step_ms: float | Absent

    @property
    def tok_per_s(self) -> float:
        """Decode rate."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Measurement:
    """One answer, measured.  Times in seconds from the request's first byte, rates in tokens/s.

    ``stood_still``  from when to when this client's own event loop did nothing
    """

    outcome: str
    reason: str
    finish: str | None
    prompt_tokens: int | Absent
    completion_tokens: int | Absent
    first_event_s: float | Absent
    first_token_s: float | Absent
    first_answer_s: float | Absent
    last_token_s: float | Absent
    decode_tok_s: float | Absent
    burst_tok_s: float | Absent
    two_point_tok_s: float | Absent
    whole_tok_s: float | Absent
    committed_per_step: float | Absent
    step_ms: float | Absent
    windows: tuple[Window, ...]
    timeline: Timeline
    steps: Steps
    max_gap_s: float | Absent
    stood_still: tuple[tuple[float, float], ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    def prefill_tok_s(self, cached_tokens: int | Absent) -> float | Absent:
        """Prompt tokens that were not in the cache, over the time to the first token."""
        if isinstance(self.prompt_tokens, Absent):
            return self.prompt_tokens
        if isinstance(self.first_token_s, Absent):
            return self.first_token_s
        cached = 0 if isinstance(cached_tokens, Absent) else cached_tokens
        if self.prompt_tokens <= cached:
            return Absent(f"all {self.prompt_tokens} prompt tokens came out of the cache")
        return (self.prompt_tokens - cached) / self.first_token_s


def measure(answer: Answer, window_tokens: int = 128, *, drafted: bool = True) -> Measurement:
    """Measure an answer that has begun (a response came); ``drafted`` as in `find_steps`."""
    stream = answer.stream
    sent_ns = answer.sent_ns if answer.sent_ns is not None else answer.started_ns
    line = timeline(stream, sent_ns)
    stood_still = tuple(
        ((stall.begin_ns - sent_ns) / 1e9, (stall.end_ns - sent_ns) / 1e9)
        for stall in answer.stalls
        if stall.end_ns > sent_ns
    )
    steps = find_steps(line, stream, drafted=drafted, stood_still=stood_still)
    usage = stream.usage
    no_usage = Absent("the server sent no usage")
    prompt = usage.prompt_tokens if usage is not None else None
    first_event = [read.t_ns for read in stream.reads if read.chunks]
    answer_ns = [
        read.t_ns for read in stream.reads for chunk in read.chunks if chunk.content or chunk.tool
    ]
    no_token = Absent(stream.reason or "no event carried a token's text")
    seen = len(line.t_s) > 0
    last = float(line.t_s[-1]) if seen else no_token
    total = line.total
    rate = _decode_rate(line, steps)
    committed, step_ms = _step_figures(steps, 0, len(steps.t_s) - 1)
    return Measurement(
        outcome=stream.outcome,
        reason=stream.reason,
        finish=stream.finish,
        prompt_tokens=no_usage if prompt is None else prompt,
        completion_tokens=total,
        first_event_s=(first_event[0] - sent_ns) / 1e9 if first_event else no_token,
        first_token_s=float(line.t_s[0]) if seen else no_token,
        first_answer_s=(
            (answer_ns[0] - sent_ns) / 1e9 if answer_ns else Absent("no answer text came")
        ),
        last_token_s=last,
        decode_tok_s=rate,
        burst_tok_s=rate if isinstance(rate, Absent) else _burst(steps),
        two_point_tok_s=rate if isinstance(rate, Absent) else _two_point(line),
        whole_tok_s=(
            total if isinstance(total, Absent)
            else last if isinstance(last, Absent)
            else total / last if total > 0 else Absent("the server counts no token")
        ),
        committed_per_step=committed,
        step_ms=step_ms,
        windows=() if isinstance(rate, Absent) else tuple(_windows(steps, window_tokens)),
        timeline=line,
        steps=steps,
        max_gap_s=(
            float(np.diff(steps.t_s).max()) if len(steps.t_s) > 1 else Absent("fewer than 2 steps")
        ),
        stood_still=stood_still,
        notes=(*stream.notes, *_stood_still(stood_still)),
    )  # fmt: skip


def _stood_still(spans: tuple[tuple[float, float], ...]) -> list[str]:
    if not spans:
        return []
    seconds = [end - begin for begin, end in spans]
    return [
        f"this client stood still {len(spans)} times, for {sum(seconds):.3g} s in all and "
        f"{max(seconds) * 1e3:.0f} ms at most: reads meanwhile are stamped late"
    ]


def arrived_whole(line: Timeline) -> str | None:
    """Says so if the answer was not streamed at all, but came in one piece after a wait."""
    if len(line.t_s) == 0 or isinstance(line.total, Absent) or line.total < 16:
        return None
    span = float(line.t_s[-1] - line.t_s[0])
    if span < line.total * MIN_TOKEN_TIME_S and span < MAX_WHOLE_SHARE * float(line.t_s[0]):
        return (
            f"all {line.total} tokens came within {span * 1e3:.1f} ms after {line.t_s[0]:.2f} s "
            "of silence: nothing was streamed"
        )
    return None


def _decode_rate(line: Timeline, steps: Steps) -> float | Absent:
    """Tokens after the first step's over the time from it to the last.

    Where something held events back, the last release is left out: it may be short of tokens for
    its time, or of time for its tokens.
    """
    if isinstance(steps.tokens, Absent):
        return steps.tokens
    whole = arrived_whole(line)
    if whole is not None:
        return Absent(whole)
    end = len(steps.t_s) - (1 if steps.held_back and len(steps.t_s) > 3 else 0)
    tokens = float(steps.tokens[1:end].sum())
    seconds = float(steps.t_s[end - 1] - steps.t_s[0]) if end else 0.0
    if tokens <= 0 or seconds <= 0:
        return Absent("no token came after the first chunk's")
    return tokens / seconds


def _step_figures(steps: Steps, first: int, last: int) -> tuple[float | Absent, float | Absent]:
    """Committed tokens a step and mean step time over the steps after ``first``, up to ``last``."""
    if steps.held_back is not None:
        held = Absent(f"steps cannot be told apart: {steps.held_back}")
        return held, held
    count = last - first
    if count < 1:
        few = Absent("fewer than 2 steps")
        return few, few
    step_ms = float(steps.t_s[last] - steps.t_s[first]) / count * 1e3
    if isinstance(steps.tokens, Absent):
        return steps.tokens, step_ms
    tokens = steps.tokens[first + 1 : last + 1]
    if last == len(steps.t_s) - 1 and count > 1:
        tokens = tokens[:-1]  # the end of the answer may cut the last step
    return float(tokens.mean()), step_ms


def _windows(steps: Steps, window_tokens: int) -> list[Window]:
    """Whole steps of ``window_tokens`` at least; a rest under half of that joins the last."""
    assert not isinstance(steps.tokens, Absent)
    after = np.concatenate(([0.0], np.cumsum(steps.tokens[1:])))
    edges = [0]
    while after[-1] - after[edges[-1]] >= window_tokens:
        edges.append(int(np.searchsorted(after, after[edges[-1]] + window_tokens - 1e-9)))
    if len(edges) == 1 or after[-1] - after[edges[-1]] >= window_tokens / 2:
        edges.append(len(after) - 1)
    else:
        edges[-1] = len(after) - 1
    windows = []
    for a, b in pairwise(edges):
        seconds = float(steps.t_s[b] - steps.t_s[a])
        if seconds > 0:
            committed, step_ms = _step_figures(steps, a, b)
            tokens = float(after[b] - after[a])
            windows.append(Window(int(after[a]), tokens, seconds, committed, step_ms))
    return windows


def _burst(steps: Steps) -> float | Absent:
    assert not isinstance(steps.tokens, Absent)
    total = np.cumsum(steps.tokens)
    if total[-1] < BURST_TOKENS:
        return Absent(f"fewer than {BURST_TOKENS} tokens")
    end = int(np.searchsorted(total, BURST_TOKENS - 1e-9))
    seconds = float(steps.t_s[end] - steps.t_s[0])
    if end == 0 or seconds <= 0:
        return Absent(f"the first {BURST_TOKENS} tokens came at once")
    return float(total[end] - total[0]) / seconds


def _two_point(line: Timeline) -> float | Absent:
    """What two requests of 8 and 264 tokens would say, by when this answer had as many."""
    assert not isinstance(line.tokens, Absent)
    total = np.cumsum(line.tokens)
    few, many = TWO_POINT
    if total[-1] < many:
        return Absent(f"fewer than {many} tokens")
    t_few, t_many = _when(line.t_s, total, few), _when(line.t_s, total, many)
    if t_many <= t_few:
        return Absent(f"tokens {few} and {many} came at once")
    return (many - few) / (t_many - t_few)


def _when(t_s: Floats, total: Floats, tokens: int) -> float:
    return float(t_s[int(np.searchsorted(total, tokens - 1e-9))])
