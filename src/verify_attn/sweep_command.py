"""What `verify-attn sweep` does around `live.run`: inputs, progress, exit codes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verify_attn.geometry import LAYERS, GeometryError, preset
from verify_attn.hardware import HardwareError, gpu_model
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import LogTail
from verify_attn.live.floors import FloorError, read_floors
from verify_attn.live.limit import KvRead
from verify_attn.live.requests import RequestError, recorded_request
from verify_attn.live.run import Run
from verify_attn.live.saved import read_saved
from verify_attn.live.session import Dead, Unusable
from verify_attn.live.settings import Settings, SettingsError, expected_s, point_name
from verify_attn.live.show import show
from verify_attn.live.sweep import Progress as Now
from verify_attn.live.target import Target, TargetError
from verify_attn.record import (
    BAD_USAGE,
    INTERRUPTED,
    PASSED,
    SERVER_DEAD,
    RecordError,
    check_writable,
    exit_code,
    write_record,
)
from verify_attn.terminal import error, output, printable, terminate_like_interrupt

API_KEY = "VERIFY_ATTN_API_KEY"
KV_BYTES = {"bf16": 2, "fp8": 1}


def kv_read(geometry: str | None, gpu: str | None, kv_dtype: str) -> KvRead | None:
    """What a step reads, for judging a slope; raises ValueError for half an answer."""
    if geometry is None and gpu is None:
        return None
    if geometry is None or gpu is None:
        raise SettingsError("--geometry and --gpu go together: bytes to read, and how fast")
    if geometry.isdecimal() and gpu.replace(".", "", 1).isdecimal():
        if int(geometry) < 1 or float(gpu) <= 0:
            raise SettingsError("--geometry BYTES and --gpu GB/S must be above 0")
        return KvRead(int(geometry), float(gpu), f"{int(geometry):,} bytes a token, as given")
    layers = LAYERS.get(geometry)
    shape = preset(geometry)
    if layers is None:
        raise SettingsError(
            f"--geometry {geometry} is no whole model; give one of {', '.join(LAYERS)}"
        )
    model = gpu_model(gpu)
    return KvRead(
        shape.row_bytes(KV_BYTES[kv_dtype]) * layers, model.gb_per_s,
        f"{geometry}, {kv_dtype} KV, {model.source}",
        # Scores over latent and rope, values over the latent; a product and a sum each.
        2 * layers * shape.heads * (shape.qk_dim + shape.latent_dim), model.tflops,
    )  # fmt: skip


def prepare(
    url: str,
    settings: Settings,
    *,
    request: Path | None = None,
    geometry: str | None = None,
    gpu: str | None = None,
    kv_dtype: str = "bf16",
) -> Run:
    """A run that is ready to go; raises ValueError for any bad input, before anything is sent."""
    if request is not None:
        endpoint, body = recorded_request(request)
        if settings.endpoint not in (None, endpoint):
            raise RequestError(f"--request {request} is for {endpoint}, not {settings.endpoint}")
        settings = replace(settings, request=body, endpoint=endpoint)
    if settings.log is not None and not settings.log.startswith("journal:"):
        tail = LogTail.open(settings.log)
        if isinstance(tail, Absent):
            raise SettingsError(f"--log {settings.log}: {tail.reason}")
        tail.close()
    return Run(
        Target.parse(url, os.environ.get(API_KEY)),
        settings,
        floors=[] if settings.floors is None else read_floors(settings.floors),
        saved=None if settings.against is None else read_saved(settings.against),
        kv=kv_read(geometry, gpu, kv_dtype),
    )


BAD_INPUT = (
    TargetError, SettingsError, RequestError, FloorError, RecordError, GeometryError, HardwareError
)  # fmt: skip


def run_sweep(run: Run, record: Path | None) -> int:
    """Measure, print, write the record; returns the exit code."""
    console = output()
    interrupted = False
    try:
        if record is not None:
            check_writable(record)
        with _progress(run) as watch, terminate_like_interrupt():
            asyncio.run(run.go(watch))
    except RecordError as wrong:
        return error(str(wrong))
    except Unusable as wrong:
        return error(run.target.scrub(str(wrong)))
    except Dead as wrong:
        return error(run.target.scrub(str(wrong)), SERVER_DEAD)
    except KeyboardInterrupt:
        interrupted = True
        run.interrupt()
    found = run.record(["verify-attn", *sys.argv[1:]])
    unwritten = None
    if interrupted and not any(map(_measured, found["cases"])):
        console.print("interrupted before anything was measured: nothing is written")
        return INTERRUPTED
    if record is not None:
        try:
            write_record(record, found)
        except RecordError as wrong:
            unwritten = str(wrong)  # what was measured is still shown
    show(console, found)
    if unwritten is not None:
        return error(unwritten, INTERRUPTED if interrupted else BAD_USAGE)
    if interrupted:
        kept = f"; what was measured is in {record}" if record else ""
        console.print(f"interrupted{escape(kept)}", soft_wrap=True)
    if run.died and not interrupted:
        return SERVER_DEAD
    return exit_code(found["cases"], interrupted)


def _measured(case: dict[str, Any]) -> bool:
    return bool(case["metrics"]) or case["status"] in ("fail", "error")


def show_plan(run: Run) -> int:
    """`--dry-run`: the points and about how long they take; sends nothing."""
    console, settings = output(), run.settings
    total = 0.0
    console.print(f"{printable(run.target.root)}, {settings.max_tokens:,} tokens a point, "
                  f"{settings.corpus} text", soft_wrap=True)  # fmt: skip
    for context, streams in settings.points():
        seconds = settings.repeats * expected_s(
            context, streams, settings.max_tokens, settings.decode_limit_s
        )
        limits = [
            f"{at:.4g} {floor.unit}" + (f" for models {floor.model}" if floor.model != "*" else "")
            for floor in run.floors
            if (settings.model is None or floor.holds_for(settings.model, streams))
            and floor.concurrency == streams and (at := floor.at(context)) is not None
        ]  # fmt: skip
        held = f", floors: {', '.join(limits)}" if limits else ""
        if run.floors and not limits:
            held = ", no floor holds here"
        line = f"  {point_name(context, streams)}: about {seconds:,.0f} s{held}"
        console.print(printable(line), soft_wrap=True)
        total += seconds
    console.print(
        f"about {total:,.0f} s in all at an assumed 2,000 prefill and 50 decode tok/s; "
        f"at most {settings.decode_limit_s:g} s of decoding a point and repeat; undecided points "
        f"are repeated until {settings.budget_s:g} s have passed",
        soft_wrap=True,
    )
    return PASSED


@contextmanager
def _progress(run: Run) -> Iterator[Callable[[Now], None]]:
    """A bar over the points with what the current one is doing; nothing in a pipe."""
    console = Console(stderr=True, emoji=False)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="dim"),
    )  # fmt: skip
    points = run.settings.points()
    names = [point_name(*point) for point in points]
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        bar = bars.add_task("sweep", total=len(points), now="")

        def watch(now: Now) -> None:
            done = names.index(now.point) if now.point in names else 0
            tokens = f", {now.tokens} tokens" if now.tokens else ""
            bars.update(bar, completed=done, now=escape(f"{now.point}: {now.phase}{tokens}"))

        yield watch
        bars.update(bar, completed=len(points), now="")
