"""What a step's record gives as reasons: one for every case that is no pass, in a user's words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

# What a user wants to hear first, of the causes that a sweep names (live/causes.py).
CAUSES = (
    "server-death", "request-failed", "stream-truncated", "stall", "stall-then-burst",
    "step-time-superlinear", "step-time-linear-in-context", "step-time-grows", "acceptance-falls",
    "prefill-superlinear", "fake-streaming", "proxy-buffering", "prefix-cache-hit", "early-stop",
    "usage-missing", "counts-disagree", "foreign-traffic", "chunk-interval", "prefill-in-decode",
    "warm-up", "context-overflow",
)  # fmt: skip
# Those that are about the rate itself.
SLOWS = (
    "step-time-superlinear", "step-time-linear-in-context", "step-time-grows", "acceptance-falls",
    "prefill-superlinear", "stall",
)  # fmt: skip
FALLS = 0.9  # of the shortest context's rate
CONFIDENCES = ("high", "medium", "low")


@dataclass(frozen=True)
class Reason:
    """``status`` as in records.  ``text`` is plain and may hold hostile text: escape it where it
    is shown.  ``case``: id of the record's case, or empty."""

    step: str
    status: str
    text: str
    case: str = ""


def check_reasons(record: Record) -> list[Reason]:
    """Of each failed check of each kernel, with what the failure says itself."""
    return [
        Reason("check", case["status"], _check_text(case), case["id"])
        for case in record["cases"]
        if case["status"] not in ("pass", "skipped")
    ]


def _check_text(case: Record) -> str:
    kernel = case["parameters"].get("kernel", case["id"])
    failures = case.get("failures", ())  # workers may have found one each
    text = str(failures[0].get("text")) if failures else str(case["reason"])
    summary, *lines = text.split("\n")
    kind = failures[0].get("kind") if failures else None
    how = {"hang": "hangs", "crash": "crashes"}.get(str(kind), "is wrong")
    if summary.endswith("the kernel raised"):  # what: after the indented lines of its traceback
        raised = next((line for line in lines if line.strip() and line[0] != " "), "")
        summary += f" {raised}" if raised and not raised.startswith("case:") else ""
    told = [f"{kernel} {how}: {summary}"]
    for start in ("off:", "likely:"):
        told += [" ".join(line.split()) for line in lines if line.startswith(start)][:1]
    return "; ".join(told)


def bench_reasons(record: Record) -> list[Reason]:
    """Of each kernel and cell that was not soundly timed."""
    return [
        Reason("bench", case["status"], f"{case['id']}: {case['reason']}", case["id"])
        for case in record["cases"]
        if case["status"] not in ("pass", "skipped")
    ]


def sweep_reasons(record: Record) -> list[Reason]:
    """Of each point, the worst first: death, missed floors and failed requests, then the rest;
    last the causes that were named at points that pass."""
    cases = record["cases"]
    found = []
    for case in cases:
        if case["status"] in ("pass", "skipped"):
            continue
        text, fall = _point_text(case, shortest(case, cases), _causes(case, record))
        weight = 0 if case.get("died") else 2 if case["status"] == "inconclusive" else 1
        found.append(((weight, fall), Reason("sweep", case["status"], text, case["id"])))
    ordered = [reason for _, reason in sorted(found, key=lambda item: item[0])]
    return ordered + _allowed(record)


def shortest(case: Record, cases: Iterable[Record]) -> Record | None:
    """The case of the fewest prompt tokens that has a rate, of the same sweep as ``case``."""
    mine = _but_context(case)
    same = [c for c in cases if _but_context(c) == mine and rate(c) and _prompt(c)]
    return min(same, key=_prompt, default=None)


def rate(case: Record) -> float | None:
    """Sustained decode tok/s, where it was measured."""
    value = case["metrics"].get("decode_tok_s")
    return float(value) if isinstance(value, int | float) else None


def _prompt(case: Record) -> float:
    value = case["metrics"].get("prompt_tokens")
    return float(value) if isinstance(value, int | float) else 0.0


def _but_context(case: Record) -> Record:
    return {name: value for name, value in case["parameters"].items() if name != "context"}


def _causes(case: Record, record: Record) -> list[Record]:
    """The findings that concern a case, the most telling first, each cause once."""
    mine = list(case.get("findings", ()))
    mine += [f for f in record.get("findings", ()) if case["id"] in f.get("points", ())]
    first: dict[str, Record] = {}
    for finding in sorted(mine, key=_weight):
        first.setdefault(finding["cause"], finding)
    return list(first.values())


def _weight(finding: Record) -> tuple[int, int]:
    cause, confidence = finding.get("cause"), finding.get("confidence")
    return (
        CAUSES.index(cause) if cause in CAUSES else len(CAUSES),
        CONFIDENCES.index(confidence) if confidence in CONFIDENCES else len(CONFIDENCES),
    )


def _point_text(case: Record, best: Record | None, causes: list[Record]) -> tuple[str, float]:
    """(text, the rate as a share of the shortest context's)."""
    mine, reason = rate(case), str(case["reason"])
    top = None if best is None else rate(best)
    share = mine / top if mine is not None and top else 1.0
    if case.get("died"):
        until = "" if best is None else f"; {_at(best)} before"
        return f"{_death(case, reason)}{until}", share
    slow = [f for f in causes if f["cause"] in SLOWS] or [
        {"cause": cause} for cause in SLOWS if cause in reason
    ]
    missed = next((f for f in case.get("floors", ()) if f.get("status") == "fail"), None)
    if case["status"] == "error" or mine is None or not (slow or missed or share < FALLS):
        return f"{case['id']}: {reason}", share
    if _acceptance_share(case) > 0.5:
        slow.sort(key=lambda finding: finding["cause"] != "acceptance-falls")
    stall = [finding for finding in slow if finding["cause"] == "stall"]
    if share < FALLS and not stall:
        told = f"decode falls from {number(top)} to {number(mine)} tok/s at {_tokens(case)}"
        told += f": {', '.join(map(_named, slow))}" if slow else "; no cause could be named"
    else:
        first, *others = stall or slow or [{"cause": "no cause could be named"}]
        told = f"{_at(case)}; {_named(first)}"
        told += f": {first['evidence']}" if "evidence" in first else ""
        told += "".join(f"; also {_named(finding)}" for finding in others)
    if missed is not None:
        told += f"; {missed.get('name')}: {missed.get('reason')}"
    elif "no floor" in reason:
        told += "; no floor says whether that is allowed"
    return told, share


def _death(case: Record, reason: str) -> str:
    """Where the server died, and what the request itself met, which says more than the probe."""
    failed = next((f for f in case.get("findings", ()) if f["cause"] == "request-failed"), None)
    if failed is None:
        return reason
    answers = case.get("answers", ())
    started = any("first_token_s" in (answer.get("metrics") or {}) for answer in answers)
    where = "" if started else " before the first token"
    return f"the server died at {case['id']}{where}: {str(failed.get('evidence')).rstrip('.')}"


def _acceptance_share(case: Record) -> float:
    """The committed tokens' share in how far the rate fell, over contexts or within an answer."""
    splits = list(case.get("attribution", ()))
    splits += [(a.get("metrics") or {}).get("worst_window") for a in case.get("answers", ())]
    shares = (s.get("acceptance_share") for s in splits if isinstance(s, dict))
    return next((float(s) for s in shares if isinstance(s, int | float)), 0.0)


def _named(finding: Record) -> str:
    doubt = " (low confidence)" if finding.get("confidence") == "low" else ""
    return f"{finding['cause']}{doubt}"


def _allowed(record: Record) -> list[Reason]:
    """Causes that slow a server down where every point of them passes."""
    statuses = {case["id"]: case["status"] for case in record["cases"]}
    found = []
    for finding in record.get("findings", ()):
        points = [p for p in finding.get("points", ()) if p in statuses]
        if finding["cause"] in SLOWS and all(statuses[p] == "pass" for p in points):
            text = f"{finding['cause']} ({finding.get('confidence')}): {finding.get('evidence')}"
            found.append(Reason("sweep", "pass", text, points[0] if points else ""))
    return found


def _at(case: Record) -> str:
    return f"decode {number(rate(case))} tok/s at {_tokens(case)}"


def _tokens(case: Record) -> str:
    prompt = _prompt(case)
    return f"{prompt:,.0f} tokens" if prompt else str(case["id"])


def number(value: float | None) -> str:
    """A rate, to what can be told apart."""
    if value is None:
        return "an unknown rate"
    return f"{value:,.1f}" if value >= 0.95 else f"{value:.2g}"
