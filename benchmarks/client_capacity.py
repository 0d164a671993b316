"""How many streams the sweep's own client can follow before it is the limit itself.

    python benchmarks/client_capacity.py --json results/cpu/client_capacity.json

The ground-truth server of the tests sends one token an event, 200 a second on each stream, from a
core of its own, and logs when; points of 1 to 64 streams are measured as a sweep measures them.
On a machine that others use, ``chrt -f 10`` before the command keeps them from both.
Both have the same monotonic clock.  The figures, all from events of one token:

gap error  what the client makes of the time between two events of a stream, less the server's own
lateness   from the server's send call to the client's stamp on the read
late sends  how far behind its script the server was: the limit of what this can tell
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for the tests' server

from tests.live.truth import Decode, Prefill, Scenario, TruthServer  # noqa: E402
from tests.live.truth.log import RequestLog  # noqa: E402

from verify_attn.live.chunk import Chunk  # noqa: E402
from verify_attn.live.client import Answer, Client, Limits  # noqa: E402
from verify_attn.live.points import Point  # noqa: E402
from verify_attn.live.session import Session  # noqa: E402
from verify_attn.live.settings import Settings, point_name  # noqa: E402
from verify_attn.live.sweep import Sweep  # noqa: E402
from verify_attn.live.target import Target  # noqa: E402
from verify_attn.record import new_record, write_record  # noqa: E402

STREAMS = (1, 8, 16, 32, 64)
STEP_S = 0.005
CONTEXT = 2048
# Long enough for all scripts to be written before the first send; shorter prompts are quick.
PREFILL = Prefill(cliff_at=1500, cliff=120.0)
GOAL_MS = 1.0  # the median gap error at 64 streams
COLUMNS = (
    ("events/s", "events_per_s", "{:,.0f}"),
    ("CPU", "cpu_share", "{:.0%}"),
    ("us/event", "cpu_us_per_event", "{:.0f}"),
    ("gap error ms", "gap_error_ms_p50", "{:.3f}"),
    ("p90", "gap_error_ms_p90", "{:.3f}"),
    ("p99", "gap_error_ms_p99", "{:.3f}"),
    ("lateness ms", "lateness_ms_p50", "{:.3f}"),
    ("p99", "lateness_ms_p99", "{:.3f}"),
    ("late sends ms", "late_sends_ms_p50", "{:.3f}"),
    ("p99", "late_sends_ms_p99", "{:.3f}"),
    ("server gap error ms", "server_gap_error_ms_p50", "{:.3f}"),
)

Ints = npt.NDArray[np.int64]


class TimedClient(Client):
    """Notes the CPU and wall time from the first request's start to the last one's end."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.began: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)

    async def stream(
        self,
        path: str,
        body: dict[str, Any],
        limits: Limits,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> Answer:
        """As ever."""
        self.began = self.began or _clocks()
        answer = await super().stream(path, body, limits, on_chunk)
        if body["max_tokens"] > 1:  # not the health check after a point
            self.ended = _clocks()
        return answer


def _clocks() -> tuple[float, float]:
    return time.process_time(), time.monotonic()


async def measure(url: str, streams: int, tokens: int) -> tuple[list[Answer], TimedClient]:
    """One round of one point, as a sweep does it."""
    settings = Settings(
        contexts=(CONTEXT,), concurrency=(streams,), max_tokens=tokens, endpoint="completions",
        keep_reads=True,
    )  # fmt: skip
    client = TimedClient(Target.parse(url))
    session = await Session.open(client, settings)
    sweep = Sweep(session)
    client.began = None
    point = Point(CONTEXT, streams, point_name(CONTEXT, streams))
    await sweep.measure(point)
    if point.error or point.died or point.skipped:
        raise SystemExit(f"{point.name}: {point.error or point.died or point.skipped}")
    return [answer for _, answer in sweep.answers], client


def one_round(streams: int, tokens: int) -> dict[str, float]:
    """Serve and measure once; times in milliseconds."""
    scenario = Scenario(decode=Decode(step_s=STEP_S), prefill=PREFILL)
    with TruthServer(scenario, spin=False) as server:
        answers, client = asyncio.run(measure(server.url, streams, tokens))
        logs = server.generations()
    pairs = [(answer, _log_of(answer, logs)) for answer in answers]
    read = [_token_reads(answer) for answer, _ in pairs]
    sent = [np.array([s.at_ns for s in log.token_sends]) for _, log in pairs]
    due = [np.array([s.due_ns for s in log.token_sends]) for _, log in pairs]
    gap_errors = [np.abs(np.diff(r) - np.diff(s)) for r, s in zip(read, sent, strict=True)]
    server_errors = [np.abs(np.diff(s) - np.diff(d)) for s, d in zip(sent, due, strict=True)]
    assert client.began is not None
    cpu, wall = (end - start for start, end in zip(client.began, client.ended, strict=True))
    # Only while all streams run is the load what it is meant to be.
    together = (min(r[-1] for r in read) - max(r[0] for r in read)) / 1e9
    events = sum(int(((r >= max(q[0] for q in read)) & (r <= min(q[-1] for q in read))).sum())
                 for r in read)  # fmt: skip
    all_events = sum(len(r) for r in read)
    return {
        "events": float(all_events),
        "events_per_s": float(events / together),
        "cpu_share": cpu / wall,
        "cpu_us_per_event": cpu / all_events * 1e6,
        **_quantiles("gap_error_ms", gap_errors),
        **_quantiles("lateness_ms", [r - s for r, s in zip(read, sent, strict=True)]),
        **_quantiles("late_sends_ms", [s - d for s, d in zip(sent, due, strict=True)]),
        **_quantiles("server_gap_error_ms", server_errors),
    }


def _log_of(answer: Answer, logs: list[RequestLog]) -> RequestLog:
    (found,) = (log for log in logs if log.body == answer.request)
    return found


def _token_reads(answer: Answer) -> Ints:
    stamps = [r.t_ns for r in answer.stream.reads for c in r.chunks if c.text_chars]
    return np.array(stamps, dtype=np.int64)


def _quantiles(name: str, values_ns: list[Ints]) -> dict[str, float]:
    found = np.quantile(np.concatenate(values_ns) / 1e6, [0.5, 0.9, 0.99])
    return {f"{name}_p{q}": float(v) for q, v in zip((50, 90, 99), found, strict=True)}


def case_of(streams: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The medians of the rounds, and the rounds."""
    metrics = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    error = metrics["gap_error_ms_p50"]
    holds = error < GOAL_MS
    return {
        "id": f"streams={streams}",
        "parameters": {"streams": streams, "step_ms": STEP_S * 1e3, "tokens_an_event": 1},
        "status": "pass" if holds else "fail",
        "reason": f"median gap error {error:.3g} ms, the limit is {GOAL_MS:g} ms",
        "metrics": metrics,
        "rounds": rounds,
    }


def scheduling() -> str:
    """Which processes go before this one."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        return f"real time, priority {os.sched_getparam(0).sched_priority}"
    return f"like all others, niceness {os.getpriority(os.PRIO_PROCESS, 0)}"


def show(console: Console, cases: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("streams", *(head for head, _, _ in COLUMNS), "status"):
        table.add_column(head, justify="right")
    for case in cases:
        cells = [form.format(case["metrics"][name]) for _, name, form in COLUMNS]
        table.add_row(str(case["parameters"]["streams"]), *cells, case["status"])
    console.print(table)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--streams", "counts", type=click.IntRange(1, 64), multiple=True, default=STREAMS,
              show_default=True)  # fmt: skip
@click.option("--tokens", type=click.IntRange(20), default=2000, show_default=True,
              help="Events of each stream, 5 ms apart.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="Of each number of streams; the figures are the medians.")  # fmt: skip
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path))
def main(counts: tuple[int, ...], tokens: int, rounds: int, path: Path | None) -> None:
    """Measure every number of streams, round after round; 1 where the limit is missed."""
    command = ["python", "benchmarks/client_capacity.py", *sys.argv[1:]]
    record = new_record(command)
    found: dict[int, list[dict[str, float]]] = {streams: [] for streams in counts}
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=terminal, disable=not terminal.is_terminal) as bars:
        bar = bars.add_task("", total=rounds * len(found))
        for _ in range(rounds):
            for streams in found:
                bars.update(bar, description=f"{streams} streams")
                found[streams].append(one_round(streams, tokens))
                bars.advance(bar)
    record["scheduling"] = scheduling()
    record["cases"] = [case_of(streams, rounds_) for streams, rounds_ in found.items()]
    if path is not None:
        write_record(path, record)
    show(Console(width=None if sys.stdout.isatty() else 160), record["cases"])
    sys.exit(any(case["status"] != "pass" for case in record["cases"]))


if __name__ == "__main__":
    main()
