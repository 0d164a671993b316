"""What `verify-attn bench` and `verify-attn roofline` do around `perf`: inputs, progress, exits."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verify_attn.bench_asked import Asked as Asked
from verify_attn.bench_asked import ask as ask
from verify_attn.bench_asked import asked_cells as asked_cells
from verify_attn.hardware import GPUS, HardwareError, gpu_model
from verify_attn.kernels.base import KernelError, VerifyKernel
from verify_attn.kernels.registry import load
from verify_attn.perf.axes import Cell
from verify_attn.perf.bench import CELL_S, LEAST_ROUNDS, Bench
from verify_attn.perf.case import failed_record
from verify_attn.perf.device import TimerError
from verify_attn.perf.projection_record import ProjectionError
from verify_attn.perf.projection_show import (
    TARGET,
    projection_here,
    read_projection,
    set_beside,
    show_against,
    show_projection,
)
from verify_attn.perf.roofline import Rates
from verify_attn.perf.show import show, show_roofline, write_csv
from verify_attn.perf.subject import own_cell
from verify_attn.record import (
    FAILED,
    INCONCLUSIVE,
    INTERRUPTED,
    PASSED,
    RecordError,
    check_writable,
    exit_code,
    new_record,
    write_record,
)
from verify_attn.terminal import error, output, printable, terminate_like_interrupt

DEFAULT_GPU = next(iter(GPUS))
CHECK_S = 3.0  # assumed for the plan: to compile a kernel and to check it on a cell
Record = dict[str, Any]


def sheet_rates(gpu: str) -> Rates:
    """A data sheet's peaks; raises `HardwareError`."""
    model = gpu_model(gpu)
    return Rates(model.gb_per_s, model.tflops, f"{model.name} by its data sheet ({model.source})")


def show_default(console: Console, gpu: str | None) -> None:
    """Whose figures follow where nobody said: they are not this machine's."""
    if gpu is None:
        console.print(f"for {DEFAULT_GPU}, as no --gpu was given; there are: {', '.join(GPUS)}")


def run_roofline(gpu: str | None, chosen: Sequence[Cell]) -> int:
    """Print what no kernel can go below, with no GPU; None: for `DEFAULT_GPU`, and that is said."""
    try:
        rates = sheet_rates(gpu or DEFAULT_GPU)
    except HardwareError as wrong:
        return error(str(wrong))
    console = output()
    show_default(console, gpu)
    show_roofline(console, chosen, rates)
    return PASSED


def run_projection(gpu: str | None, path: Path, chosen: Sequence[Cell] | None) -> int:
    """Print times projected to ``gpu`` from a bench record, with no GPU; None: `TARGET`."""
    try:
        projection = read_projection(path, gpu_model(gpu or TARGET).name)
    except (HardwareError, ProjectionError) as wrong:
        return error(str(wrong))
    return PASSED if show_projection(output(), projection, chosen) else INCONCLUSIVE


def run_bench(asked: Asked, gpu: str | None, dry_run: bool) -> int:
    """Measure, print, write; returns the exit code."""
    import torch

    for path in (asked.record, asked.csv):
        if path is not None:
            try:
                check_writable(path)
            except RecordError as wrong:
                return error(str(wrong))
    console, here = output(), torch.cuda.is_available()
    for name, reason in asked.left_out.items():
        console.print(printable(f"left out {name}: {reason}"), style="dim", soft_wrap=True)
    count = len(asked.cells) * len(asked.kernels)
    if dry_run or not here:
        try:
            gpu = gpu or _sheet_here(here)
            rates = sheet_rates(gpu or DEFAULT_GPU)
        except HardwareError as wrong:
            return error(str(wrong))
        show_default(console, gpu)
        show_roofline(console, asked.cells, rates)
        console.print(printable(_plan(asked)), soft_wrap=True)
        if asked.project is not None:
            try:
                read_projection(asked.project, gpu_model(TARGET).name)
            except ProjectionError as wrong:
                return error(str(wrong))
            said = "--project: nothing is measured to set beside it; roofline --project shows it"
            console.print(said, soft_wrap=True)
        if not here:
            unwritten = [str(p) for p in (asked.record, asked.csv) if p is not None]
            told = f"; {' and '.join(unwritten)} not written" if unwritten else ""
            console.print(
                f"no GPU here: nothing was timed{printable(told)}", style="yellow", soft_wrap=True
            )
        return PASSED if dry_run else INCONCLUSIVE
    console.print(printable(_plan(asked)), soft_wrap=True)
    try:
        kernels = {name: load(name) for name in asked.kernels}
    except KernelError as wrong:
        return error(str(wrong))
    with _progress(count) as (watch, advance), terminate_like_interrupt():
        return _measure(asked, kernels, console, watch, advance)


def _sheet_here(here: bool) -> str | None:
    from verify_attn.environment import gpus
    from verify_attn.perf.ceilings import sheet_of

    found = gpus() if here else []
    sheet = sheet_of(found[0].name) if found else None
    return None if sheet is None else sheet.name


def _plan(asked: Asked) -> str:
    seconds = len(asked.cells) * (CELL_S + CHECK_S * len(asked.kernels))
    return (
        f"{len(asked.cells)} cells, {', '.join(asked.kernels)}: at most about "
        f"{seconds / 60:.0f} min on the GPU ({CELL_S:g} s of timing a cell once each kernel has "
        f"its {LEAST_ROUNDS} samples, and some {CHECK_S:g} s to compile and check each kernel)"
    )


def _measure(
    asked: Asked,
    kernels: dict[str, VerifyKernel],
    console: Console,
    watch: Callable[[str], None],
    advance: Callable[[int], None],
) -> int:
    from verify_attn.perf.ceilings import ceilings, self_test, sheet_of
    from verify_attn.perf.cuda_device import CudaDevice

    record, interrupted = new_record(["verify-attn", *sys.argv[1:]]), False
    try:
        device = CudaDevice()
        projection, about = projection_here(device.identity()["name"], asked.project)
        watch("the timers against the host's clock")
        tested = self_test(device, sheet_of(device.identity()["name"]))
        watch("the ceilings")
        top = ceilings(device)
    except ProjectionError as wrong:
        return error(str(wrong))
    except TimerError as wrong:
        return error(f"no time can be believed here: {wrong}", INCONCLUSIVE)
    record["environment"]["bench"] = {
        "identity": device.identity(), "self_test": tested, "ceilings": top.as_record(),
        "baseline": asked.baseline, "left_out": asked.left_out, **about,
    }  # fmt: skip
    console.print(f"{device.identity()['name']}: {top.rates.gb_per_s:,.0f} GB/s, "
                  f"{top.rates.tflops:,.0f} TFLOP/s bf16, {top.rates.source}",
                  soft_wrap=True)  # fmt: skip
    with _watchdog(asked, record, kernels, watch) as told:
        bench = Bench(
            device, kernels, asked.cells, top.rates, timers=asked.timers,
            baseline=asked.baseline, watch=told,
        )  # fmt: skip
        try:
            for measured in bench.cases():
                if projection is not None:
                    set_beside(projection, measured)
                record["cases"] += measured
                if asked.record is not None:
                    write_record(asked.record, record)
                advance(len(kernels))
        except KeyboardInterrupt:
            interrupted = True
        except RecordError as wrong:
            finish(asked, record, console, False)  # what can still be shown and written
            return error(str(wrong))
    return finish(asked, record, console, interrupted)


def finish(asked: Asked, record: Record, console: Console, interrupted: bool) -> int:
    """Write what was measured, show it, and say with which code to end."""
    if interrupted and not record["cases"]:
        console.print("interrupted before anything was measured: nothing is written")
        return INTERRUPTED
    unwritten = []
    to_record, to_csv = (
        partial(write_record, record=record),
        partial(write_csv, cases=record["cases"]),
    )
    for path, write in ((asked.record, to_record), (asked.csv, to_csv)):
        try:
            if path is not None:
                write(path)
        except (RecordError, OSError) as wrong:
            unwritten.append(str(wrong))  # what was measured is still shown
    show(console, record["cases"], asked.baseline)
    show_against(console, record)
    lost = max([0, *map(error, unwritten)])
    if interrupted:
        kept = f"; what was measured is in {asked.record}" if asked.record and not lost else ""
        console.print(printable(f"interrupted{kept}"), soft_wrap=True)
    return lost if lost and not interrupted else exit_code(record["cases"], interrupted)


@contextmanager
def _watchdog(
    asked: Asked, record: Record, kernels: dict[str, VerifyKernel], watch: Callable[[str], None]
) -> Iterator[Callable[[str, str, str], None]]:
    """A kernel that hangs holds the process in the driver: only leaving it ends that.

    Every step that is told gets the time limit; past it, what was measured is written and shown,
    and the process ends with 1.
    """
    step, since, over = ("", "", ""), time.monotonic(), threading.Event()

    def told(cell: str, doing: str, kernel: str) -> None:
        nonlocal step, since
        since = time.monotonic()
        if (cell, doing, kernel) != step:
            step = cell, doing, kernel
            watch(f"{cell}: {doing} {kernel}")

    def look() -> None:
        while not over.wait(0.5):
            if step[0] and time.monotonic() - since > asked.time_limit_s:
                whole = next(c for c in asked.cells if c.id == step[0])
                cell = own_cell(kernels[step[2]], whole)
                reason = f"{step[1]} took longer than --time-limit {asked.time_limit_s:g} s"
                record["cases"].append(failed_record(step[2], cell, "error", reason))
                with suppress(Exception):
                    finish(asked, record, output(), False)
                sys.stdout.flush()
                os._exit(FAILED)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield told
    finally:
        over.set()


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """A bar over cells and kernels with what is being done; nothing in a pipe."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim"),
    )  # fmt: skip
    console = Console(stderr=True, emoji=False)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task("bench", total=total, now="")
        yield (
            lambda step: bars.update(bar, now=printable(step)),
            lambda count: bars.advance(bar, count),
        )
