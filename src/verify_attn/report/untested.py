"""What a run did not test, said plainly: a pass is a pass of what ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from verify_attn.report.folder import STEPS, Folder, Record

NO_GPU = "no GPU"
FEW = 6  # names in one line
NO_CASE = "no case was drawn"


def not_tested(folder: Folder) -> Iterator[str]:
    """One line for each thing: the machine's own limits, whole steps, then parts of steps."""
    if folder.run_lost:
        yield f"run: {folder.run_problem}; the verdict is from the steps' records alone"
    yield from _machine(folder)
    for step in STEPS:
        yield from (f"{step}: {line}" for line in _whole(folder, step))
    for step in reversed(STEPS):  # a server's points before single checks of a kernel
        record = folder.steps[step].record
        if record is not None:
            yield from (f"{step}: {line}" for line in _left_out(record))


def _whole(folder: Folder, step: str) -> Iterator[str]:
    """What was not done of a step at all, or was done otherwise than asked."""
    record, case = folder.steps[step].record, folder.case(step)
    if case is not None and case["status"] == "skipped":
        if not str(case["reason"]).startswith(NO_GPU):  # said of the machine
            yield str(case["reason"])
    elif record is None and not folder.alone:
        not_begun = folder.run is not None and case is None
        yield "not begun" if not_begun else str(folder.steps[step].problem)
    yield from map(str, (case or {}).get("notes", ()))
    if step == "check" and record is not None:
        for kernel, cases in _skipped_whole(record).items():
            yield f"{kernel} was not tested at all: {_usual_reason(cases)}"
    swept = step == "sweep" and record is not None and bool(record["cases"])
    if swept and not (record or {}).get("floors_given"):
        yield "no floor was given: decode rates were held to no limit"


def _skipped_whole(record: Record) -> dict[str, list[Record]]:
    """Cases of the kernels of which none was executed."""
    by: dict[str, list[Record]] = {}
    for case in record["cases"]:
        by.setdefault(str(case["parameters"].get("kernel")), []).append(case)
    return {k: cases for k, cases in by.items() if all(c["status"] == "skipped" for c in cases)}


def _usual_reason(cases: list[Record]) -> str:
    """The kernel's own before that of a check which the draw left out."""
    reasons = Counter(str(case["reason"]) for case in cases)
    own = Counter({reason: n for reason, n in reasons.items() if reason != NO_CASE})
    return (own or reasons).most_common(1)[0][0]


def _environment(folder: Folder) -> Record | None:
    records = [folder.run, *(step.record for step in folder.steps.values())]
    return next((r["environment"] for r in records if r and "environment" in r), None)


def no_gpu(folder: Folder) -> bool:
    """Do its records say that their machine has none?"""
    known = _environment(folder)
    return isinstance(known, dict) and known.get("gpus") == []


def _machine(folder: Folder) -> Iterator[str]:
    known = _environment(folder)
    if known is None or known.get("gpus"):
        return
    if folder.steps["check"].record is None:
        if not folder.alone:  # of a sweep alone the machine is the client's
            yield f"{NO_GPU}: no kernel was timed"
        return
    ran = (
        "kernels ran on the CPU, Triton's in its interpreter: arithmetic was tested, not the GPU"
        if known.get("triton") == "interpreter"
        else "Triton kernels could not run"
    )
    yield f"{NO_GPU}: no kernel was timed; {ran}"


def _left_out(record: Record) -> Iterator[str]:
    yield from _cut_short(record)
    reasons: dict[str, list[str]] = {}
    untested = _skipped_whole(record) if "progress" in record else {}
    for case in record["cases"]:
        if case["status"] == "skipped" and case["parameters"].get("kernel") not in untested:
            reasons.setdefault(str(case["reason"]), []).append(case["id"])
    for reason, ids in reasons.items():
        yield f"{_some(ids)}: {reason}"
    bench = record.get("environment", {}).get("bench")
    if isinstance(bench, dict):
        for peer, reason in (bench.get("left_out") or {}).items():
            yield f"{peer}: {reason}"


def _some(ids: list[str]) -> str:
    """Their names, or of many how many: the record and the report's matrix have them all."""
    if len(ids) <= FEW:
        return ", ".join(ids)
    return f"{len(ids)} of its cases ({', '.join(ids[:2])}, ...)"


def _cut_short(record: Record) -> Iterator[str]:
    """Kernels whose check was stopped before all examples."""
    asked = record.get("parameters", {}).get("examples")
    for kernel, done in record.get("progress", {}).items():
        ran = done.get("examples") if isinstance(done, dict) else None
        if (
            isinstance(asked, int)
            and isinstance(ran, int)
            and ran < asked
            and not _failed(record, kernel)
        ):
            yield f"{kernel} ran {ran:,} of {asked:,} cases"


def _failed(record: Record, kernel: str) -> bool:
    """Of a kernel all of whose checks failed, no further case is drawn."""
    mine = [c for c in record["cases"] if c["parameters"].get("kernel") == kernel]
    return bool(mine) and all(c["status"] in ("fail", "skipped") for c in mine)
