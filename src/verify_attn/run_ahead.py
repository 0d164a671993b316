"""Before a run begins: can it be done as asked, and about how long will it take?"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from verify_attn.commands import EXAMPLES_GPU
from verify_attn.conformance.pool import worker_count
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.record import PASSED
from verify_attn.run_plan import CLI, Asked, BadRun, bench_line, examples_of, sweep_line
from verify_attn.run_server import first_choice
from verify_attn.run_steps import last_error

NOWHERE = "http://127.0.0.1:1"  # the URL of a server that is not started yet
# With a GPU and without: a case on one worker, and to compile or import what the first ones need.
CASE_S, START_S = {True: 0.3, False: 1.3}, {True: 30.0, False: 3.0}
_BENCH = re.compile(r"^\d+ cells, .*: at most about (\d+) min .*$", re.MULTILINE)
_SWEEP = re.compile(r"^about ([\d,]+) s in all .*$", re.MULTILINE)
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


@dataclass(frozen=True)
class Ahead:
    """What a step will do, in words, and about how long."""

    words: str
    seconds: float


Plan = dict[str, Ahead]  # by step


def look_ahead(asked: Asked, folder: Path, gpu: bool) -> Plan:
    """Load the kernels, have bench and sweep read their options, floors and files; raises `BadRun`
    before anything runs."""
    if asked.kernels:
        _load(asked.kernels)
    plan = {"check": _check(asked, gpu)}
    if gpu:
        plan["bench"] = _told(_BENCH, 60.0, _dry_run(bench_line(asked, folder)))
    own = {} if asked.url else first_choice(gpu).sweep(asked.quick)
    told = _dry_run(sweep_line(asked, folder, asked.url or NOWHERE, own))
    plan["sweep"] = _told(_SWEEP, 1.0, told) if asked.url else _own_sweep(asked, gpu)
    return plan


def shown(plan: Plan, steps: Iterable[str]) -> list[str]:
    """A line for each of these steps that takes long, and their sum."""
    ahead = {step: plan[step] for step in steps if step in plan}
    total = sum(step.seconds for step in ahead.values())
    return [f"plan: {name}: {step.words}" for name, step in ahead.items()] + [
        f"plan: about {_time(total)} in all" if ahead else "plan: nothing is left to do"
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _load(kernels: Sequence[str]) -> None:
    with suppress(subprocess.TimeoutExpired):
        loaded = subprocess.run(
            [sys.executable, "-P", "-c", LOAD, *kernels], timeout=LOAD_S, capture_output=True,
            text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if loaded.returncode == 1 and loaded.stderr.startswith("error: "):
            raise BadRun(loaded.stderr.removeprefix("error: ").strip())


def _dry_run(line: Sequence[str]) -> str:
    """What the step says that it will do."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", CLI, *line, "--dry-run"],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != PASSED:
        raise BadRun(last_error(done.stderr))
    return done.stdout


def _told(pattern: re.Pattern[str], unit_s: float, told: str) -> Ahead:
    found = pattern.search(told)
    if found is None:
        return Ahead("it says no duration", 0.0)
    return Ahead(found[0], unit_s * float(found[1].replace(",", "")))


def _check(asked: Asked, gpu: bool) -> Ahead:
    kernels, examples = asked.kernels or tuple(BUILTIN), examples_of(asked, gpu) or EXAMPLES_GPU
    seconds = START_S[gpu] + CASE_S[gpu] * len(kernels) * examples / worker_count(gpu)
    return Ahead(f"{', '.join(kernels)}, {examples:,} cases each: about {_time(seconds)}", seconds)


def _own_sweep(asked: Asked, gpu: bool) -> Ahead:
    model = first_choice(gpu)
    contexts = asked.contexts or model.sweep(asked.quick)["--contexts"]
    seconds = model.start_s + model.point_s * len(contexts.split(","))
    name = model.arguments[0]
    return Ahead(f"the package's own server, {name}, at {contexts} tokens: about "
                 f"{_time(seconds)}, {model.start_s:.0f} s of it to start", seconds)  # fmt: skip
