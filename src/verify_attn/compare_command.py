"""What `verify-attn compare` prints and writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from verify_attn.file_errors import why
from verify_attn.perf.gate import (
    COMPARED,
    FAILURES,
    CaseVerdict,
    Change,
    Comparison,
    Saved,
    compare,
    load_cases,
)
from verify_attn.perf.judged import figure
from verify_attn.perf.saved import TIMES, WHOLE
from verify_attn.perf.thresholds import ThresholdError, find_pyproject, read_thresholds
from verify_attn.record import RecordError, check_writable, new_record, write_record
from verify_attn.terminal import error, output, printable, show_table
from verify_attn.whole_file import write_whole

STYLES = {
    "worse": "bold red", "missing": "bold red", "renamed": "bold red", "failed": "bold red",
    "unclear": "yellow", "better": "green", "same": "", "new": "dim", "not compared": "dim",
}  # fmt: skip
NOTHING = "nothing was compared"


def run_compare(
    baseline: Path,
    candidate: Path,
    *,
    threshold: float | None = None,
    junit: Path | None = None,
    record: Path | None = None,
) -> int:
    """`verify-attn compare`; returns the exit code."""
    try:
        _check_targets(baseline, candidate, junit, record)
        thresholds = read_thresholds(find_pyproject(Path.cwd()), threshold)
        old, new = load_cases(baseline), load_cases(candidate)
    except (RecordError, ThresholdError) as wrong:
        return error(str(wrong))
    comparison = compare(old, new, thresholds)
    try:  # before anything is printed: a gate whose report is lost has not passed
        if record is not None:
            write_record(record, as_record(comparison, old, new))
        if junit is not None:
            _write(junit, as_junit(comparison))
    except RecordError as wrong:
        return error(str(wrong))
    show(output(), comparison, old, new)
    return comparison.exit_code


def _check_targets(
    baseline: Path, candidate: Path, junit: Path | None, record: Path | None
) -> None:
    targets = [(o, p) for o, p in (("--junit", junit), ("--json", record)) if p is not None]
    for option, path in targets:
        check_writable(path)
        if path.resolve() in (baseline.resolve(), candidate.resolve()):
            raise RecordError(f"{option} {path} is one of the files compared; give another path")
    if len({path.resolve() for _, path in targets}) < len(targets):
        raise RecordError(f"--junit and --json are both {junit}; give each its own path")


# -- the terminal --------------------------------------------------------------------------------


def show(console: Console, comparison: Comparison, old: Saved, new: Saved) -> None:
    """The table, then what needs a word, then the counts."""
    gpu, driver = (old.identity.get(key, "unknown") for key in ("name", "driver"))
    _line(console, f"baseline {old.name} ({gpu}, driver {driver}), new {new.name}", "dim")
    if comparison.cases:
        table = _table(comparison)
        if not console.is_terminal:  # nothing in a pipe has an edge
            wide = console.options.update(max_width=1 << 16)
            console.width = max(console.width, Measurement.get(console, wide, table).maximum)
        show_table(console, table)
    told: dict[tuple[str, str], list[str]] = {}
    for case in comparison.cases:
        if case.reason:
            told.setdefault((case.outcome, case.reason), []).append(case.id)
    for outcome in STYLES:
        for (of, reason), ids in told.items():
            if of == outcome:
                who = ids[0] if len(ids) == 1 else f"{len(ids)} cases"
                line = Text(outcome, style=STYLES[outcome]) + _shown(f", {who}: {reason}")
                console.print(line, soft_wrap=True)
    for note in comparison.notes:
        _line(console, f"note: {note}", "dim")
    _line(console, summary(comparison), "bold")


def summary(comparison: Comparison) -> str:
    """One line with the counts."""
    counts = ", ".join(f"{n} {outcome}" for outcome, n in comparison.counts.items())
    total = len(comparison.cases)
    line = f"{total} {'case' if total == 1 else 'cases'}: {counts}" if counts else "no cases"
    compared = any(outcome in comparison.counts for outcome in (*COMPARED, *FAILURES, "unclear"))
    return line if compared else f"{line}; {NOTHING}"


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    for title in ("baseline ms", "new ms", "ratio", "GB/s", "speedup"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for case in comparison.cases:
        run = next((case.changes[q] for q in WHOLE if q in case.changes), None)
        bandwidth, speedup = case.changes.get("bandwidth"), case.changes.get("speedup")
        table.add_row(
            _shown(case.id),
            figure(run.baseline.median) if run else "",
            figure(run.candidate.median) if run else "",
            str(run.ratio) if run else "",
            _both(bandwidth), _both(speedup),
            Text(case.outcome, style=STYLES[case.outcome]),
        )  # fmt: skip
    return table


def _both(change: Change | None) -> str:
    if change is None:
        return ""
    return f"{figure(change.baseline.median)} -> {figure(change.candidate.median)}"


def _shown(text: str, style: str = "") -> Text:
    """One line, whatever is in it: ids and reasons are others' text."""
    # The space: rich shows a backslash at the very end twice.
    shown = Text.from_markup(printable(text.replace("\n", "\\n") + " "), emoji=False, style=style)
    shown.right_crop(1)
    return shown


def _line(console: Console, text: str, style: str) -> None:
    console.print(_shown(text, style), soft_wrap=True)


# -- files ---------------------------------------------------------------------------------------


def as_record(comparison: Comparison, old: Saved, new: Saved) -> dict[str, Any]:
    """A run record: pass is better or same, inconclusive is unclear, skipped is what was not
    compared; metrics are the ratios (new over old), each with its interval."""
    record = new_record(["verify-attn", *sys.argv[1:]])
    record["compared"] = {
        side: {
            "file": saved.name, "identity": dict(saved.identity), "versions": dict(saved.versions),
            "baseline": saved.baseline,
        }
        for side, saved in (("baseline", old), ("new", new))
    }  # fmt: skip
    record["notes"] = list(comparison.notes)
    record["cases"] = [
        {
            "id": case.id, "parameters": dict(case.parameters), "status": _status(case.outcome),
            "reason": case.reason or None, "verdict": case.outcome, "threshold": case.threshold,
            "metrics": _metrics(case),
        }
        for case in comparison.cases
    ]  # fmt: skip
    return record


def _status(outcome: str) -> str:
    if outcome in FAILURES:
        return "fail"
    if outcome in COMPARED:
        return "pass"
    return "inconclusive" if outcome == "unclear" else "skipped"


def _metrics(case: CaseVerdict) -> dict[str, float]:
    found: dict[str, float] = {}
    for quantity, change in case.changes.items():
        unit = "_ms" if quantity in TIMES else "_gb_per_s" if quantity == "bandwidth" else ""
        found[f"{quantity}_baseline{unit}"] = change.baseline.median
        found[f"{quantity}_new{unit}"] = change.candidate.median
        found[f"{quantity}_ratio"] = change.ratio.median
        found[f"{quantity}_ratio_low"] = change.ratio.low
        found[f"{quantity}_ratio_high"] = change.ratio.high
    return found


def as_junit(comparison: Comparison) -> bytes:
    """A testcase a case; where nothing was compared one more, that fails: a file without a failure
    looks like a pass to every reader of such files."""
    results = [(case.id, case.outcome, _figures(case)) for case in comparison.cases]
    if not any(_status(outcome) != "skipped" for _, outcome, _ in results):
        results.append((NOTHING, "unclear", "no case was measured in both runs"))
    statuses = [_status(outcome) for _, outcome, _ in results]
    failures = sum(status in ("fail", "inconclusive") for status in statuses)
    counts = {"tests": len(results), "failures": failures, "errors": 0,
              "skipped": statuses.count("skipped")}  # fmt: skip
    attributes = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "verify-attn compare", **attributes})
    for (name, outcome, text), status in zip(results, statuses, strict=True):
        _testcase(suite, name, outcome, text, status)
    report: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return report


def _figures(case: CaseVerdict) -> str:
    """The reason, and every figure that it does not name."""
    figures = [text for text in map(str, case.changes.values()) if text not in case.reason]
    return "; ".join([case.reason, *figures] if case.reason else figures)


def _testcase(suite: ElementTree.Element, name: str, outcome: str, text: str, status: str) -> None:
    name, text = _shown(name).plain, _shown(text).plain  # no control character is XML
    case = ElementTree.SubElement(suite, "testcase", classname="verify-attn.compare", name=name)
    if status in ("fail", "inconclusive"):
        message = f"{outcome}: {name}: {text}"
        ElementTree.SubElement(case, "failure", message=message, type=outcome).text = message
    elif status == "skipped":
        ElementTree.SubElement(case, "skipped", message=f"{outcome}: {text}")
    else:
        ElementTree.SubElement(case, "system-out").text = f"{outcome}: {text}"


def _write(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content)
    except OSError as wrong:
        raise RecordError(f"{path} is not written: {why(wrong)}") from None
