"""The product's own sweep against a real server: in this process, or through its command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.live.real.process import Server, off_the_servers_core
from verify_attn.cli import main
from verify_attn.live.client import Answer
from verify_attn.live.points import Trial
from verify_attn.live.run import Run
from verify_attn.live.settings import Settings
from verify_attn.live.sweep import Progress
from verify_attn.live.target import Target

Watch = Callable[[Progress], None]
# Of a whole sweep, each told: a busy machine makes figures wrong in one direction only, so one
# sweep that is right shows that the tool is, and a tool that is wrong fails in all.
TRIES = 8


def ready(server: Server, **settings: Any) -> Run:
    """A run that has sent nothing yet and will keep every answer."""
    named = {"model": None if server.model == "tiny" else server.model, "budget_s": 0.0}
    return Run(Target.parse(server.url), Settings(**named | {"keep_reads": True} | settings))


def swept(server: Server, watch: Watch = lambda now: None, **settings: Any) -> Run:
    """A whole sweep from the clients' cores."""
    run = ready(server, **settings)
    with off_the_servers_core():
        asyncio.run(run.go(watch))
    return run


def answers(run: Run) -> list[tuple[Trial, Answer]]:
    """What was measured with what came, in order."""
    assert run.sweep is not None
    trials = [trial for point in run.points for trial in point.trials]
    return list(zip(trials, (answer for _, answer in run.sweep.answers), strict=True))


def causes(run: Run) -> set[str]:
    """All that were named."""
    return {finding.cause for finding in run.findings()}


@dataclass
class Done:
    """What the command left behind."""

    exit_code: int
    stdout: str
    stderr: str
    record: dict[str, Any]

    @property
    def statuses(self) -> list[str]:
        """Of the cases, in order."""
        return [case["status"] for case in self.record["cases"]]


def command(server: Server, directory: Path, *args: str) -> Done:
    """``verify-attn sweep`` in a directory of its own."""
    path = directory / "record.json"
    path.unlink(missing_ok=True)
    words = ["sweep", "--url", server.url, "--json", str(path), "--budget", "0", *args]
    with chdir(directory), off_the_servers_core():
        result = CliRunner().invoke(main, words, env={"VERIFY_ATTN_API_KEY": None})
    record = json.loads(path.read_text()) if path.exists() else {}
    return Done(result.exit_code, result.stdout, result.stderr, record)


def recorded(directory: Path, **body: Any) -> Path:
    """A request as a client sent it."""
    path = directory / "request.json"
    path.write_text(json.dumps(body))
    return path


PROSE = " ".join(
    f"Row {i} of the long table holds {i * 37 % 101} apples and {i * 53 % 97} pears."
    for i in range(40)
)
