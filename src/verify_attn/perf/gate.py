"""Did it get worse?  Two saved runs, case by case.

Times of two runs cannot be taken in turn, so their intervals are compared: a figure is ``worse``
where even the best of the new interval lies beyond the threshold from the worst of the old one,
``same`` where the whole ratio lies within it, and ``unclear`` where the ratio's interval reaches
across it.  The rule is the same seen from the other side: what is worse one way is better the
other way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from verify_attn.perf.saved import (
    TIMES,
    Saved,
    SavedCase,
    Span,
    from_pytest_benchmark,
    from_record,
    load_cases,
    read_case,
)
from verify_attn.perf.thresholds import DEFAULT, Thresholds
from verify_attn.record import FAILED, INCONCLUSIVE, PASSED

__all__ = [
    "CaseVerdict", "Change", "Comparison", "Outcome", "Saved", "SavedCase", "Span", "compare",
    "compare_case", "from_pytest_benchmark", "from_record", "judge", "load_cases", "read_case",
]  # fmt: skip

Verdict = Literal["better", "same", "worse", "unclear"]
Outcome = Literal[
    "worse", "missing", "renamed", "failed", "unclear", "better", "same", "new", "not compared"
]
FAILURES = ("worse", "missing", "renamed", "failed")
COMPARED = ("better", "same")
HIGHER_IS_BETTER = ("bandwidth", "speedup")
QUANTITIES = (*TIMES, *HIGHER_IS_BETTER)
UNITS = {"bandwidth": " GB/s", "speedup": ""}
LABELS = ("kernel", "name")  # parameters that only say what a kernel is called


class Ratio(NamedTuple):
    """New over old: of the medians, and between the far ends of the intervals."""

    low: float
    median: float
    high: float


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
            f"{self.quantity} {self.baseline.median:.4g} -> {self.candidate.median:.4g}{unit}, "
            f"x{self.ratio.median:.3f} ({self.ratio.low:.3f} to {self.ratio.high:.3f})"
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


@dataclass(frozen=True)
class Comparison:
    """All cases: the baseline's in its order, then the new ones."""

    cases: tuple[CaseVerdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Of each outcome that there is, the worst first."""
        found = Counter(case.outcome for case in self.cases)
        return {o: found[o] for o in get_args(Outcome) if found[o]}

    @property
    def exit_code(self) -> int:
        """1 something is worse, missing, renamed or failed; 3 something is unclear or nothing was
        compared; 0."""
        outcomes = self.counts
        if any(o in outcomes for o in FAILURES):
            return FAILED
        if "unclear" in outcomes or not any(o in outcomes for o in COMPARED):
            return INCONCLUSIVE
        return PASSED


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
        f"the interval reaches across the threshold of {_percent(threshold)}: take more samples"
    )  # fmt: skip
    return Change(quantity, a, b, ratio, verdict, why)


def compare_case(
    a: SavedCase, b: SavedCase, threshold: float, ignore: Container[str] = ()
) -> CaseVerdict:
    """Compare two measured cases; ``ignore`` are quantities that mean different things in them.

    Worse if any quantity is; else unclear if any is, or was measured in the baseline only; else
    better if any is; else same.
    """
    changes, lost = {}, []
    for quantity in QUANTITIES:
        if quantity in ignore or quantity not in a.spans:
            continue
        if quantity not in b.spans:
            lost.append(f"{quantity} was measured in the baseline only")
            continue
        change = judge(quantity, a.spans[quantity], b.spans[quantity], threshold)
        timed = quantity if quantity in TIMES else "run"  # the others are made of its times
        ways = a.methods.get(timed), b.methods.get(timed)
        if None not in ways and ways[0] != ways[1]:
            change = replace(change, verdict="unclear", why=f"taken by {ways[0]}, now {ways[1]}")
        changes[quantity] = change
    verdicts = {c.verdict for c in changes.values()}
    outcome: Outcome = "same"
    if "worse" in verdicts:
        outcome = "worse"
    elif "unclear" in verdicts or lost:
        outcome = "unclear"
    elif "better" in verdicts:
        outcome = "better"
    told = [
        f"{c}, {c.why}" if c.why else str(c)
        for c in changes.values() if outcome != "same" and c.verdict == outcome
    ]  # fmt: skip
    if outcome == "unclear":
        told += lost
    if outcome == "worse":
        told.append(f"over the threshold of {_percent(threshold)}")
        told += _only_speedup(changes)
    if outcome in ("worse", "unclear"):
        told += [f"baseline: {remark}" for remark in a.remarks]
        told += [f"new: {remark}" for remark in b.remarks]
    return CaseVerdict(a.id, outcome, "; ".join(told), threshold, changes, a.parameters)


def compare(a: Saved, b: Saved, thresholds: Thresholds) -> Comparison:
    """Compare the candidate ``b`` with the baseline ``a``; what is in one of them only is told."""
    other_gpu = _other_gpu(a, b)
    ignore = ("speedup",) if a.baseline != b.baseline else ()
    fresh = {i: case for i, case in b.cases.items() if i not in a.cases}
    problems: dict[str, list[SavedCase]] = {}
    for case in fresh.values():
        problems.setdefault(_problem_key(case), []).append(case)
    verdicts = []
    for case_id, old in a.cases.items():
        new = b.cases.get(case_id)
        threshold = thresholds.of(case_id)
        if old.status != "pass":
            verdict = CaseVerdict(case_id, "not compared", _unmeasured(old, new))
        elif new is None:
            verdict = _gone(old, problems, fresh)
        elif new.status == "inconclusive":
            verdict = CaseVerdict(case_id, "unclear", f"inconclusive now: {new.reason}")
        elif new.status != "pass":
            verdict = CaseVerdict(case_id, "failed", f"{new.status} now: {new.reason}")
        else:
            verdict = compare_case(old, new, threshold, ignore)
            if changed := _changed(old.parameters, new.parameters):
                reason = f"another problem under the same id ({changed})"
                verdict = replace(verdict, outcome="unclear", reason=reason)
        if other_gpu and old.status == "pass":
            measured = new is not None and new.status == "pass"
            reason = other_gpu if measured else f"{other_gpu}; {verdict.outcome}: {verdict.reason}"
            verdict = replace(verdict, outcome="unclear", reason=reason)
        verdicts.append(replace(verdict, threshold=threshold, parameters=old.parameters))
    for case in fresh.values():
        reason = "the baseline has no such case"
        if case.status != "pass":
            reason += f"; {case.status}: {case.reason}"
        verdicts.append(
            CaseVerdict(case.id, "new", reason, thresholds.of(case.id), {}, case.parameters)
        )
    return Comparison(tuple(verdicts), tuple(_notes(a, b, thresholds)))


def _gone(
    old: SavedCase, problems: dict[str, list[SavedCase]], fresh: dict[str, SavedCase]
) -> CaseVerdict:
    """Missing, or under another id; that one is then no longer new."""
    same = problems.get(_problem_key(old), []) if _problem(old.parameters) else []
    if not same:
        return CaseVerdict(old.id, "missing", "measured in the baseline, not in the new run")
    same.sort(key=lambda case: case.parameters == old.parameters)  # the same kernel last
    new = same.pop()
    del fresh[new.id]
    reason = f"not in the new run, which has the same problem as {new.id} ({new.status})"
    return CaseVerdict(old.id, "renamed", reason)


def _problem_key(case: SavedCase) -> str:
    return json.dumps(_problem(case.parameters), sort_keys=True)


def _problem(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in parameters.items() if k not in LABELS}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return _differences(_problem(old), _problem(new))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {_short(old.get(key))} -> {_short(new.get(key))}"
        for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)
    )  # fmt: skip


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _other_gpu(a: Saved, b: Saved) -> str:
    """Why times of the two runs say nothing about each other, or nothing."""
    unknown = [saved.name for saved in (a, b) if not saved.identity]
    if unknown:
        return " and ".join(f"{name} does not say on which GPU it ran" for name in unknown)
    differences = _differences(a.identity, b.identity)
    return f"not the same GPU ({differences})" if differences else ""


def _unmeasured(old: SavedCase, new: SavedCase | None) -> str:
    now = "not in the new run" if new is None else f"{new.status} now"
    return f"the baseline has no time: {old.status}: {old.reason}; {now}"


def _only_speedup(changes: Mapping[str, Change]) -> list[str]:
    run, speedup = changes.get("run"), changes.get("speedup")
    if run and speedup and speedup.verdict == "worse" and run.verdict != "worse":
        return ["its time is not worse: the kernel that speedups are against got faster"]
    return []


def _notes(a: Saved, b: Saved, thresholds: Thresholds) -> list[str]:
    notes = [*a.notes, *b.notes]
    if a.cases and a.cases == b.cases:
        notes.append("both files hold the same run: this comparison says nothing")
    elif a.cases and b.cases and not set(a.cases) & set(b.cases):
        notes.append(f"{a.name} and {b.name} have no case in common")
    if versions := _differences(a.versions, b.versions):
        notes.append(f"versions differ: {versions}")
    if a.baseline != b.baseline and any("speedup" in case.spans for case in a.cases.values()):
        notes.append(f"speedups are not compared: over {a.baseline} and over {b.baseline}")
    ids = [*a.cases, *b.cases]
    own = [f"{_percent(t)} for {p}" for p, t in thresholds.cases.items()]
    if own or thresholds.default != DEFAULT:
        text = "; ".join([f"{_percent(thresholds.default)} unless told", *own])
        notes.append(f"thresholds ({thresholds.source}): {text}")
    notes += [f"the threshold for {p!r} holds for no case" for p in thresholds.unmatched(ids)]
    return notes


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
