"""What one answer shows about why it is slow, or why its figures are not what they seem."""

from __future__ import annotations

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.causes import HIGH, LOW, MEDIUM, Finding
from verify_attn.live.changes import changes, committed_drift, largest, time_drift
from verify_attn.live.measure import Measurement, arrived_whole
from verify_attn.live.pauses import Pauses, pauses
from verify_attn.live.steps import shared_gaps
from verify_attn.live.stream import FAILED, TRUNCATED
from verify_attn.live.tokens import TEXT_SHARE

ACCEPTANCE_DRIFT = 1.25  # first third over last
# Where tokens are shares of the text: a token of code or figures is shorter than one of prose by
# this much, so that a change of subject alone looks like a drift.
ESTIMATED_DRIFT = 1.6
STEP_DRIFT = 1.2  # last third over first, medians ...
MEAN_DRIFT = 1.1  # ... and means
SAME_COUNT_SHARE = 0.9
COUNT_SLACK = 0.02
MAX_OVERSHOOT = 16  # tokens of the last step beyond the end of the answer
MIN_CACHED_TOKENS = 64  # a chat template's own head may be cached in every request


def diagnose_answer(
    m: Measurement,
    asked_tokens: int | None,
    acceptance: Acceptance | Absent,
    cached_tokens: int | Absent,
) -> list[Finding]:
    """The causes that this answer shows on its own."""
    found = [*_ending(m, asked_tokens), *_cache(m, cached_tokens)]
    whole = arrived_whole(m.timeline)
    if whole is not None:
        return [*found, Finding("fake-streaming", HIGH, whole)]
    if m.steps.held_back is not None:
        period = m.steps.period_s
        every = "" if period is None else f", released about every {period * 1e3:.0f} ms"
        found.append(Finding("proxy-buffering", MEDIUM, m.steps.held_back + every))
        return found
    interval = chunk_interval(m, acceptance)
    if interval is not None:
        found.append(interval)
    paused = pauses(m)
    found += paused.findings
    if interval is None:
        found += _acceptance(m)
    return [*found, *_step_time(m, paused)]


def _ending(m: Measurement, asked_tokens: int | None) -> list[Finding]:
    if m.outcome == FAILED:
        cause = "request-failed"
        if m.reason.startswith(("stalled", "no token within")):
            cause = "stall"
        elif m.reason.startswith("the connection broke"):
            cause = "stream-truncated"
        return [Finding(cause, HIGH, m.reason)]
    if m.outcome == TRUNCATED:
        return [Finding("stream-truncated", HIGH, m.reason)]
    if isinstance(m.completion_tokens, Absent):
        missing = [Finding("usage-missing", HIGH, m.completion_tokens.reason)]
        return missing if m.outcome == "complete" else []
    disagree = _counts(m, asked_tokens)
    if disagree is not None:
        return [Finding("counts-disagree", HIGH, disagree)]
    if asked_tokens is None or m.outcome != "complete":
        return []
    # An answer cut off by its length has as many tokens as were asked for, give or take its end;
    # a server that cuts sooner has a limit of its own.
    slack = _slack(asked_tokens, 2) if m.finish in (None, "length") else 0
    if m.completion_tokens < asked_tokens - slack:
        text = f"{m.completion_tokens} of {asked_tokens} tokens, finish reason {m.finish!r}"
        return [Finding("early-stop", HIGH, text)]
    return []


def _slack(tokens: float, least: int) -> float:
    """By how many tokens two counts of the same may differ: an end token, a step's overshoot."""
    return max(least, COUNT_SLACK * tokens)


def _counts(m: Measurement, asked_tokens: int | None) -> str | None:
    """What the server's counts contradict, or None."""
    total, line = m.completion_tokens, m.timeline
    if isinstance(total, Absent):
        return None
    if line.exact and not isinstance(line.tokens, Absent):
        seen = float(line.tokens.sum())
        if abs(seen - total) > _slack(max(seen, total), MAX_OVERSHOOT):
            return f"{line.source} make {seen:.0f} tokens, the server's total is {total}"
    if asked_tokens is not None and total > asked_tokens + _slack(asked_tokens, MAX_OVERSHOOT):
        return f"the server counts {total} tokens where it was asked for at most {asked_tokens}"
    return None


def _cache(m: Measurement, cached_tokens: int | Absent) -> list[Finding]:
    if isinstance(cached_tokens, Absent) or isinstance(m.prompt_tokens, Absent):
        return []
    if cached_tokens >= max(MIN_CACHED_TOKENS, 0.05 * m.prompt_tokens):
        text = (
            f"the server says that {cached_tokens} of {m.prompt_tokens} prompt tokens were cached"
        )
        return [Finding("prefix-cache-hit", HIGH, text)]
    return []


def chunk_interval(m: Measurement, acceptance: Acceptance | Absent) -> Finding | None:
    """Events of one size are no committed counts, unless the server says that steps are so."""
    tokens = m.steps.tokens
    if isinstance(tokens, Absent) or m.steps.kind != "events" or len(tokens) < 12:
        return None
    middle = tokens[1:-1]
    mean = float(middle.mean())
    if m.timeline.source == TEXT_SHARE:
        # Lengths of text, not counts: ten tokens vary by a sixth, a step's commits far more.
        if mean < 5 or float(middle.std()) > 0.3 * mean:
            return None
        size, share = mean, "of about the same length"
    else:
        size = float(np.median(middle))
        if size < 2 or np.mean(middle == size) < SAME_COUNT_SHARE:
            return None
        share = "alike"
    said = acceptance.committed_per_step if isinstance(acceptance, Acceptance) else None
    if said is not None and abs(said - mean) <= 0.15 * mean:
        return None
    text = f"{len(tokens)} events of {size:.3g} tokens, {share}"
    if said is not None:
        return Finding(
            "chunk-interval", HIGH, f"{text}, where the server commits {said:.2f} a step"
        )
    return Finding("chunk-interval", MEDIUM, f"{text}; no counter of the server says that a step "
                   "commits as many")  # fmt: skip


def _acceptance(m: Measurement) -> list[Finding]:
    tokens = m.steps.tokens
    if isinstance(tokens, Absent):
        return []
    series = tokens[1:-1]
    found = committed_drift(series)
    enough = ACCEPTANCE_DRIFT if m.timeline.exact else ESTIMATED_DRIFT
    if found is None or not found.significant or found.ratio * enough > 1:
        return []
    text = (
        f"committed tokens a step fall from {found.early:.2f} to {found.late:.2f} within the answer"
    )
    change = largest(changes(series, log=False))
    if change is not None and change.ratio < 1:
        at = int(tokens[: change.at + 1].sum())
        text += f", the largest change at token {at} ({change.before:.2f} to {change.after:.2f})"
    if m.timeline.source == TEXT_SHARE:
        text += "; tokens of a step are estimated from its text"
    return [Finding("acceptance-falls", MEDIUM if m.timeline.exact else LOW, text)]


def _step_time(m: Measurement, paused: Pauses) -> list[Finding]:
    gaps = shared_gaps(m.steps.t_s)[paused.sound]
    found = time_drift(gaps)
    if found is None or not found.significant or found.ratio < STEP_DRIFT:
        return []
    third = len(gaps) // 3
    if float(gaps[-third:].mean()) < MEAN_DRIFT * float(gaps[:third].mean()):
        return []  # short and long gaps in another mixture: the time of the answer is the same
    text = (
        f"step time grows from {found.early * 1e3:.1f} to {found.late * 1e3:.1f} ms within the "
        "answer"
    )
    change = largest(changes(gaps, log=True))
    if change is not None and change.ratio > 1 and not isinstance(m.steps.tokens, Absent):
        at = int(m.steps.tokens[: int(np.flatnonzero(paused.sound)[change.at]) + 1].sum())
        text += f", by {change.ratio:.2f} times at token {at}"
    return [Finding("step-time-grows", MEDIUM, text)]
