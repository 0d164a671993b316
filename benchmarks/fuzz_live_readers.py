"""Throw broken answers of live servers at everything that reads them.

python benchmarks/fuzz_live_readers.py --cases 1000000 --json results/cpu/fuzz_live.json

Every case is made from recordings of real servers by a few random edits, or from nothing; a
reader may answer that it does not know, and may neither raise nor give a figure that is not
finite or is negative.  ``--seed 1 --only events:4711`` makes one case again.

A further target is a function of a `random.Random` with an entry in `TARGETS`.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the other targets

from benchmarks.fuzz_live_streams import decoder, stream
from benchmarks.mutations import DATA, DOCUMENTED, mutate_json, mutate_text

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    Own,
    Samples,
    cached_tokens,
    foreign_running,
    foreign_traffic,
    from_counters,
    from_events,
    from_server_info,
    parse_metrics,
    read_lines,
    server_timings,
)
from verify_attn.live.reply import Reply
from verify_attn.live.server import (
    context_overflow,
    error_message,
    error_status,
    redact,
)

LOG: list[str] = DOCUMENTED["log"]
MOST_FAILURES = 20


class Unsound(AssertionError):
    """A reader gave a figure that cannot be."""


def sound(found: Any) -> None:
    """Raise `Unsound` unless this is absent with a reason, or all its figures are possible."""
    if isinstance(found, Absent):
        if not found.reason:
            raise Unsound("absent without a reason")
        return
    if isinstance(found, Acceptance):
        json.dumps(found.as_metrics(), allow_nan=False)
        found = [
            *(found.steps, found.accepted_drafts, found.proposed_drafts, found.committed),
            *(found.committed_per_step, found.mean_committed, *(found.histogram or ())),
            *(*(found.accepted_per_position or ()), *(found.per_step or ())),
        ]
    elif isinstance(found, (int, float)):
        found = [found]
    else:
        found = [value for value in vars(found).values() if not isinstance(value, str)]
    bad = [v for v in found if v is not None and not (math.isfinite(v) and v >= 0)]
    if bad:
        raise Unsound(f"figures {bad}")


def _lines() -> list[str]:
    texts = [path.read_text() for path in sorted(DATA.glob("**/*metrics.txt"))]
    return [line for text in texts for line in text.splitlines()] + DOCUMENTED["metrics"]


def _events() -> list[Any]:
    found: list[Any] = list(DOCUMENTED["events"])
    for path in sorted((DATA / "recordings").glob("*.txt")):
        lines = path.read_text(errors="replace").splitlines()
        # The last events carry usage and timings; the others are all alike.
        found += [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-3:]
    return found


METRIC_LINES, RECORDED_EVENTS = _lines(), _events()
# The lines that the readers look for, engine by engine; a scrape of one engine is about one of
# these, since lines drawn from all of them are almost never a speculating server.
ENGINE_LINES = [
    [line for line in METRIC_LINES if line.startswith(prefix) and "bucket" not in line]
    for prefix in ("vllm:spec_decode_", "llamacpp:spec_decode_", "sglang:", "trtllm_")
]
VALUES = ("0", "1", "5", "60", "98", "212", "NaN", "+Inf", "-3", "1e308", "0.5", "9007199254740993")


def _scrape(rng: random.Random, engine: list[str], share: float) -> Samples | Absent:
    """A scrape with every counter at ``share`` of its recorded value, then spoilt a little."""
    lines = rng.choices(METRIC_LINES, k=rng.randrange(4)) if rng.random() < 0.3 else []
    for line in engine:
        if rng.random() < 0.97:
            name, _, value = line.rpartition(" ")
            # When a counter began stays, or every pair of scrapes would be a restart.
            scaled = value if "_created" in name else f"{math.floor(float(value) * share)}"
            lines.append(f"{name} {rng.choice(VALUES) if rng.random() < 0.02 else scaled}")
    text = rng.choice(("\n", "\n", "\r\n")).join(lines) + "\n"
    if rng.random() < 0.4:
        text = mutate_text(rng, text)
    kind = rng.choice(("text/plain", "text/plain", "application/openmetrics-text", ""))
    status = 404 if rng.random() < 0.02 else 200
    return parse_metrics(Reply(status, kind, _encoded(rng, text)))


def _encoded(rng: random.Random, text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    if rng.random() < 0.05:
        at = rng.randrange(len(raw) + 1)
        raw = raw[:at] + rng.randbytes(3) + raw[at:]
    return raw


def metrics(rng: random.Random) -> None:
    """Two scrapes, and everything that compares them."""
    engine = rng.choice(ENGINE_LINES)
    before, after = (
        _scrape(rng, engine, rng.choice((0, 0.5))),
        _scrape(rng, engine, rng.random() * 3),
    )
    sound(from_counters(before, after))
    for found in (
        foreign_traffic(before, after, Own(1, rng.randrange(500), 7, rng.randrange(99))),
        foreign_running(after, rng.randrange(3)),
    ):
        if isinstance(found, Absent):
            sound(found)
        elif found is not None:
            for excess in found.excesses:
                sound(excess.gained)


def logs(rng: random.Random) -> None:
    """A few log lines."""
    lines = [mutate_text(rng, rng.choice(LOG)) for _ in range(rng.randrange(1, 6))]
    found = read_lines(lines, own_running=rng.randrange(3))
    sound(found.acceptance)
    sound(found.cached_tokens)
    for line in (*found.decode, *found.prefill, *found.vllm):
        sound(line)


def events(rng: random.Random) -> None:
    """The events of one answer, and its error texts."""
    seeds = DOCUMENTED["events"] if rng.random() < 0.7 else RECORDED_EVENTS
    listed = [mutate_json(rng, rng.choice(seeds)) for _ in range(rng.randrange(1, 4))]
    sound(from_events(listed))
    sound(cached_tokens(listed))
    sound(server_timings(listed))
    for event in listed:
        sound(from_server_info(event))
        error_message(event)
        sound(error_status(rng.choice((200, 400)), event))
        context_overflow(rng.choice((200, 400)), event)
    context_overflow(400, mutate_text(rng, json.dumps(listed[0], default=str)))
    redact(listed)


TARGETS: dict[str, Callable[[random.Random], None]] = {
    "metrics": metrics,
    "logs": logs,
    "events": events,
    "decoder": decoder,
    "stream": stream,
}


def run_case(target: str, seed: int, case: int) -> str | None:
    """One case by its number; the failure in words, or None."""
    try:
        TARGETS[target](random.Random(f"{seed}:{target}:{case}"))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def fuzz(
    cases: int, seed: int, names: list[str], tick: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """``cases`` in all, the targets in turn; stops early at many failures or at Ctrl-C."""
    failures: list[dict[str, Any]] = []
    started, done, stopped = time.perf_counter(), 0, None
    try:
        for case in range(cases):
            target = names[case % len(names)]
            why = run_case(target, seed, case)
            done += 1
            if why is not None:
                failures.append({"target": target, "case": case, "error": why})
                if len(failures) == MOST_FAILURES:
                    stopped = f"{MOST_FAILURES} failures"
                    break
            if done % 500 == 0:
                tick(done)
    except KeyboardInterrupt:
        stopped = "interrupted"
    tick(done)
    return {
        "targets": names,
        "seed": seed,
        "cases": done,
        "seconds": round(time.perf_counter() - started, 3),
        "stopped": stopped,
        "failures": failures,
    }


@click.command()
@click.option("--cases", default=20_000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=1, show_default=True)
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)))
@click.option("--only", help="Run one case again, such as events:4711.")
@click.option("--json", "record", type=click.Path(path_type=Path), help="Write the result here.")
def main(
    cases: int, seed: int, targets: tuple[str, ...], only: str | None, record: Path | None
) -> None:
    """Fuzz the readers of live answers; ends in 1 where one failed, in 130 where interrupted."""
    if only:
        target, _, number = only.partition(":")
        if target not in TARGETS or not number.isdecimal():
            raise click.BadParameter(f"{only!r} is not TARGET:NUMBER; targets: {list(TARGETS)}")
        TARGETS[target](random.Random(f"{seed}:{target}:{int(number)}"))
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("cases", total=cases)
        result = fuzz(
            cases, seed, list(targets or TARGETS), lambda done: bar.update(task, completed=done)
        )
    if record:
        record.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['cases']} cases in {result['seconds']} s, {len(result['failures'])} failures")
    for failure in result["failures"]:
        print(f"--seed {seed} --only {failure['target']}:{failure['case']}  {failure['error']}")
    if result["stopped"] == "interrupted":
        sys.exit(130)
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
