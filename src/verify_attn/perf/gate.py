"""Did it get worse?  Two saved runs, case by case; `perf.judged` has the rule of one case."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, get_args

from verify_attn.perf.judged import CaseVerdict, Change, Outcome, compare_case, percent
from verify_attn.perf.saved import Saved, SavedCase, load_cases
from verify_attn.perf.thresholds import DEFAULT, Thresholds
from verify_attn.record import FAILED, INCONCLUSIVE, PASSED

__all__ = [
    "COMPARED", "FAILURES", "CaseVerdict", "Change", "Comparison", "Saved", "compare",
    "compare_case", "load_cases",
]  # fmt: skip

FAILURES = ("worse", "missing", "renamed", "failed")
COMPARED = ("better", "same")
WRONG = ("fail", "error")  # of a kernel, not of its time
# What a file must say of its GPU; some GPUs have no power limit to tell.
IDENTIFIES = ("name", "compute_capability", "memory_bytes", "driver")
# Parameters that are no part of the problem: what a kernel is called.
LABELS = ("kernel", "name")


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
        if old.status != "pass" and not _turned_wrong(old, new):
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
        wrong = new is not None and new.status in WRONG  # on whatever GPU
        if other_gpu and old.status == "pass" and not wrong:
            measured = new is not None and new.status == "pass"
            reason = other_gpu if measured else f"{other_gpu}; {verdict.outcome}: {verdict.reason}"
            verdict = replace(verdict, outcome="unclear", reason=reason)
        verdicts.append(replace(verdict, threshold=threshold, parameters=old.parameters))
    for case in fresh.values():
        reason = "the baseline has no such case"
        if case.status != "pass":
            reason += f"; {case.status}: {case.reason}"
        outcome: Outcome = "failed" if case.status in WRONG else "new"
        verdicts.append(
            CaseVerdict(case.id, outcome, reason, thresholds.of(case.id), {}, case.parameters)
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
    """What was measured, but for the kernel's name and the seed of its numbers."""
    found = {key: value for key, value in parameters.items() if key not in LABELS}
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        case = json.loads(found["case"])
        if isinstance(case, dict):
            told = {key: value for key, value in case.items() if key != "seed"}
            found["case"] = json.dumps(told, sort_keys=True)
    return found


def _turned_wrong(old: SavedCase, new: SavedCase | None) -> bool:
    """Does a case without a time in the baseline fail now, where it did not then?"""
    return new is not None and new.status in WRONG and old.status not in WRONG


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return _differences(_problem(old), _problem(new))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {_short(old.get(key))} -> {_short(new.get(key))}"
        for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)
    )  # fmt: skip


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _says(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else value)


def _other_gpu(a: Saved, b: Saved) -> str:
    """Why times of the two runs say nothing about each other, or nothing."""
    for saved in (a, b):
        left = [field for field in IDENTIFIES if not _says(saved.identity.get(field))]
        if left:
            fields = f" ({', '.join(left)})" if saved.identity else ""
            return f"{saved.name} does not say on which GPU it ran{fields}"
    differences = _differences(a.identity, b.identity)
    return f"not the same GPU ({differences})" if differences else ""


def _unmeasured(old: SavedCase, new: SavedCase | None) -> str:
    now = "not in the new run" if new is None else f"{new.status} now"
    return f"the baseline has no time: {old.status}: {old.reason}; {now}"


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
    if a.identity and all(s.identity.get("power_limit_w") is None for s in (a, b)):
        notes.append("neither file says the GPU's power limit, which may have differed")
    ids = [*a.cases, *b.cases]
    own = [f"{percent(t)} for {p}" for p, t in thresholds.cases.items()]
    if own or thresholds.default != DEFAULT:
        text = "; ".join([f"{percent(thresholds.default)} unless told", *own])
        notes.append(f"thresholds ({thresholds.source}): {text}")
    notes += [f"the threshold for {p!r} holds for no case" for p in thresholds.unmatched(ids)]
    return notes
