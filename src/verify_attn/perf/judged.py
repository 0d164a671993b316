"""What two saved measurements of one case say about each other.

Times of two runs cannot be taken in turn, so their intervals are compared: a figure is ``worse``
where even the best of the new interval lies beyond the threshold from the worst of the old one,
``same`` where the whole ratio lies within it, and ``unclear`` where the ratio's interval reaches
across it.  The rule is the same seen from the other side: what is worse one way is better the
other way.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from verify_attn.perf.saved import TIMES, WHOLE, SavedCase, Span
from verify_attn.perf.thresholds import DEFAULT

Verdict = Literal["better", "same", "worse", "unclear"]
Outcome = Literal[
    "worse", "missing", "renamed", "failed", "unclear", "better", "same", "new", "not compared"
]
HOST = "prepare_run"
HIGHER_IS_BETTER = ("bandwidth", "speedup")
QUANTITIES = (*TIMES, *HIGHER_IS_BETTER)
UNITS = {"bandwidth": " GB/s", "speedup": ""}


class Ratio(NamedTuple):
    """New over old: of the medians, and between the far ends of the intervals."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class Change:
    """One quantity of a case; ``why``: why it cannot be judged."""

    quantity: str
    baseline: Span
    candidate: Span
    ratio: Ratio
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        unit = UNITS.get(self.quantity, " ms")
        return (
            f"{self.quantity} {figure(self.baseline.median)} -> "
            f"{figure(self.candidate.median)}{unit}, x{self.ratio}"
        )


@dataclass(frozen=True)
class CaseVerdict:
    """What became of a case.  ``changes`` by quantity, where both runs measured it."""

    id: str
    outcome: Outcome
    reason: str = ""
    threshold: float = DEFAULT
    changes: Mapping[str, Change] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


def judge(quantity: str, a: Span, b: Span, threshold: float) -> Change:
    """Compare one quantity of the baseline ``a`` with the candidate's ``b``."""
    ratio = Ratio(b.low / a.high, b.median / a.median, b.high / a.low)
    grown = 1 + threshold
    old, new = (b, a) if quantity in HIGHER_IS_BETTER else (a, b)  # fewer GB/s: as more ms
    verdict: Verdict = "unclear"
    if new.low / old.high > grown:
        verdict = "worse"
    elif old.low / new.high > grown:
        verdict = "better"
    elif new.high / old.low <= grown and old.high / new.low <= grown:
        verdict = "same"
    why = "" if verdict != "unclear" else (
        f"the interval reaches across the threshold of {percent(threshold)}; take more samples"
    )  # fmt: skip
    return Change(quantity, a, b, ratio, verdict, why)


def compare_case(
    a: SavedCase, b: SavedCase, threshold: float, ignore: Container[str] = ()
) -> CaseVerdict:
    """Compare two measured cases; ``ignore`` are quantities that mean different things in them.

    Worse if any quantity is; else unclear if any is, or was measured in the baseline only; else
    better if any is; else same.  ``prepare_run`` does not make a case unclear by its noise, which
    is the host's: that is told.
    """
    both = [q for q in QUANTITIES if q not in ignore and q in a.spans]
    changes = {q: _change(q, a, b, threshold) for q in both if q in b.spans}
    lost = [f"{q} was measured in the baseline only" for q in both if q not in b.spans]
    alike = a.methods.get(HOST) == b.methods.get(HOST)
    noise = [c for c in changes.values() if c.quantity == HOST and alike and _noisy(c, threshold)]
    judged = [c for c in changes.values() if c not in noise]
    verdicts = {c.verdict for c in judged}
    outcome: Outcome = "same"
    if "worse" in verdicts:
        outcome = "worse"
    elif "unclear" in verdicts or lost:
        outcome = "unclear"
    elif "better" in verdicts:
        outcome = "better"
    told = _told([c for c in judged if c.verdict == outcome])
    if outcome in ("better", "same"):
        told = []  # the figures say it
    elif outcome == "unclear":
        told += lost
    else:
        told += [f"over the threshold of {percent(threshold)}", *_only_speedup(changes)]
    told += [f"{change} is not judged: the host's noise is too wide" for change in noise]
    if outcome in ("worse", "unclear"):
        told += [f"baseline: {remark}" for remark in a.remarks]
        told += [f"new: {remark}" for remark in b.remarks]
    return CaseVerdict(a.id, outcome, "; ".join(told), threshold, changes, a.parameters)


def _change(quantity: str, a: SavedCase, b: SavedCase, threshold: float) -> Change:
    change = judge(quantity, a.spans[quantity], b.spans[quantity], threshold)
    old, new = (case.methods.get(quantity, "a method not told") for case in (a, b))
    if old == new:
        return change
    return replace(change, verdict="unclear", why=f"taken by {old}, now by {new}")


def _told(changes: list[Change]) -> list[str]:
    """The figures, and behind those that cannot be judged why, once for all that share it."""
    by_why: dict[str, list[str]] = {}
    for change in changes:
        by_why.setdefault(change.why, []).append(str(change))
    return ["; ".join(figures) + f": {why}" * bool(why) for why, figures in by_why.items()]


def _noisy(change: Change, threshold: float) -> bool:
    wide = any(s.high > s.low * (1 + threshold) for s in (change.baseline, change.candidate))
    return wide and change.verdict == "unclear"


def _only_speedup(changes: Mapping[str, Change]) -> list[str]:
    speedup = changes.get("speedup")
    times = [changes[part].verdict for part in WHOLE if part in changes]
    held = bool(times) and all(verdict in ("same", "better") for verdict in times)
    if speedup and speedup.verdict == "worse" and held:
        return ["its time is not worse: the kernel that speedups are against got faster"]
    return []


def figure(value: float) -> str:
    """Four digits, and no power of ten."""
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}"


def percent(share: float) -> str:
    """0.05 is ``5 %``."""
    return f"{100 * share:g} %"
