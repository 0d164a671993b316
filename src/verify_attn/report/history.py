"""Figures of records over commits: series, where they change, and which commits did it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from verify_attn.report.kept import HistoryError, Kept, Records

DEFAULT_METRICS = {
    "bench": ("run_ms", "limit_share"),
    "sweep": ("decode_tok_s", "step_ms", "first_token_s"),
    "check": ("worst_over_bound",),
    "compare": ("run_ratio",),
}
# What a figure's name says about it; the first that fits, rates before the times they end like.
_BETTER_HIGH = ("*tok_s", "*_per_s", "*_share", "speedup*", "bandwidth*", "*committed_per_step",
                "*accepted_drafts_per_step")  # fmt: skip
_BETTER_LOW = ("*_ms", "*_s", "*_over_bound", "*run_ratio", "graph_ratio", "cupti_ratio")
_WHOLE = ("run", "graph", "cupti")  # the first that was taken, a case's share of the limit is of
_SLACK = 1e-3  # a figure may touch the end of its interval; so far beyond is no rounding
_MOST = 1e12  # no figure of a run is larger, in any of its units

Verdict = Literal["worse", "better", "changed"]


@dataclass(frozen=True)
class Point:
    """One record's figure; ``low`` and ``high``: its own interval, where the record has one.
    ``place``: which of the records of the same command and machine it is."""

    record: Kept
    place: int
    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""

    @property
    def commit(self) -> str:
        """Short, for people; the file and its time where the record names no commit."""
        found = self.record.commit
        if found is None:
            return f"{self.record.name} ({self.record.started:%Y-%m-%d %H:%M:%S}, no commit)"
        name, dash, dirty = found.partition("-")
        return f"{name[:10]}{dash}{dirty}"[:40]


@dataclass(frozen=True)
class Step:
    """A lasting change: the last record before it, the first after, the levels (medians).

    ``between``  records of the same command and machine between the two that lack the figure
    ``differs``  what else differs between the two: versions, how it was timed, or no commit
    """

    last_good: Point
    first_bad: Point
    before: float
    after: float
    verdict: Verdict
    between: int
    differs: tuple[str, ...]

    @property
    def commits(self) -> str:
        """``last good .. first bad``."""
        return f"{self.last_good.commit} .. {self.first_bad.commit}"


@dataclass
class Series:
    """A case's figure over records of one command on one machine, in the order of time.

    ``ended``  why its last value is not the current one for good, or nothing
    ``notes``  what a reader should know, such as that the newest record lacks the figure
    """

    kind: str
    case: str
    metric: str
    machine: str
    points: list[Point] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    enough: bool = False
    ended: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """The figures in the order of time."""
        return [point.value for point in self.points]

    @property
    def worsened(self) -> bool:
        """Is the last segment worse than the one before, on a machine that is still in use?"""
        return not self.ended and bool(self.steps) and self.steps[-1].verdict == "worse"


def direction(metric: str) -> Literal["high", "low", None]:
    """Which way is better, by the figure's name; None: nobody can say."""
    if any(fnmatchcase(metric, pattern) for pattern in _BETTER_HIGH):
        return "high"
    return "low" if any(fnmatchcase(metric, pattern) for pattern in _BETTER_LOW) else None


def make_series(
    records: Records, cases: Sequence[str] = (), metrics: Sequence[str] = ()
) -> list[Series]:
    """All series, judged: those that got worse first, then in the order of the records.

    ``cases`` are ids or globs over them, ``metrics`` names; none: all cases, `DEFAULT_METRICS`.
    Raises `HistoryError` for a pattern that no case has, and a metric that no such case has.
    """
    _check_asked(records.kept, cases, metrics)
    found: dict[tuple[str, str, str, str], Series] = {}
    groups: dict[tuple[str, str], list[Kept]] = {}
    for record in records.kept:
        group = groups.setdefault((record.kind, record.machine), [])
        group.append(record)
        for name, case in record.cases.items():
            if cases and not _matches(name, cases):
                continue
            for metric in metrics or DEFAULT_METRICS[record.kind]:
                point = _point(record, len(group) - 1, case, metric)
                if point is not None and (odd := _outside(point)):
                    records.note(f"{record.name}: {name}, {metric} is left out: {odd}")
                elif point is not None:
                    key = record.kind, name, metric, record.machine
                    found.setdefault(key, Series(*key)).points.append(point)
    if not found:
        raise HistoryError(
            f"no figure in {len(records.kept)} records: no case that was measured has "
            + " or ".join(metrics or sorted({m for r in records.kept
                                             for m in DEFAULT_METRICS[r.kind]}))
            + "".join(f"; {note}" for note in records.notes)
        )  # fmt: skip
    series = list(found.values())
    for one in series:
        _judge(one, series, groups[one.kind, one.machine])
    return sorted(series, key=lambda s: (not s.worsened, bool(s.ended)))


def _check_asked(records: Iterable[Kept], cases: Sequence[str], metrics: Sequence[str]) -> None:
    known = {name: case for record in records for name, case in record.cases.items()}
    for pattern in cases:
        if not any(_matches(name, [pattern]) for name in known):
            raise HistoryError(
                f"--case {pattern} matches none of {len(known)} cases: {_some(known)}"
            )
    if not metrics:
        return
    there = {
        metric
        for record in records
        for name, case in record.cases.items()
        if not cases or _matches(name, cases)
        for metric in _metrics(case)
        if _figure(_metrics(case)[metric]) is not None
    }
    for metric in metrics:
        if metric not in there:
            raise HistoryError(f"--metric {metric} is in none of the records: {_some(there)}")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 30} more" if len(ordered) > 30 else ""
    return ", ".join(ordered[:30]) + more


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


# -- one figure ----------------------------------------------------------------------------------


def _point(record: Kept, place: int, case: Mapping[str, Any], metric: str) -> Point | None:
    if case["status"] in ("error", "skipped"):
        return None
    metrics = _metrics(case)
    value = _figure(metrics.get(metric))
    if value is None:
        return None
    return Point(record, place, value, *_interval(metrics, metric, value), _method(case, metric))


def _outside(point: Point) -> str:
    """What is wrong with a figure that does not lie within its own interval, or nothing."""
    value, low, high = point.value, point.low, point.high
    if low is None or high is None or low * (1 - _SLACK) <= value <= high * (1 + _SLACK):
        return ""
    return (
        f"{value:.6g} lies outside its own interval, {low:.6g} to {high:.6g}, which no command "
        "writes; measure it again, or take the record out"
    )


def _metrics(case: Mapping[str, Any]) -> Mapping[str, Any]:
    metrics = case["metrics"]
    return metrics if isinstance(metrics, dict) else {}


def _figure(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        return None
    return float(value)


def _interval(
    metrics: Mapping[str, Any], metric: str, value: float
) -> tuple[float | None, float | None]:
    """``run_ms`` has ``run_low_ms``, ``decode_tok_s`` has ``decode_tok_s_low``; a share of the
    limit is as accurate as the time that it is of."""
    if metric == "limit_share":
        whole = next((p for p in _WHOLE if f"{p}_ms" in metrics), "run")
        ends = [_figure(metrics.get(f"{whole}{end}_ms")) for end in ("", "_low", "_high")]
        if None in ends or not all(ends):
            return None, None
        time, low, high = (float(end or 0) for end in ends)
        return value * time / high, value * time / low
    stem, ms, _ = metric.rpartition("_ms")
    names = (f"{stem}_low_ms", f"{stem}_high_ms") if ms else (f"{metric}_low", f"{metric}_high")
    found = [_figure(metrics.get(name)) for name in names]
    return (None, None) if None in found else (found[0], found[1])


def _method(case: Mapping[str, Any], metric: str) -> str:
    methods = case.get("methods")
    method = methods.get(metric.removesuffix("_ms")) if isinstance(methods, dict) else None
    if not isinstance(method, dict):
        return ""
    l2 = str(method.get("l2", "")).split()[:1]  # not how many bytes
    return f"{method.get('timer')}, L2 {l2[0].rstrip(':') if l2 else 'unknown'}"


# -- judging -------------------------------------------------------------------------------------


def _judge(one: Series, all_series: Sequence[Series], group: Sequence[Kept]) -> None:
    from verify_attn.report.change_points import LEAST, changes  # scipy takes a second to import

    points = one.points
    one.enough = len(points) >= LEAST
    if not one.enough:
        one.notes.append(f"{len(points)} records, {LEAST} are needed to tell a change from noise")
    intervals = [None if p.low is None or p.high is None else (p.low, p.high) for p in points]
    for change in changes(one.values, intervals):
        good, bad = points[change.at - 1], points[change.at]
        one.steps.append(Step(
            good, bad, change.before, change.after, _verdict(one.metric, change.before,
            change.after), bad.place - good.place - 1, tuple(_differences(good, bad)),
        ))  # fmt: skip
    others = [
        s for s in all_series
        if s is not one and (s.kind, s.case, s.metric) == (one.kind, one.case, one.metric)
    ]  # fmt: skip
    if others:
        one.notes.append(f"{len(others) + 1} machines or settings, each judged apart")
    last = points[-1].record.started
    if later := [s for s in others if s.points[0].record.started > last]:
        one.ended = f"ended: newer records are of {later[-1].machine}"
    elif (missed := len(group) - 1 - points[-1].place) > 0:
        case = group[-1].cases.get(one.case)
        why = "has no such case" if case is None else f"says {case['status']}: {case['reason']}"
        if case is not None and case["status"] not in ("error", "fail", "skipped"):
            why = "has no such figure"
        one.notes.append(f"not in the newest {missed} of {len(group)} records; the last {why}")


def _verdict(metric: str, before: float, after: float) -> Verdict:
    better = direction(metric)
    if better is None:
        return "changed"
    return "better" if (after > before) == (better == "high") else "worse"


def _differences(good: Point, bad: Point) -> Iterable[str]:
    old, new = good.record, bad.record
    if old.commit is not None and old.commit == new.commit:
        yield "the commit is the same: what changed is not in it"
    names = [n for n in sorted({*old.versions, *new.versions})
             if old.versions.get(n) != new.versions.get(n)]  # fmt: skip
    if names:
        changed = [f"{n} {old.versions.get(n, '-')} -> {new.versions.get(n, '-')}" for n in names]
        yield f"versions differ: {', '.join(changed)}"
    if good.method != bad.method:
        yield f"timed in another way: {good.method or 'unknown'} -> {bad.method or 'unknown'}"
