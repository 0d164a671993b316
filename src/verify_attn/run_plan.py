"""What `verify-attn run` is asked for, and the command line of each step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verify_attn.record import RecordError, read_record
from verify_attn.report.folder import RUN_RECORD, Record, foreign, record_name

RUNS = "verify-attn-runs"
CLI = "verify_attn.cli"
# Cases a kernel, with a GPU (None: check's own) and without, where the interpreter takes seconds a
# case: the whole run is to end within minutes on two cores.
EXAMPLES: dict[bool, int | None] = {True: None, False: 12}
QUICK_EXAMPLES = {True: 100, False: 4}


# What --sweep cannot hold, and why.
RUNS_OWN = {
    "--json": "is the run's own: the record belongs into its folder",
    "--url": "is an option of the run: verify-attn run --url URL",
    "--dry-run": "would measure nothing; the run itself shows its plan before it begins",
    "--help": "would measure nothing", "-h": "would measure nothing",
}  # fmt: skip


class BadRun(ValueError):
    """A run that cannot be begun; the message is for the user (exit code 2)."""


@dataclass(frozen=True)
class Asked:
    """What the command line asks for, but for where."""

    kernels: tuple[str, ...] = ()
    url: str | None = None
    examples: int | None = None
    contexts: str | None = None
    max_tokens: int | None = None
    floors: str | None = None
    against: str | None = None
    sweep: str | None = None
    quick: bool = False

    def as_record(self) -> dict[str, Any]:
        """For the record, and to be compared with one."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def chosen_folder(out: Path | None, resume: bool) -> Path:
    """Where the run is kept; raises `BadRun` where there is none to go on with."""
    if out is not None:
        return out
    if not resume:
        return Path(RUNS) / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    made = sorted(path.parent for path in Path(RUNS).glob(f"*/{RUN_RECORD}"))
    if not made:
        raise BadRun(f"--resume: no run in {RUNS}; name its folder with --out")
    return made[-1]


def examples_of(asked: Asked, gpu: bool) -> int | None:
    """Cases a kernel; None: check's own."""
    return asked.examples or (QUICK_EXAMPLES if asked.quick else EXAMPLES)[gpu]


def check_line(asked: Asked, folder: Path, gpu: bool, run: Record) -> list[str]:
    """Of the check, going on where its own record stopped; ``run`` is the run's record."""
    path, examples = folder / record_name("check"), examples_of(asked, gpu)
    size = [] if examples is None else ["--examples", str(examples)]
    line = ["check", *asked.kernels, *size, "--json", str(path)]
    try:
        other = foreign(read_record(path), run, shlex.join(["verify-attn", *line]))
    except RecordError:  # none is there, or none that can be read
        return line
    return line if other else [*line, "--resume"]


def bench_line(asked: Asked, folder: Path) -> list[str]:
    """Of the bench."""
    quick = ["--quick"] if asked.quick else []
    return ["bench", *asked.kernels, *quick, "--json", str(folder / record_name("bench"))]


def sweep_line(
    asked: Asked, folder: Path, url: str, own: Mapping[str, str], log: Path | None = None
) -> list[str]:
    """Of the sweep of ``url``; raises `BadRun` for a --sweep that is no list of words.

    ``own``: options for the package's own server, where nothing else was asked for.
    """
    given: dict[str, str | None] = {
        "--url": url, "--json": str(folder / record_name("sweep")),
        "--contexts": asked.contexts, "--floors": asked.floors, "--against": asked.against,
        "--max-tokens": None if asked.max_tokens is None else str(asked.max_tokens),
        "--log": None if log is None else str(log),
    }  # fmt: skip
    given |= {name: value for name, value in own.items() if given.get(name) is None}
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    try:
        more = shlex.split(asked.sweep or "")
    except ValueError as wrong:
        raise BadRun(f"--sweep {asked.sweep!r}: {wrong}") from None
    for word in more:
        if (name := word.split("=")[0]) in RUNS_OWN:
            raise BadRun(f"--sweep {asked.sweep!r}: {name} {RUNS_OWN[name]}; leave it out")
    return ["sweep", *words, *more]
