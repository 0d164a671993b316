"""Gaps of an answer that no decode step explains, and what was held back in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verify_attn.live.absent import Absent
from verify_attn.live.causes import MEDIUM, Finding
from verify_attn.live.lag import overlap_s
from verify_attn.live.measure import Measurement
from verify_attn.live.tokens import Floats

MIN_ARRIVALS = 12
LONG_GAP = 10.0  # times the median gap ...
LONG_GAP_SHARE = 0.15  # ... of the whole time of decoding ...
LONG_GAP_S = 0.25  # ... and long enough to be more than a busy machine's hiccup
# Tokens that were held back come at once, or as fast as a connection gives them.
RELEASE_SHARE = 0.2  # of the pause: within so much time after it ...
RELEASED = 0.5  # ... came so much of what the pause had time for, beyond the usual
RELEASE_S = 0.05  # the same after the first token, where no pause says how long ...
RELEASE_START = 0.05  # ... or so much of the silence before it, LONG_GAP times as fast as later
MIN_RELEASED = 24  # tokens; a prefill's own step may bring as many as a draft tree commits


@dataclass(frozen=True)
class Pauses:
    """What was found, and which gaps between steps ([S - 1]) are some step's time."""

    findings: list[Finding]
    sound: npt.NDArray[np.bool_]


def pauses(m: Measurement) -> Pauses:
    """The longest gap, if it is a pause; else a start that was held back."""
    all_s, tokens = m.steps.t_s, m.steps.tokens
    # What this client slept through is no pause of the server's, and no step's time.
    sound = overlap_s(all_s, m.stood_still) == 0
    # Steps whose events shared a read have no gap of their own.
    t_s, at = np.unique(all_s, return_index=True)
    if len(t_s) < MIN_ARRIVALS:
        return Pauses([], sound)
    counts = np.ones(len(all_s)) if isinstance(tokens, Absent) else tokens
    counts = np.add.reduceat(counts, at)
    held = None if isinstance(tokens, Absent) else _held_from_start(m, t_s, counts)
    if held is not None:
        finding, release_s = held
        return Pauses([finding], sound & (all_s[1:] > t_s[0] + release_s))
    gaps = np.diff(t_s) - overlap_s(t_s, m.stood_still)
    usual = float(np.median(gaps))
    i = int(np.argmax(gaps))
    pause = float(gaps[i])
    if pause < max(LONG_GAP * usual, LONG_GAP_SHARE * float(t_s[-1] - t_s[0]), LONG_GAP_S):
        return Pauses([], sound)
    text = (
        f"{pause:.3g} s between steps {at[i + 1]} and {at[i + 1] + 1}, {pause / usual:.0f} times "
        "usual"
    )
    released, until = _released(t_s, counts, i, pause)
    sound &= (all_s[1:] <= t_s[i]) | (all_s[1:] > until)
    if released is not None:
        what = "steps" if isinstance(tokens, Absent) else "tokens"
        text += (
            f", then {released:.0f} {what} in {(until - t_s[i + 1]) * 1e3:.0f} ms: held back and "
            "released"
        )
        return Pauses([Finding("stall-then-burst", MEDIUM, text)], sound)
    return Pauses([Finding("prefill-in-decode" if i <= 1 else "stall", MEDIUM, text)], sound)


def _released(t_s: Floats, counts: Floats, i: int, pause: float) -> tuple[float | None, float]:
    """What came right after a pause, if that is what the server had made meanwhile; until when.

    The usual rate is that of all the rest of the answer.
    """
    until = t_s[i + 1] + RELEASE_SHARE * pause
    end = int(np.searchsorted(t_s, until, side="right"))
    came = float(counts[i + 1 : end].sum())
    rest_s = float(t_s[i] - t_s[0] + max(t_s[-1] - until, 0.0))
    rest = float(counts[1 : i + 1].sum() + counts[end:].sum())
    last_s = float(t_s[end - 1])
    # Too little is left to know the usual rate by: then half of the answer at once will do.
    if rest_s <= 0 or rest <= 0:
        return (came, last_s) if came >= RELEASED * counts.sum() else (None, float(t_s[i + 1]))
    rate = rest / rest_s
    usually = rate * min(RELEASE_SHARE * pause, float(t_s[-1] - t_s[i + 1]))
    if came - usually < RELEASED * rate * pause:
        return None, float(t_s[i + 1])
    return came, last_s


def _held_from_start(m: Measurement, t_s: Floats, counts: Floats) -> tuple[Finding, float] | None:
    """Silence, a burst, then the usual pace: part of the silence was decoding, not prefill.

    With the finding, how long the burst took.
    """
    if isinstance(m.first_token_s, Absent):
        return None
    for release_s in (RELEASE_S, RELEASE_START * m.first_token_s):
        found = _released_at_first(m.first_token_s, t_s, counts, release_s)
        if found is not None:
            return found, release_s
    return None


def _released_at_first(
    first_token_s: float, t_s: Floats, counts: Floats, release_s: float
) -> Finding | None:
    end = int(np.searchsorted(t_s, t_s[0] + release_s, side="right"))
    later_s = float(t_s[-1] - t_s[0]) - release_s
    later = float(counts[end:].sum())
    if later_s < LONG_GAP_S or later <= 0:
        return None
    rate = later / later_s
    burst = float(counts[:end].sum())
    # What the burst is ahead of the steady pace was made before the first token came.
    ahead_s = burst / rate - release_s
    enough = max(MIN_RELEASED, LONG_GAP * float(np.mean(counts[end:])))
    least = max(LONG_GAP_S, LONG_GAP_SHARE * float(t_s[-1] - t_s[0]))
    if burst < enough or not least < ahead_s < first_token_s:
        return None
    if release_s > RELEASE_S and burst < LONG_GAP * rate * release_s:
        return None  # an acceptance that falls is faster at first, too
    return Finding(
        "stall-then-burst", MEDIUM,
        f"{first_token_s:.3g} s of silence, then {burst:.0f} tokens within "
        f"{release_s * 1e3:.0f} ms and {rate:.0f} tok/s later: the first tokens were held back",
    )  # fmt: skip
