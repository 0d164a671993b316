"""A sweep on the terminal: the table, the causes, the audit."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verify_attn.terminal import STATUS_STYLE, printable

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
MISLEADS = 1.1  # a method that is off by more is worth a line


def show(console: Console, record: dict[str, Any]) -> None:
    """Print a sweep's record."""
    console.print(_server_line(record["server"]), style="dim", soft_wrap=True)
    if record["cases"]:
        console.print(_table(record["cases"]))
    for case in record["cases"]:
        if case["status"] != "pass":
            style = STATUS_STYLE[case["status"]]
            line = f"[{style}]{case['status']}[/{style}] {escape(case['id'])}: "
            console.print(line + printable(case["reason"]), soft_wrap=True)
        for note in case["notes"]:
            console.print(f"  {printable(note)}", style="dim", soft_wrap=True)
    _causes(console, record)
    for line in audit_lines(record["cases"]):
        console.print(line, soft_wrap=True)
    if record["cases"] and not record["floors_given"]:
        console.print("no floor was given: nothing was held to a limit", style="dim")


def _server_line(server: dict[str, Any]) -> str:
    if "facts" not in server:
        return printable(str(server["url"]))
    granted = [name for name, given in server["granted"].items() if given]
    line = (
        f"{server['url']}: {server['facts']['engine']}, model {server['model']}, "
        f"{server['endpoint']}; granted: {', '.join(granted) or 'nothing'}"
    )
    if server["extras_refused"]:
        line += f"; refused: {', '.join(server['extras_refused'])}"
    return printable("; ".join([line, *server["notes"]]))


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
        worst = [w["tok_per_s"] for a in case["answers"] for w in a["windows"]]
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
    for finding in record["findings"]:
        where = f" [{', '.join(finding['points'])}]" if finding["points"] else ""
        console.print(
            f"[bold]{finding['cause']}[/bold] ({finding['confidence']} confidence)"
            f"{escape(where)}: {printable(finding['evidence'])}",
            soft_wrap=True,
        )
    for case in record["cases"]:
        for split in case["attribution"]:
            if "acceptance_share" in split:
                console.print(f"{escape(case['id'])}: {printable(split_line(split))}",
                              style="dim", soft_wrap=True)  # fmt: skip


def split_line(split: dict[str, Any]) -> str:
    """How a ratio of rates is made up, in one line."""
    return (
        f"{split['rate_ratio']:.2f} times the rate of {split['against']}: committed tokens a step "
        f"{split['committed_ratio']:.2f} times ({split['acceptance_share']:.0%} of the change), "
        f"step time {split['step_time_ratio']:.2f} times ({split['step_time_share']:.0%})"
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
        f"cause: {f['cause']} ({f['confidence']} confidence): {f['evidence']}"
        for f in case["findings"]
    ]
    lines += [f"split: {split_line(s)}" for s in case["attribution"] if "acceptance_share" in s]
    lines += audit_lines([case])
    return "\n".join([*lines, *case["notes"]])
