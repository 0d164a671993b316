"""What a run did not test, said plainly: a pass is a pass of what ran."""

from __future__ import annotations

from collections.abc import Iterator

from verify_attn.report.folder import STEPS, Folder, Record


def not_tested(folder: Folder) -> Iterator[str]:
    """One line for each thing, the machine's own limits first."""
    if folder.run_problem and not folder.alone and not folder.run_problem.endswith("is missing"):
        yield f"run: {folder.run_problem}; the verdict is from the steps' records alone"
    yield from _machine(folder)
    for step in STEPS:
        record, case = folder.steps[step].record, folder.case(step)
        if case is not None and case["status"] == "skipped":
            yield f"{step}: {case['reason']}"
        elif record is None and not folder.alone:
            not_begun = folder.run is not None and case is None
            yield f"{step}: {'not begun' if not_begun else folder.steps[step].problem}"
        yield from (f"{step}: {note}" for note in (case or {}).get("notes", ()))
        if record is not None:
            yield from (f"{step}: {line}" for line in _left_out(step, record))


def _machine(folder: Folder) -> Iterator[str]:
    records = [folder.run, *(step.record for step in folder.steps.values())]
    known = next((r["environment"] for r in records if r and "environment" in r), None)
    if known is None or known.get("gpus"):
        return
    triton = (
        "Triton kernels ran in the interpreter: their arithmetic was tested, not the GPU"
        if known.get("triton") == "interpreter"
        else "Triton kernels could not run"
    )
    yield f"no GPU: nothing was timed; {triton}"


def _left_out(step: str, record: Record) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for case in record["cases"]:
        if case["status"] == "skipped":
            reasons.setdefault(str(case["reason"]), []).append(case["id"])
    for reason, ids in reasons.items():
        yield f"{', '.join(ids)}: {reason}"
    yield from _cut_short(record)
    bench = record.get("environment", {}).get("bench")
    if isinstance(bench, dict):
        for peer, reason in (bench.get("left_out") or {}).items():
            yield f"{peer}: {reason}"
    if step == "sweep" and record["cases"] and not record.get("floors_given"):
        yield "no floor was given: decode rates were held to no limit"


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
