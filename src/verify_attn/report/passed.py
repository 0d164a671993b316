"""A pass in figures, for the headline."""

from __future__ import annotations

from verify_attn.report.folder import Folder, Record
from verify_attn.report.reasons import number, rate


def passed_text(folder: Folder) -> str:
    """What passed, step by step, in one line."""
    parts = []
    for step, tell in (("check", _check), ("bench", _bench), ("sweep", _sweep)):
        record = folder.steps[step].record
        if record is not None:
            parts += [text for text in [tell(record)] if text]
    return "; ".join(parts)


def _check(record: Record) -> str:
    passed = [case for case in record["cases"] if case["status"] == "pass"]
    kernels = dict.fromkeys(str(case["parameters"].get("kernel")) for case in passed)
    how = "" if record.get("environment", {}).get("gpus") else " without a GPU"
    count = sum(case["metrics"].get("executed", 0) for case in passed)
    if not kernels:
        return ""
    return f"{', '.join(kernels)} right in {count:,.0f} checks{how}"


def _bench(record: Record) -> str:
    timed = [c for c in record["cases"] if c["status"] == "pass" and "limit_share" in c["metrics"]]
    if not timed:
        return ""
    best = max(timed, key=lambda case: float(case["metrics"]["limit_share"]))
    kernel, share = best["parameters"].get("kernel"), float(best["metrics"]["limit_share"])
    return f"{len(timed)} timings, {kernel} at up to {share:.0%} of the limit"


def _sweep(record: Record) -> str:
    rates = [(case, value) for case in record["cases"]
             if case["status"] == "pass" and (value := rate(case)) is not None]  # fmt: skip
    if not rates:
        return ""
    lowest, highest = min(r for _, r in rates), max(r for _, r in rates)
    prompts = [case["metrics"].get("prompt_tokens", 0) for case, _ in rates]
    held = "" if record.get("floors_given") else ", held to no floor"
    if lowest == highest:
        return f"decode {number(lowest)} tok/s at {prompts[0]:,.0f} tokens of context{held}"
    return (
        f"decode {number(lowest)} to {number(highest)} tok/s from {min(prompts):,.0f} to "
        f"{max(prompts):,.0f} tokens of context{held}"
    )
