"""What `verify-attn run` is asked for, and the command line of each step."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verify_attn.record import PASSED, RecordError, read_record
from verify_attn.report.folder import RUN_RECORD, record_name
from verify_attn.run_server import Embedded
from verify_attn.run_steps import last_error

RUNS = "verify-attn-runs"
CLI = "verify_attn.cli"
NOWHERE = "http://127.0.0.1:1"  # the URL of a server that is not started yet
# Cases a kernel, with a GPU (None: check's own) and without, where the interpreter takes seconds a
# case: the whole run is to end within minutes on two cores.
EXAMPLES: dict[bool, int | None] = {True: None, False: 12}
QUICK_EXAMPLES = {True: 100, False: 4}


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


def check_line(asked: Asked, folder: Path, gpu: bool) -> list[str]:
    """Of the check, going on where its own record stopped."""
    path = folder / record_name("check")
    examples = asked.examples or (QUICK_EXAMPLES if asked.quick else EXAMPLES)[gpu]
    size = [] if examples is None else ["--examples", str(examples)]
    return ["check", *asked.kernels, *size, "--json", str(path), *_resumable(path)]


def _resumable(path: Path) -> list[str]:
    try:
        read_record(path)
    except RecordError:
        return []
    return ["--resume"]


def bench_line(asked: Asked, folder: Path) -> list[str]:
    """Of the bench."""
    quick = ["--quick"] if asked.quick else []
    return ["bench", *asked.kernels, *quick, "--json", str(folder / record_name("bench"))]


def sweep_line(asked: Asked, folder: Path, url: str, log: Path | None = None) -> list[str]:
    """Of the sweep of ``url``; raises `BadRun` for a --sweep that is no list of words."""
    given: dict[str, str | None] = {
        "--url": url, "--json": str(folder / record_name("sweep")),
        "--contexts": asked.contexts, "--floors": asked.floors, "--against": asked.against,
        "--max-tokens": None if asked.max_tokens is None else str(asked.max_tokens),
        "--log": None if log is None else str(log),
    }  # fmt: skip
    if asked.url is None:
        own = Embedded.sweep(asked.quick)
        given |= {name: value for name, value in own.items() if given.get(name) is None}
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    try:
        return ["sweep", *words, *shlex.split(asked.sweep or "")]
    except ValueError as wrong:
        raise BadRun(f"--sweep {asked.sweep!r}: {wrong}") from None


# In a process of its own, since a kernel's module may do anything when it is imported.
LOAD = """
import sys
from verify_attn.kernels.base import KernelError
from verify_attn.kernels.registry import load
try:
    for name in sys.argv[1:]:
        load(name)
except KernelError as wrong:
    sys.exit(f"error: {wrong}")
"""
LOAD_S = 60.0  # a module that takes longer to import is left to `check`, which has its own limit


def check_plan(asked: Asked, folder: Path) -> None:
    """Load the kernels and have the sweep read its options, floors and files; raises `BadRun`
    before anything runs."""
    if asked.kernels:
        with suppress(subprocess.TimeoutExpired):
            loaded = subprocess.run(
                [sys.executable, "-P", "-c", LOAD, *asked.kernels], timeout=LOAD_S,
                capture_output=True, text=True, errors="replace", check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if loaded.returncode == 1 and loaded.stderr.startswith("error: "):
                raise BadRun(loaded.stderr.removeprefix("error: ").strip())
    line = sweep_line(asked, folder, asked.url or NOWHERE)
    done = subprocess.run(
        [sys.executable, "-P", "-m", CLI, *line, "--dry-run"],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != PASSED:
        raise BadRun(last_error(done.stderr))
