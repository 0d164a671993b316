"""`verify-attn compile`: what the built-in kernels take on an architecture, with no GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from verify_attn.kernels import cuda_gate
from verify_attn.kernels.compiled import (
    Compiled,
    CompilerError,
    compile_kernels,
    default_settings,
)
from verify_attn.kernels.cuda_gate import Gated
from verify_attn.kernels.nvrtc import ToolchainError
from verify_attn.kernels.resources import ArchitectureError, limits_of
from verify_attn.record import (
    FAILED,
    INCONCLUSIVE,
    PASSED,
    RecordError,
    check_writable,
    new_record,
    write_record,
)
from verify_attn.terminal import (
    error,
    output,
    printable,
    show_table,
    terminate_like_interrupt,
)

TRITON = ("triton-unsplit", "triton-split")
KERNELS = (*TRITON, cuda_gate.KERNEL)


def run_compile(
    archs: Sequence[str], kernels: Sequence[str] = (), record: Path | None = None
) -> int:
    """`verify-attn compile`; returns the exit code.

    ``kernels``: names out of `KERNELS`; none: all, and then a `sm120` that cannot be compiled here
    is skipped and said to be, while one that was asked for by name is an error.  An architecture
    that it is not written for skips it either way.
    """
    console = output()
    results: list[Compiled | Gated] = []
    skipped: dict[str, str] = {}
    try:
        if record is not None:
            check_writable(record)
        archs = list(dict.fromkeys(archs))
        for arch in archs:
            limits_of(arch)
        with _progress() as bars, terminate_like_interrupt():
            for arch in archs:
                results += _triton(arch, kernels, bars)
                if not kernels or cuda_gate.KERNEL in kernels:
                    _cuda(arch, results, skipped, bars, asked=cuda_gate.KERNEL in kernels)
        if record is not None:  # first: whoever reads the table may close the pipe
            write_record(record, _record(results, skipped))
        _show(console, results, skipped)
    except (ArchitectureError, CompilerError, ToolchainError, RecordError) as wrong:
        return error(str(wrong))
    if not results:
        return INCONCLUSIVE
    return FAILED if any(result.problems for result in results) else PASSED


def _progress() -> Progress:
    stderr = Console(stderr=True, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=stderr, disable=not stderr.is_terminal)


def _triton(arch: str, kernels: Sequence[str], bars: Progress) -> list[Compiled]:
    settings = [s for s in default_settings() if not kernels or s.kernel in kernels]
    if not settings:
        return []
    bar = bars.add_task(f"Triton {arch}", total=None)

    def step(done: int, total: int, _: Compiled) -> None:
        bars.update(bar, completed=done, total=total)

    return compile_kernels(arch, settings, progress=step)


def _cuda(
    arch: str,
    results: list[Compiled | Gated],
    skipped: dict[str, str],
    bars: Progress,
    *,
    asked: bool,
) -> None:
    units = cuda_gate.units_of(arch)
    if not units:
        archs = ", ".join(cuda_gate.ARCHITECTURES)
        skipped[f"{arch}/{cuda_gate.KERNEL}"] = f"written for {archs} only"
        return
    bar = bars.add_task(f"{cuda_gate.KERNEL} {arch}", total=None)

    def step(done: int, total: int, _: Gated) -> None:
        bars.update(bar, completed=done, total=total)

    try:
        results += cuda_gate.gate(units, arch, progress=step)
    except ToolchainError as wrong:
        if asked:
            raise
        skipped[f"{arch}/{cuda_gate.KERNEL}"] = str(wrong)


def _show(console: Console, results: Sequence[Compiled | Gated], skipped: dict[str, str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("arch")
    table.add_column("configuration", no_wrap=True)
    for head in ("shared bytes", "registers", "spilled bytes", "blocks/SM", "warps/SM"):
        table.add_column(head, justify="right")
    for result in results:
        table.add_row(result.arch, escape(result.label), *_cells(result))
    if results:
        show_table(console, table)
    for name, reason in skipped.items():
        console.print(f"skipped {escape(name)}: {printable(reason)}", style="dim", soft_wrap=True)
    notes = [note for r in results if isinstance(r, Gated) for note in r.notes]
    for note in dict.fromkeys(notes):
        console.print(printable(note), style="dim", soft_wrap=True)
    for result in results:
        for problem in result.problems:
            where = f"{result.arch} {result.label}"
            console.print(
                f"[bold red]over[/bold red] {escape(where)}: {printable(problem)}", soft_wrap=True
            )
    by = ", ".join(dict.fromkeys(r.compiler for r in results if r.compiler))
    if by:
        console.print(f"compiled by {escape(by)}; static figures, nothing was run")


def _cells(result: Compiled | Gated) -> list[str]:
    resources, fits = result.resources, result.occupancy
    if resources is None or fits is None:
        return ["-"] * 5
    return [
        f"{resources.shared:,}", str(resources.registers), f"{resources.spills:,}",
        str(fits.blocks), str(fits.warps),
    ]  # fmt: skip


def _record(results: Sequence[Compiled | Gated], skipped: dict[str, str]) -> dict[str, Any]:
    record = new_record(["verify-attn", *sys.argv[1:]])
    for result in results:
        record["cases"].append({
            "id": f"{result.arch}/{result.label}",
            "parameters": {
                "arch": result.arch, "function": result.function, "compiler": result.compiler,
            },
            "status": "fail" if result.problems else "pass",
            "reason": "; ".join(result.problems) or None,
            "metrics": _metrics(result),
        })  # fmt: skip
    for name, reason in skipped.items():
        record["cases"].append({
            "id": name, "parameters": {"arch": name.partition("/")[0]}, "status": "skipped",
            "reason": reason, "metrics": {},
        })  # fmt: skip
    return record


def _metrics(result: Compiled | Gated) -> dict[str, Any]:
    """What the compiler said; ``sass`` only where a disassembler read it."""
    metrics: dict[str, Any] = {}
    if result.resources is not None:
        metrics |= asdict(result.resources)
    if result.occupancy is not None:
        metrics["occupancy"] = asdict(result.occupancy)
    if isinstance(result, Gated) and result.sass is not None:
        metrics["sass"] = result.sass
    return metrics
