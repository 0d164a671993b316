"""From measured points to statuses: floors, and what else forbids a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.bound import Bounds, bounds, decide, steps_of, worst_window
from verify_attn.live.bound import Steps as BoundSteps
from verify_attn.live.causes import LOW, Finding
from verify_attn.live.floors import Floor
from verify_attn.live.points import Point
from verify_attn.live.saved import SavedRun

# A figure stands, but not as what it was asked for: no pass on it.
NO_PASS = {
    "prefix-cache-hit": "the prefix cache answered",
    "early-stop": "the answer ended early",
    "fake-streaming": "nothing was streamed",
    "stall-then-burst": "tokens were held back",
    "usage-missing": "the server does not count its tokens",
    "counts-disagree": "the server's counts of tokens contradict each other",
}

# Causes that make a server slow.  Where one is named and no floor says how slow is allowed, the
# point is not passed over in silence.
SLOWS = {
    "acceptance-falls", "prefill-superlinear", "stall", "step-time-grows",
    "step-time-linear-in-context", "step-time-superlinear",
}  # fmt: skip


# So much slower, by the upper bound of its rate, nothing passes without a floor that allows it:
# than the shortest context, and than a saved run.
COLLAPSED, REGRESSED = 0.5, 0.9


@dataclass(frozen=True)
class Check:
    """One floor at one point."""

    floor: Floor
    limit: float | None
    status: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        found: dict[str, Any] = {
            "name": self.floor.name, "rate": self.floor.rate, "unit": self.floor.unit,
            "status": self.status, "reason": self.reason,
        }  # fmt: skip
        if self.limit is not None:
            found["floor_tok_s"] = self.limit
        return found


@dataclass(frozen=True)
class Verdict:
    """Status and reason of a point, with the floors that it was held to."""

    status: str
    reason: str
    checks: tuple[Check, ...] = ()

    @property
    def undecided(self) -> bool:
        """Would more repeats help?"""
        return self.status == "inconclusive" and any(
            check.status == "inconclusive" and check.limit is not None for check in self.checks
        )


def judge(
    point: Point,
    points: list[Point],
    floors: list[Floor],
    model: str,
    saved: SavedRun | None,
    window_tokens: int,
    replay: bool,
    together: list[Finding],
) -> Verdict:
    """Hold a point to its floors; ``together`` are the findings over all points."""
    if point.skipped:
        return Verdict("skipped", point.skipped)
    if point.died:
        return Verdict("error", point.died)
    if point.error:
        return Verdict("error", point.error)
    repeats = [s for t in point.usable if not isinstance(s := steps_of(t.measurement), Absent)]
    if not repeats:
        rate = point.decode_tok_s
        return Verdict("inconclusive", rate.reason if isinstance(rate, Absent) else "no steps")
    mine = [floor for floor in floors if floor.holds_for(model, point.concurrency)]
    checks = tuple(_check(f, point, points, saved, repeats, window_tokens) for f in mine)
    statuses = [check.status for check in checks]
    named = {f.cause for t in point.trials for f in t.findings} | {f.cause for f in point.findings}
    for status in ("fail", "inconclusive"):
        if status in statuses:
            check = checks[statuses.index(status)]
            if status == "fail" and "foreign-traffic" in named:
                return Verdict(
                    "inconclusive", f"{check.reason}; but the server worked for others too", checks
                )
            return Verdict(status, f"{check.floor.name}: {check.reason}", checks)
    spoilt = [why for cause, why in NO_PASS.items() if cause in named and not replay]
    if spoilt:
        return Verdict("inconclusive", f"not a sound measurement: {'; '.join(spoilt)}", checks)
    if checks:
        return Verdict("pass", checks[0].reason, checks)
    if floors:
        names = ", ".join(dict.fromkeys(repr(floor.model) for floor in floors))
        return Verdict(
            "inconclusive",
            f"no floor holds for model {model!r} at concurrency {point.concurrency}; the floors' "
            f"models are {names}",
        )
    # Of several points that show a cause together, the first is what the others are slower than.
    mine_too = [f for f in together if point.name in (f.points[1:] or f.points)]
    slow = [
        f.cause
        for f in [*mine_too, *(f for t in point.trials for f in t.findings)]
        if f.cause in SLOWS and (f.confidence != LOW or f.cause.startswith("step-time"))
    ]
    if slow:
        causes = ", ".join(dict.fromkeys(slow))
        return Verdict("inconclusive", f"{causes}, and no floor says whether that is allowed")
    slower = _slower(point, points, saved)
    if slower is not None:
        return Verdict("inconclusive", f"{slower}, and no floor says whether that is allowed")
    return Verdict("pass", "measured; held to no floor")


def _slower(point: Point, points: list[Point], saved: SavedRun | None) -> str | None:
    """Is it far slower than the shortest context, or than the saved run, whatever the cause?"""
    rate, found = point.decode_tok_s, interval(point)
    if isinstance(rate, Absent) or found is None:
        return None
    shortest = _shortest(point, points)
    best = shortest.decode_tok_s
    if not isinstance(best, Absent) and found.high < COLLAPSED * best:
        return f"{rate / best:.2f} times the rate of {shortest.name}"
    if saved is not None and not isinstance(point.context, Absent):
        before = saved.rate_at(point.context, point.concurrency)
        if before is not None and found.high < REGRESSED * before:
            return f"{rate / before:.2f} times the rate of the saved run {saved.name}"
    return None


def interval(point: Point) -> Bounds | None:
    """The one-sided 95 % bounds of the sustained rate."""
    repeats = [s for t in point.usable if not isinstance(s := steps_of(t.measurement), Absent)]
    return bounds(repeats) if repeats else None


def _check(
    floor: Floor,
    point: Point,
    points: list[Point],
    saved: SavedRun | None,
    repeats: list[BoundSteps],
    window_tokens: int,
) -> Check:
    context = point.context
    if isinstance(context, Absent):
        return Check(floor, None, "inconclusive", context.reason)
    at = floor.at(context)
    if at is None:
        first, last = floor.points[0][0], floor.points[-1][0]
        return Check(
            floor, None, "inconclusive",
            f"the floor is given from {first:,} to {last:,} tokens, the prompt had {context:,}",
        )  # fmt: skip
    if floor.unit == "of shortest context" and point is _shortest(point, points):
        return Check(
            floor, None, "pass", "it is the shortest context, which the others are held to"
        )
    reference = _reference(floor, point, points, saved, context)
    if isinstance(reference, Absent):
        return Check(floor, None, "inconclusive", reference.reason)
    limit = at * reference
    held = worst_window(repeats, window_tokens) if floor.rate == "worst window" else repeats
    status, reason = decide(held, limit, _reference_error(floor, point, points))
    what = f"{floor.rate} {reason}"
    if floor.unit != "tok/s":
        what += f" ({at:.3g} {floor.unit})"
    return Check(floor, limit, status, what)


def _reference(
    floor: Floor, point: Point, points: list[Point], saved: SavedRun | None, context: int
) -> float | Absent:
    """What a ratio is a ratio of, in tokens/s."""
    if floor.unit == "tok/s":
        return 1.0
    if floor.unit == "of saved run":
        if saved is None:
            return Absent("the floor is a ratio to a saved run; name one with --against")
        rate = saved.rate_at(context, point.concurrency)
        return rate if rate is not None else Absent(f"the saved run has no rate at {context:,}")
    return _shortest(point, points).decode_tok_s


def _reference_error(floor: Floor, point: Point, points: list[Point]) -> float:
    """Of the shortest context's rate, as a share of it; a saved rate is taken as it stands."""
    if floor.unit != "of shortest context":
        return 0.0
    shortest = _shortest(point, points)
    rate, found = shortest.decode_tok_s, interval(shortest)
    if isinstance(rate, Absent) or found is None:
        return 0.0
    return (found.high - found.low) / 2 / rate


def _shortest(point: Point, points: list[Point]) -> Point:
    same = [p for p in points if p.concurrency == point.concurrency and p.usable]
    return min(same, key=lambda p: p.asked_context)
