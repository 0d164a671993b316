"""Projections on the terminal and in a record: always under their name, never as times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from verify_attn.hardware import sheet_of
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection import MARK, Projection
from verify_attn.perf.projection_chips import CHIPS
from verify_attn.perf.projection_record import TIME, ProjectionError, cell_of
from verify_attn.perf.show import words
from verify_attn.record import RecordError, parse_record, read_record
from verify_attn.terminal import printable, show_table

# What benchmarks/project_floors.py keeps of the H200's record, in the package.
BUILT_IN = "perf/data/h200.json"
TARGET = "rtx-pro-6000"  # where none is named


def read_projection(path: Path | None, gpu: str) -> Projection:
    """To ``gpu``, from a record of bench or the one in the package; raises `ProjectionError`."""
    try:
        if path is not None:
            return Projection.from_record(read_record(path), gpu)
        kept = files("verify_attn").joinpath(BUILT_IN)
        if not kept.is_file():
            raise ProjectionError(
                "this version has no times to project from; give a record of bench with --project"
            )
        return Projection.from_record(parse_record(kept.read_text(), BUILT_IN), gpu)
    except RecordError as wrong:
        raise ProjectionError(str(wrong)) from None


def projection_here(name: str, path: Path | None) -> tuple[Projection | None, dict[str, Any]]:
    """To the GPU that the driver calls ``name``, and what the record says of it.

    None where nothing is projected to such a GPU, then with nothing said, or where this version has
    no times to project from, with the reason.  Raises `ProjectionError` for a named ``path`` that
    is of no use here.
    """
    sheet = sheet_of(name)
    if sheet is None or sheet.name not in CHIPS or CHIPS[sheet.name].sustained is None:
        if path is not None:
            names = ", ".join(n for n, chip in CHIPS.items() if chip.sustained)
            raise ProjectionError(f"--project: this is {name}; projections are to {names}")
        return None, {}
    try:
        projection = read_projection(path, sheet.name)
    except ProjectionError as wrong:
        if path is not None:
            raise
        return None, {"projection": {"reason": str(wrong)}}
    return projection, {"projection": projection.as_record()}


def set_beside(projection: Projection, cases: Sequence[dict[str, Any]]) -> None:
    """Each case's projection beside its metrics, with what was measured over it."""
    for case in cases:
        found = projection.project(case["parameters"]["kernel"], cell_of(case["parameters"]))
        if isinstance(found, str):
            continue
        case["projected"] = found.as_record()
        measured = case["metrics"].get(TIME)
        if measured is not None:
            case["projected"] |= {
                "measured_over_projected": measured / found.ms,
                "within": found.low_ms <= measured <= found.high_ms,
            }


def show_against(console: Console, record: Mapping[str, Any]) -> None:
    """Measured against projected, and what the projection takes for true; from the record alone."""
    about = record.get("environment", {}).get("bench", {}).get("projection")
    if about is None:
        return
    if "reason" in about:
        console.print(f"no projection: {printable(about['reason'])}", soft_wrap=True)
        return
    console.print(f"{MARK}: {_origin(about)}", soft_wrap=True)
    having = [case for case in record["cases"] if "projected" in case]
    if not having:
        console.print("no cell here has a projection", style="yellow")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    table.add_column("kernel", no_wrap=True)
    for name in ("measured ms", "projected ms", "low", "high", "measured/projected", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for case in having:
        p, measured = case["projected"], case["metrics"].get(TIME)
        seen = ["", "", ""]
        if measured is not None:
            inside = "within" if p["within"] else "[yellow]outside[/]"
            seen = [f"{measured:.4f}", f"{p['measured_over_projected']:.2f}", inside]
        table.add_row(
            printable(words(case["parameters"])), printable(case["parameters"]["kernel"]), seen[0],
            f"{p['ms']:.4f}", f"{p['low_ms']:.4f}", f"{p['high_ms']:.4f}", seen[1], seen[2],
        )  # fmt: skip
    show_table(console, table)
    _show_assumptions(console, about["assumptions"])


def show_projection(console: Console, projection: Projection, cells: Sequence[Cell] | None) -> int:
    """Projected times; ``cells`` None: all that the record has.  Returns how many there are."""
    about = projection.as_record()
    console.print(f"{MARK}: {_origin(about)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    for name in ("kernel", f"{projection.source.gpu} ms", "binds there", "efficiency", "fixed ms",
                 "projected ms", "low", "high", "binds", "blocks", "waves"):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    kernels = list(dict.fromkeys(kernel for kernel, _ in projection.cases))
    chosen = cells if cells is not None else list(dict.fromkeys(c for _, c in projection.cases))
    absent = 0
    for cell in chosen:
        for kernel in kernels:
            p = projection.project(kernel, cell)
            if isinstance(p, str):
                absent += 1
                continue
            table.add_row(
                words(vars(cell)), printable(kernel), f"{p.source_ms:.4f}", p.source_binds,
                f"{p.efficiency:.0%}", f"{p.fixed_ms:.4f}", f"{p.ms:.4f}", f"{p.low_ms:.4f}",
                f"{p.high_ms:.4f}", p.binds, str(p.blocks), str(p.waves),
            )  # fmt: skip
    show_table(console, table)
    if absent:
        console.print(
            f"{absent} cells have no projection: not measured on {projection.source_sheet.name}",
            style="yellow",
        )
    _show_assumptions(console, about["assumptions"])
    return table.row_count


def _origin(about: Mapping[str, Any]) -> str:
    return printable(
        f"times on {about['target']} from those on {about['source']} ({about['command']})"
    )


def _show_assumptions(console: Console, assumptions: Sequence[Mapping[str, Any]]) -> None:
    console.print("what it takes for true, at the slow end, between, and at the fast end:")
    for a in assumptions:
        values = list(dict.fromkeys(f"{a[end]:,.4g}" for end in ("slow", "central", "fast")))
        if len(values) > 1:
            values = [f"{a[end]:,.4g}" for end in ("slow", "central", "fast")]
        told = f"{a['id']} = {' / '.join(values)}: {a['text']} ({a['source']})"
        console.print(f"  {printable(told)}", soft_wrap=True)
