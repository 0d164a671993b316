"""What the points of a sweep say together: what grows with the context, and whose share it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from verify_attn.live.absent import Absent
from verify_attn.live.causes import HIGH, LOW, MEDIUM, Finding
from verify_attn.live.changes import SIGNIFICANT
from verify_attn.live.fits import Fit, fit, steepness
from verify_attn.live.limit import FAR_FROM_LIMIT, NEAR_LIMIT, KvRead, nodes_of_a_step
from verify_attn.live.measure import Measurement
from verify_attn.live.points import Point

STEP_GROWTH = 2.0  # over the sweep, before it counts
MIN_RANGE = 3.0  # longest over shortest context
FLAT_GROWTH = 1.3
ACCEPTANCE_FALL = 1.4
SUPERLINEAR = 1.35  # exponent of a step's time
SUPERQUADRATIC = 2.25  # exponent of prefill: the attention of a prompt is quadratic, no more
# Where the quadratic part of prefill passes the linear one: near 50,000 tokens by the arithmetic of
# models of 7B to 1T parameters.
EARLY_CROSSOVER = 12_000
QUADRATIC_SHARE = 0.6
WARM_UP = 2.0  # times the prefill of a longer prompt ...
WARM_UP_S = 0.25  # ... and more by more than a busy machine's hiccup
CACHE_HIT = 0.25  # of the time that the others' fit says ...
CACHE_HIT_S = 0.1  # ... and less by more than a busy machine adds


@dataclass(frozen=True)
class Overview:
    """The sweep as a whole."""

    findings: list[Finding]
    step_fit: Fit | None
    prefill_fit: Fit | None
    step_shape: str | None

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        found: dict[str, Any] = {}
        if self.step_fit is not None:
            found["step_time_fit"] = {**self.step_fit.as_json(), "shape": self.step_shape}
        if self.prefill_fit is not None:
            found["prefill_fit"] = self.prefill_fit.as_json()
        return found


@dataclass(frozen=True)
class Split:
    """decode tok/s = committed / step time: how a ratio of rates is made up.

    ``rate``, ``committed`` and ``step_time`` are ratios to the reference; the shares add up to 1
    where the rate differs from it.
    """

    against: str
    rate: float
    committed: float
    step_time: float

    @property
    def acceptance_share(self) -> float | None:
        """Share of the change that is the committed tokens'; None where nothing changed much."""
        whole = math.log(self.rate)
        return None if abs(whole) < math.log(1.05) else math.log(self.committed) / whole

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        found: dict[str, Any] = {
            "against": self.against, "rate_ratio": self.rate,
            "committed_ratio": self.committed, "step_time_ratio": self.step_time,
        }  # fmt: skip
        share = self.acceptance_share
        if share is not None:
            found |= {"acceptance_share": share, "step_time_share": 1 - share}
        return found

    @property
    def line(self) -> str:
        """One line of text."""
        share = self.acceptance_share
        text = f"{self.rate:.2f} times the rate of {self.against}"
        if share is None:
            return text
        return (
            f"{text}: committed tokens a step {self.committed:.2f} times ({share:.0%} of the "
            f"change), step time {self.step_time:.2f} times ({1 - share:.0%})"
        )


def split(
    point: Point, against: str, rate: float, committed: float | None, step_ms: float | None
) -> Split | Absent:
    """The point against a reference; Absent where either's steps cannot be told apart."""
    mine = point.decode_tok_s, point.committed_per_step, point.step_ms
    for value in mine:
        if isinstance(value, Absent):
            return value
    if committed is None or step_ms is None:
        return Absent(f"the steps of {against} are not known")
    mine_rate, mine_committed, mine_step = (float(v) for v in mine if not isinstance(v, Absent))
    return Split(against, mine_rate / rate, mine_committed / committed, mine_step / step_ms)


def worst_window(m: Measurement) -> Split | Absent:
    """The slowest window of an answer against its fastest."""
    if len(m.windows) < 2:
        return Absent("fewer than 2 windows")
    best = max(m.windows, key=lambda w: w.tok_per_s)
    worst = min(m.windows, key=lambda w: w.tok_per_s)
    for window in (best, worst):
        for value in (window.committed, window.step_ms):
            if isinstance(value, Absent):
                return value
    committed, step_ms = (
        [float(v) for v in pair if not isinstance(v, Absent)]
        for pair in ((worst.committed, best.committed), (worst.step_ms, best.step_ms))
    )
    return Split(
        f"the best window, from token {best.first}",
        worst.tok_per_s / best.tok_per_s,
        committed[0] / committed[1],
        step_ms[0] / step_ms[1],
    )


def overview(points: list[Point], kv: KvRead | None) -> Overview:
    """Causes that show over the contexts of one concurrency; ``points`` in any order."""
    points = [p for p in points if p.usable and not isinstance(p.context, Absent)]
    hits = _cache_hits(points)
    warm_up = _warm_up(points, points[0] if points and not hits else None)
    points.sort(key=_context)
    findings = [*hits, *warm_up]
    left_out = {name for finding in findings for name in finding.points}
    prefill = [p for p in points if p.name not in left_out and not _said_cached(p)]
    prefill_fit, slow = _prefill(prefill)
    step_fit, shape, steps = _step_time(points, kv)
    findings += [*slow, *steps, *_acceptance(points)]
    return Overview(findings, step_fit, prefill_fit, shape)


def _context(point: Point) -> int:
    assert not isinstance(point.context, Absent)
    return point.context


def _said_cached(point: Point) -> bool:
    return any(f.cause == "prefix-cache-hit" for t in point.trials for f in t.findings)


def _prefill_time(point: Point) -> float | None:
    """Seconds to the first token, where the prompt was computed."""
    if isinstance(point.first_token_s, Absent) or any(t.filled_tokens for t in point.trials):
        return None
    return point.first_token_s


def _cache_hits(points: list[Point]) -> list[Finding]:
    """The point with the fastest prefill, if it is far faster than the others' fit; repeated."""
    left = [(p, t) for p in points if not _said_cached(p) and (t := _prefill_time(p))]
    found: list[Finding] = []
    while len(left) >= 3:
        fastest, seconds = max(left, key=lambda item: _context(item[0]) / item[1])
        others = [item for item in left if item[0] is not fastest]
        n = np.array([_context(p) for p, _ in others], dtype=np.float64)
        curve = fit(n, np.array([t for _, t in others]))
        # A longer prompt takes no less than the shorter ones; than longer ones it well may.
        shorter = [t for p, t in others if _context(p) < _context(fastest)]
        least = min(shorter, default=0.0)
        expected = max(curve.at(_context(fastest)), least) if curve is not None else least
        if seconds > min(CACHE_HIT * expected, expected - CACHE_HIT_S):
            break
        text = (
            f"{_context(fastest):,} tokens in {seconds:.3g} s, where the other points' fit says "
            f"{expected:.3g} s"
        )
        found.append(Finding("prefix-cache-hit", MEDIUM, text, (fastest.name,)))
        left = others
    return found


def _prefill(points: list[Point]) -> tuple[Fit | None, list[Finding]]:
    timed = [(p, t) for p in points if (t := _prefill_time(p))]
    if len(timed) < 2:
        return None, []
    n = np.array([_context(p) for p, _ in timed], dtype=np.float64)
    seconds = np.array([t for _, t in timed])
    curve = fit(n, seconds)
    steep = steepness(n, seconds)
    if curve is None or steep is None or len(timed) < 3:
        return curve, []
    longest, name = n[-1], timed[-1][0].name
    if steep >= SUPERQUADRATIC:
        before = fit(n[:-1], seconds[:-1])
        said = (
            "" if before is None else f"; the shorter prompts' fit says {before.at(longest):.3g} s"
        )
        text = (
            f"{seconds[-1]:.3g} s for {longest:,.0f} tokens, growing with power {steep:.1f}{said}"
        )
        return curve, [Finding("prefill-superlinear", MEDIUM, text, (name,))]
    share = curve.shares_at(longest)[2]
    crossover = curve.linear_s / curve.quadratic_s if curve.quadratic_s else np.inf
    if share >= QUADRATIC_SHARE and crossover < EARLY_CROSSOVER and len(timed) >= 4:
        text = (
            f"{share:.0%} of the {seconds[-1]:.3g} s for {longest:,.0f} tokens grows with the "
            f"square of the length, which passes the linear part at {crossover:,.0f} tokens; for "
            "most models that is near 50,000"
        )
        return curve, [Finding("prefill-superlinear", LOW, text, (name,))]
    return curve, []


def _warm_up(points: list[Point], first: Point | None) -> list[Finding]:
    """The first answer of the sweep, slower to its first token than longer prompts after it."""
    if first is None or isinstance(first.context, Absent):
        return []
    own = first.trials[0].measurement.first_token_s
    longer = [t for p in points if _context(p) > first.context and (t := _prefill_time(p))]
    if isinstance(own, Absent) or not longer:
        return []
    if own < max(WARM_UP * min(longer), WARM_UP_S + min(longer)):
        return []
    text = (
        f"{own:.3g} s to the first token of {first.context:,} tokens in the first request, "
        f"{min(longer):.3g} s for a longer prompt after it"
    )
    return [Finding("warm-up", MEDIUM, text, (first.name,))]


def _step_time(
    points: list[Point], kv: KvRead | None
) -> tuple[Fit | None, str | None, list[Finding]]:
    """Fit of the step time, its shape (flat, linear, worse) and what is wrong with it."""
    timed = [(p, p.step_ms / 1e3) for p in points if not isinstance(p.step_ms, Absent)]
    if len(timed) < 2:
        return None, None, []
    # Half of the generation is in the KV too, on average.
    n = np.array([_context(p) + _half_generated(p) for p, _ in timed])
    seconds = np.array([t for _, t in timed])
    curve = fit(n, seconds)
    if curve is None:
        return None, None, []
    growth = float(seconds[-1] / seconds[0])
    steep = steepness(n, seconds)
    if growth < FLAT_GROWTH:
        shape = "flat"
    else:
        shape = "worse" if steep is not None and steep > SUPERLINEAR else "linear"
    if growth < STEP_GROWTH or n[-1] < MIN_RANGE * n[0]:
        return curve, shape, []
    names = tuple(p.name for p, _ in timed)
    slope = max(curve.linear_s, (seconds[-1] - seconds[0]) / (n[-1] - n[0]))
    text = (
        f"{seconds[0] * 1e3:.1f} ms a step at {n[0]:,.0f} tokens, {seconds[-1] * 1e3:.1f} ms at "
        f"{n[-1]:,.0f}: {slope * 1e6:.3g} ms more every 1,000 tokens"
    )
    confidence = MEDIUM if len(timed) > 2 else LOW
    if kv is not None:
        share, words = kv.judge(slope, nodes_of_a_step(points))
        if share >= NEAR_LIMIT:
            return curve, shape, []
        text += words
        confidence = HIGH if share < FAR_FROM_LIMIT else MEDIUM
    else:
        confidence = LOW
        text += (
            "; reading the KV takes time in proportion to the context as well: --geometry and "
            "--gpu say whether this is more"
        )
    cause = "step-time-superlinear" if shape == "worse" else "step-time-linear-in-context"
    return curve, shape, [Finding(cause, confidence, text, names)]


def _half_generated(point: Point) -> float:
    counts = [
        t.measurement.completion_tokens
        for t in point.usable
        if not isinstance(t.measurement.completion_tokens, Absent)
    ]
    return float(np.mean(counts)) / 2 if counts else 0.0


def _acceptance(points: list[Point]) -> list[Finding]:
    """Committed tokens a step that fall with the context."""
    known = [(p, float(c)) for p in points if not isinstance(c := p.committed_per_step, Absent)]
    if len(known) < 2:
        return []
    (short, before), (long, after) = known[0], known[-1]
    if before < ACCEPTANCE_FALL * after:
        return []
    a, b = short.step_tokens(), long.step_tokens()
    if len(a) < 10 or len(b) < 10:
        return []
    if float(stats.mannwhitneyu(a, b, alternative="greater").pvalue) > SIGNIFICANT:
        return []
    text = (
        f"committed tokens a step fall from {before:.2f} at {_context(short):,} tokens of context "
        f"to {after:.2f} at {_context(long):,}"
    )
    return [Finding("acceptance-falls", MEDIUM, text, (short.name, long.name))]
