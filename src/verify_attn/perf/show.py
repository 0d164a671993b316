"""A bench record as a table: time, share of the limit as a bar, speedup.  And as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from verify_attn.file_errors import why
from verify_attn.perf.axes import AXES, Cell
from verify_attn.perf.roofline import Rates, limit, work_of
from verify_attn.record import RecordError
from verify_attn.terminal import STATUS_STYLE, printable, show_table
from verify_attn.whole_file import write_whole

BAR = 10
# Columns of the CSV file, the parameters of a cell before them.
FIGURES = (
    "run_ms", "run_low_ms", "run_high_ms", "prepare_run_ms", "prepare_run_low_ms",
    "prepare_run_high_ms", "graph_ms", "graph_low_ms", "graph_high_ms", "cupti_ms", "cupti_low_ms",
    "cupti_high_ms", "gb_per_s", "tflop_per_s", "memory_share", "arithmetic_share", "limit_ms",
    "limit_share", "binds", "speedup", "speedup_low", "speedup_high", "against_baseline", "samples",
    "throttled_samples",
)  # fmt: skip
VERDICT_STYLE = {"better": "green", "worse": "red", "unclear": "yellow", "same": ""}


def bar(share: float) -> str:
    """A share of the limit, full at 1."""
    full = min(BAR, round(share * BAR))
    return "█" * full + "░" * (BAR - full)


def words(parameters: dict[str, Any]) -> str:
    """A cell in words, its centre's values left out but for context and nodes."""
    p, centre = parameters, Cell()
    said = [f"{p['context']:,} tokens", f"{p['nodes']} nodes"]
    if p["requests"] != 1:
        said.append(f"{p['requests']} requests")
    if p["heads"] != centre.heads:
        said.append(f"{p['heads']} heads")
    if p["page_size"] != 1:
        said.append(f"page {p['page_size']}")
    for name in ("layout", "tree", "dtype", "geometry", "kv_dtype"):
        if p[name] != getattr(centre, name):
            said.append(str(p[name]))
    return ", ".join(said)


def show(console: Console, cases: Sequence[dict[str, Any]], baseline: str) -> None:
    """The table, then what is to be said about single cases."""
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    table.add_column("kernel", no_wrap=True)
    for name in ("run ms", "prepare+run", "graph ms", "GB/s", "TFLOP/s", "of the limit",
                 "binds", f"times {printable(baseline)}"):  # fmt: skip
        table.add_column(name, justify="left" if name == "of the limit" else "right", no_wrap=True)
    before = ""
    for case in cases:
        cell = words(case["parameters"])
        table.add_row("" if cell == before else printable(cell), *_row(case))
        before = cell
    show_table(console, table)
    for case in cases:
        said = [case["reason"]] if case["reason"] else []
        for text in [*said, *case.get("notes", [])]:
            style = STATUS_STYLE[case["status"]] if text in said else "dim"
            console.print(f"[{style}]{printable(case['id'])}: {printable(text)}[/]",
                          soft_wrap=True)  # fmt: skip


def _row(case: dict[str, Any]) -> list[str]:
    m, kernel = case["metrics"], printable(case["parameters"]["kernel"])
    if "gb_per_s" not in m:
        style = STATUS_STYLE[case["status"]]
        return [kernel, f"[{style}]{case['status']}[/]", *[""] * 7]
    faster = ""
    if "speedup" in m:
        style = VERDICT_STYLE[m["against_baseline"]]
        faster = f"[{style}]{m['speedup']:.2f}[/]" if style else f"{m['speedup']:.2f}"
    times = [_time(m, part) for part in ("run", "prepare_run", "graph")]
    share = m["limit_share"]
    return [
        kernel, *times, f"{m['gb_per_s']:,.0f}", f"{m['tflop_per_s']:,.0f}",
        f"{bar(share)} {share:6.1%}", m["binds"], faster,
    ]  # fmt: skip


def _time(metrics: dict[str, Any], part: str) -> str:
    middle = metrics.get(f"{part}_ms")
    return "" if middle is None else f"{middle:.4f}"


def show_roofline(console: Console, cells: Sequence[Cell], rates: Rates) -> None:
    """What no kernel can go below on each cell."""
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    for name in ("KV MB", "other MB", "GFLOP", "FLOP/byte", "memory ms", "arithmetic ms",
                 "limit ms", "binds"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        work = work_of(cell.case())
        least = limit(work, rates)
        table.add_row(
            words({n: getattr(cell, n) for n in ("dtype", "geometry", "kv_dtype", *AXES)}),
            f"{work.kv_bytes / 1e6:.2f}", f"{work.other_bytes / 1e6:.2f}",
            f"{work.flops / 1e9:.2f}", f"{work.flops_per_byte:.0f}", f"{least.memory_s * 1e3:.4f}",
            f"{least.arithmetic_s * 1e3:.4f}", f"{least.seconds * 1e3:.4f}", least.binds,
        )  # fmt: skip
    console.print(f"{rates.source}: {rates.gb_per_s:,.0f} GB/s, {rates.tflops:,.1f} TFLOP/s bf16; "
                  f"arithmetic binds above {rates.tflops * 1e3 / rates.gb_per_s:.0f} FLOP/byte",
                  soft_wrap=True)  # fmt: skip
    show_table(console, table)
    if any(cell.kv_dtype for cell in cells):
        console.print("a kernel that makes its products in fp8 has half the arithmetic time",
                      soft_wrap=True)  # fmt: skip


def write_csv(path: Path, cases: Sequence[dict[str, Any]]) -> None:
    """One line a case; figures that were not measured are empty.  Raises `RecordError` where it
    cannot be written."""
    try:
        file = StringIO(newline="")
        _write_rows(file, cases)
        write_whole(path, file.getvalue().encode(errors="backslashreplace"))
    except OSError as wrong:
        raise RecordError(f"{path} is not written: {why(wrong)}") from None


def _write_rows(file: TextIO, cases: Sequence[dict[str, Any]]) -> None:
    names = ["kernel", *(f for f in Cell.__dataclass_fields__)]
    writer = csv.writer(file)
    writer.writerow(["id", *names, "status", "reason", *FIGURES])
    for case in cases:
        p, m = case["parameters"], case["metrics"]
        row = [case["id"], *(p[n] for n in names), case["status"], case["reason"],
               *(m.get(f, "") for f in FIGURES)]  # fmt: skip
        writer.writerow([_no_formula(value) for value in row])


def _no_formula(value: Any) -> Any:
    """Spreadsheets would compute a text that begins so; names and reasons are others' text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
