"""What `verify-attn history` prints and writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from verify_attn.record import RecordError, check_writable, exit_code, new_record, write_record
from verify_attn.report.history import Series, Step, direction, make_series
from verify_attn.report.kept import HistoryError, Records, read_branch, read_folder
from verify_attn.terminal import error, output, printable, show_table

STYLES = {"worse": "bold red", "better": "green", "changed": "yellow"}
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_WIDTH = 24  # characters of a sparkline
_CALM = 0.1  # a line that stays within this share of its middle is drawn as nearly flat
_LISTED = 6  # series that are told of those that changed at the same commits
_NAMED = 3  # files that are named of those left out for one reason


def run_history(
    folder: Path,
    *,
    branch: str | None = None,
    cases: Sequence[str] = (),
    metrics: Sequence[str] = (),
    html: Path | None = None,
    record: Path | None = None,
) -> int:
    """`verify-attn history`; returns the exit code."""
    try:
        for path in (html, record):
            if path is not None:
                check_writable(path)
        if html is not None and record is not None and html.resolve() == record.resolve():
            raise RecordError(f"--html and --json are both {html}; give each its own path")
        records = read_folder(folder) if branch is None else read_branch(folder, branch)
        if branch is None:
            _refuse_records([html, record], folder, records)
        series = make_series(records, cases, metrics)
        found = as_record(records, series)
        if html is not None:
            from verify_attn.report.history_page import write_page

            write_page(html, records, series)
        if record is not None:
            write_record(record, found)
    except (HistoryError, RecordError) as wrong:
        return error(str(wrong))
    show(output(), records, series)
    return exit_code(found["cases"])


def _refuse_records(outputs: Sequence[Path | None], folder: Path, records: Records) -> None:
    """Raises `RecordError` for an output in the place of a record that is read here."""
    kept = {(folder / one.name).resolve() for one in records.kept}
    for path in outputs:
        if path is not None and path.resolve() in kept:
            raise RecordError(f"{path} is one of the records; give another path")


# -- the terminal --------------------------------------------------------------------------------


def show(console: Console, records: Records, series: Sequence[Series]) -> None:
    """What was read, a line a series, what changed, what was left out, the counts."""
    for line in about(records):
        _line(console, line, "dim")
    table = _table(console, series)
    if not console.is_terminal:  # nothing in a pipe has an edge
        wide = console.options.update(max_width=1 << 16)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    show_table(console, table)
    for (verdict, commits), found in _by_commits(series).items():
        what = Text(f"{verdict} at ", style=STYLES[verdict]) + _shown(commits)
        since = f" ({found[0][1].first_bad.record.started:%Y-%m-%d %H:%M}): {len(found)} series"
        console.print(what + since, soft_wrap=True)
        for one, step in found[:_LISTED]:
            _line(console, f"  {_name(one)}: {told(step)}", "")
        if len(found) > _LISTED:
            _line(console, f"  and {len(found) - _LISTED} more: the table, --json", "dim")
    notes: dict[str, list[str]] = {}
    for one in series:
        for note in [*([one.ended] if one.ended else []), *one.notes]:
            notes.setdefault(note, []).append(_name(one))
    for note, names in notes.items():
        who = names[0] if len(names) == 1 else f"{len(names)} series"
        _line(console, f"note: {who}: {note}", "dim")
    for machine in sorted({one.machine for one in series}):
        _line(console, f"machine: {machine}", "dim")
    _line(console, summary(series), "bold")


def _by_commits(series: Sequence[Series]) -> dict[tuple[str, str], list[tuple[Series, Step]]]:
    """The changes by verdict and commits, the newest first, each with the largest first."""
    found: dict[tuple[str, str], list[tuple[Series, Step]]] = {}
    for one in series:
        for step in one.steps:
            found.setdefault((step.verdict, step.commits), []).append((one, step))
    for same in found.values():
        same.sort(key=lambda pair: -_size(pair[1]))
    newest = sorted(found, key=lambda key: found[key][0][1].first_bad.record.started, reverse=True)
    return {key: found[key] for key in newest}


def _size(step: Step) -> float:
    largest = max(abs(step.before), abs(step.after))
    return abs(step.after - step.before) / largest if largest else 0.0


def about(records: Records) -> list[str]:
    """What was read and what was left out, a line each."""
    first, last = (records.kept[i].started for i in (0, -1))
    kinds = [record.kind for record in records.kept]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    lines = [f"{len(kinds)} records ({counts}), {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for why, names in records.skipped.items():
        groups.setdefault(why.split(": ")[0], []).extend((name, why) for name in names)
    for files in groups.values():
        named = [f"{name}: {why}" for name, why in files[:_NAMED]]
        more = f"; and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        count = "1 file" if len(files) == 1 else f"{len(files)} files"
        lines.append(f"left out: {count}: {'; '.join(named)}{more}")
    return lines + [f"note: {note}" for note in records.notes]


def told(step: Step) -> str:
    """A change in one line."""
    ratio = f", x{step.after / step.before:.3f}" if step.before else ""
    between = f", {step.between} records between lack the figure" if step.between else ""
    differs = "".join(f"; {what}" for what in step.differs)
    return f"{step.before:.4g} -> {step.after:.4g}{ratio}, at {step.commits}{between}{differs}"


def summary(series: Sequence[Series]) -> str:
    """One line with the counts."""
    worse = sum(one.worsened for one in series)
    short = sum(not one.enough for one in series)
    ended = sum(bool(one.ended) for one in series)
    line = f"{len(series)} series: {worse} got worse and stayed so"
    line += f", {ended} ended on another machine" if ended else ""
    return line + (f", {short} too short to say" if short else "")


def sparkline(values: Sequence[float], levels: str = BLOCKS) -> str:
    """Figures as characters, at most `_WIDTH`: medians of equal parts, if there are more."""
    count = min(len(values), _WIDTH)
    edges = [i * len(values) // count for i in range(count + 1)]
    parts = [sorted(values[a:b]) for a, b in pairwise(edges)]
    middles = [part[len(part) // 2] for part in parts]
    low, high = min(middles), max(middles)
    span = max(high - low, _CALM * abs(low + high) / 2)
    start = (low + high - span) / 2
    if span <= 0:
        return levels[0] * count
    last = len(levels) - 1
    return "".join(levels[round((middle - start) / span * last)] for middle in middles)


def _table(console: Console, series: Sequence[Series]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("case", overflow="fold")
    table.add_column("metric", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("over time", no_wrap=True)
    table.add_column("now", justify="right", no_wrap=True)
    table.add_column("last change", no_wrap=True)
    table.add_column("last good .. first bad", overflow="fold")
    levels = ASCII if console.options.ascii_only else BLOCKS
    for one in series:
        step = one.steps[-1] if one.steps else None
        table.add_row(
            _shown(one.case), _shown(one.metric), str(len(one.points)),
            sparkline(one.values, levels), f"{one.values[-1]:.4g}", _change(one, step),
            _shown(step.commits if step else ""),
        )  # fmt: skip
    return table


def _change(one: Series, step: Step | None) -> Text:
    if not one.enough:
        return Text("too few", style="dim")
    if step is None:
        return Text("none", style="dim")
    ratio = f" x{step.after / step.before:.3f}" if step.before else ""
    return Text(f"{step.verdict}{ratio}{' (ended)' if one.ended else ''}",
                style="dim" if one.ended else STYLES[step.verdict])  # fmt: skip


def _name(one: Series) -> str:
    return f"{one.case}, {one.metric}"


def _shown(text: str, style: str = "") -> Text:
    """One line, whatever is in it: ids and commits are others' text."""
    # The space: rich shows a backslash at the very end twice.
    shown = Text.from_markup(printable(text.replace("\n", "\\n") + " "), emoji=False, style=style)
    shown.right_crop(1)
    return shown


def _line(console: Console, text: str, style: str) -> None:
    console.print(_shown(text, style), soft_wrap=True)


# -- the record ----------------------------------------------------------------------------------


def as_record(records: Records, series: Sequence[Series]) -> dict[str, Any]:
    """A run record, a case a series: fail where it got worse and stayed so, skipped where too few
    records or another machine's newer ones leave nothing to say."""
    record = new_record(["verify-attn", *sys.argv[1:]])
    record["records"] = len(records.kept)
    record["left_out"] = records.skipped
    record["notes"] = records.notes
    several = len({(s.kind, s.case, s.metric) for s in series}) < len(series)
    record["cases"] = [_case(one, several) for one in series]
    return record


def _case(one: Series, several: bool) -> dict[str, Any]:
    status, reason = "pass", None
    if one.worsened:
        status, reason = "fail", f"got worse: {told(one.steps[-1])}"
    elif one.ended or not one.enough:
        status, reason = "skipped", one.ended or one.notes[0]
    where = f" | {one.machine}" if several else ""
    return {
        "id": f"{one.kind} | {one.case} | {one.metric}{where}",
        "parameters": {
            "command": one.kind, "case": one.case, "metric": one.metric, "machine": one.machine,
            "better": direction(one.metric),
        },
        "status": status, "reason": reason, "notes": one.notes,
        "metrics": {"now": one.values[-1], "records": len(one.points)},
        "changes": [
            {
                "verdict": step.verdict, "before": step.before, "after": step.after,
                "last_good": step.last_good.record.commit,
                "first_bad": step.first_bad.record.commit,
                "last_good_file": step.last_good.record.name,
                "first_bad_file": step.first_bad.record.name,
                "records_between": step.between, "differs": list(step.differs),
            }
            for step in one.steps
        ],
        "points": [
            [p.record.started.isoformat(), p.record.commit, p.value, p.low, p.high]
            for p in one.points
        ],
    }  # fmt: skip
