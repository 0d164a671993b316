"""A sweep on the terminal: the table, the causes, the audit."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_attn.terminal import STATUS_STYLE, printable, show_table

COLUMNS = (
    ("prompt", "prompt_tokens", "{:,.0f}"),
    ("TTFT s", "first_token_s", "{:.3g}"),
    ("prefill tok/s", "prefill_tok_s", "{:,.0f}"),
    ("decode tok/s", "decode_tok_s", "{:.4g}"),
    ("committed", "committed_per_step", "{:.2f}"),
    ("step ms", "step_ms", "{:.3g}"),
)
AUDIT = (
    ("burst_to_sustained", "the first 200 tokens alone"),
    ("two_point_to_sustained", "the two-point method"),
    ("whole_to_sustained", "tokens over the whole request's time"),
)
MISLEADS = 1.25  # a method that is off by more is worth a line
# Of every plain server; the record has them.
UNREMARKABLE = ("cache flush not offered", "no log was named", "prefix cache flushed")
CHANGED = 1.25  # a rate that differs by less is not worth a split


def show(console: Console, record: dict[str, Any]) -> None:
    """Print a sweep's record."""
    _header(console, record["server"])
    cases = record["cases"]
    if cases:
        show_table(console, _table(cases))
    for case in cases:
        if case["status"] != "pass":
            style = STATUS_STYLE[case["status"]]
            line = f"[{style}]{case['status']}[/{style}] {escape(case['id'])}: "
            console.print(line + printable(case["reason"]), soft_wrap=True)
        for note in case["notes"]:
            console.print(f"  {printable(note)}", style="dim", soft_wrap=True)
    _causes(console, record)
    _comparison(console, record)
    for line in audit_lines(cases):
        console.print(line, soft_wrap=True)
    skipped = sum(case["status"] == "skipped" for case in cases)
    if skipped:
        console.print(f"{skipped} of {len(cases)} points were not measured")
    if cases and not record["floors_given"]:
        console.print("no floor was given: nothing was held to a limit", style="dim")
    elif cases and not any("floor_tok_s" in f for case in cases for f in case["floors"]):
        console.print("no floor that was given holds at these points: nothing was held to a limit",
                      style="yellow")  # fmt: skip


def _header(console: Console, server: dict[str, Any]) -> None:
    line = str(server["url"])
    if "facts" in server:
        line += f": {server['facts']['engine']}, model {server['model']}, {server['endpoint']}"
        if not server["granted"].get("usage"):
            line += "; it does not count its tokens"
        if server["extras_refused"]:
            line += f"; it refuses {', '.join(server['extras_refused'])}"
    console.print(printable(line), style="dim", soft_wrap=True)
    for note in server.get("notes", ()):
        if not note.startswith(UNREMARKABLE):
            console.print(f"  {printable(note)}", style="dim", soft_wrap=True)


def _table(cases: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("point", no_wrap=True)
    for head, _, _ in COLUMNS:
        table.add_column(head, justify="right", no_wrap=True)
    several = any(case["parameters"]["concurrency"] > 1 for case in cases)
    extra = [("worst window", "", ""), *([("total tok/s", "", "")] if several else [])]
    for head, _, _ in extra:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("floor", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for case in cases:
        metrics = case["metrics"]
        cells = [_cell(metrics.get(name), form) for _, name, form in COLUMNS]
        if "decode_tok_s_low" in metrics:
            low, high = metrics["decode_tok_s_low"], metrics["decode_tok_s_high"]
            cells[3] += f" ({low:.3g}-{high:.3g})"
        several_windows = [a["windows"] for a in case["answers"] if len(a["windows"]) > 1]
        worst = [w["tok_per_s"] for windows in several_windows for w in windows]
        cells.append(_cell(min(worst, default=None), "{:.4g}"))
        if several:
            cells.append(_cell(metrics.get("total_tok_s"), "{:.4g}"))
        limits = [f["floor_tok_s"] for f in case["floors"] if "floor_tok_s" in f]
        cells.append(_cell(max(limits, default=None), "{:.4g}"))
        style = STATUS_STYLE[case["status"]]
        table.add_row(escape(case["id"]), *cells, f"[{style}]{case['status']}[/{style}]")
    return table


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _causes(console: Console, record: dict[str, Any]) -> None:
    said = {case["reason"] for case in record["cases"]}
    for finding in record["findings"]:
        where = f" [{', '.join(finding['points'])}]" if finding["points"] else ""
        evidence = "" if finding["evidence"] in said else f" {printable(finding['evidence'])}"
        console.print(
            f"[bold]{finding['cause']}[/bold]{escape(where)}: {finding['meaning']} "
            f"({finding['confidence']} confidence).{evidence}",
            soft_wrap=True,
        )


def _comparison(console: Console, record: dict[str, Any]) -> None:
    against = record.get("against")
    if against is not None:
        for difference in against["differs"]:
            line = f"not the same as in {against['name']}: {difference}"
            console.print(printable(line), soft_wrap=True)
    for case in record["cases"]:
        named = {split["against"] for split in case["attribution"]}
        for split in case["attribution"]:
            saved = against is not None and split["against"] == against["name"]
            if saved or changed(split):
                line = f"{case['id']}: {split_line(split)}"
                console.print(printable(line), style="dim", soft_wrap=True)
        if against is not None and case["status"] != "skipped" and against["name"] not in named:
            line = f"{case['id']}: {against['name']} has no point to compare with"
            console.print(printable(line), style="dim", soft_wrap=True)


def changed(split: dict[str, Any]) -> bool:
    """Is the rate far enough from the reference's to ask why?"""
    return not 1 / CHANGED < float(split["rate_ratio"]) < CHANGED


def split_line(split: dict[str, Any]) -> str:
    """How a ratio of rates is made up, in one line; shares only where both pull the same way."""
    line = f"{split['rate_ratio']:.2f} times the rate of {split['against']}"
    if not changed(split):
        return line
    acceptance, step = split["acceptance_share"], split["step_time_share"]
    both = acceptance >= 0.005 and step >= 0.005
    return (
        f"{line}: committed tokens a step {split['committed_ratio']:.2f} times"
        + (f" ({acceptance:.0%} of the change)" if both else "")
        + f", step time {split['step_time_ratio']:.2f} times"
        + (f" ({step:.0%})" if both else "")
    )


def audit_lines(cases: list[dict[str, Any]]) -> list[str]:
    """One line for each method that misleads at some point, at its worst."""
    lines = []
    for key, name in AUDIT:
        found = [
            (case["metrics"]["audit"][key], case["id"])
            for case in cases
            if key in case["metrics"].get("audit", {})
        ]
        off = [(max(r, 1 / r), r, where) for r, where in found if r > 0]
        if off and max(off)[0] > MISLEADS:
            _, ratio, where = max(off)
            lines.append(f"{name} would have said {ratio:.2g} times the sustained rate at {where}")
    return lines


def failure_text(case: dict[str, Any]) -> str:
    """Why a point failed, for an assertion: reason, causes, shares."""
    lines = [f"{case['id']}: {case['status']}: {case['reason']}"]
    lines += [
        f"cause: {f['cause']} ({f['confidence']} confidence): {f['meaning']}. {f['evidence']}"
        for f in case["findings"]
    ]
    lines += [f"split: {split_line(s)}" for s in case["attribution"] if changed(s)]
    lines += audit_lines([case])
    return "\n".join([*lines, *case["notes"]])
