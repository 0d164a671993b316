"""The package's own server as a process beside this one, for who has none: a context manager."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from verify_attn import child

EMBEDDED = "embedded"  # in place of a URL
READY_LIMIT_S = 120.0
STOP_LIMIT_S = 10.0
_READY = re.compile(r"^ready after .*: (http://\S+)$", re.MULTILINE)


class NotReadyError(RuntimeError):
    """The server did not come up; the message has its output."""


@contextlib.contextmanager
def serving(
    arguments: Sequence[str] = ("tiny",),
    *,
    limit_s: float = READY_LIMIT_S,
    log: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """The URL of `verify-attn serve` with these arguments, on a free port of loopback.

    ``log``: keep there what it prints.  ``stopped``: is nobody waiting for it any more?  Raises
    `NotReadyError` if it ends, or is not ready within ``limit_s``.  It ends with this process, even
    where that is killed.
    """
    words = ["serve", *arguments, "--port", "0"]
    with (
        tempfile.TemporaryFile("w+") if log is None else log.open("w+") as kept,
        subprocess.Popen(
            child.command("verify_attn.cli", words), stdin=subprocess.PIPE, stdout=kept,
            stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        try:
            shown = shlex.join(["verify-attn", *words])
            yield _url(process, shown, kept.fileno(), limit_s, stopped)
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _url(
    process: subprocess.Popen[bytes],
    command: str,
    log: int,
    limit_s: float,
    stopped: Callable[[], bool],
) -> str:
    give_up = time.monotonic() + limit_s
    while True:
        ended = process.poll() is not None
        output = _output(log)
        ready = _READY.search(output)
        if ready is not None:
            return ready[1]
        if ended or stopped() or time.monotonic() > give_up:
            what = f"not ready in {limit_s:g} s"
            what = "interrupted before it was ready" if stopped() else what
            what = f"ended with {process.returncode}" if ended else what
            raise NotReadyError(f"{command}: {what}\n{output}")
        time.sleep(0.05)


def _output(log: int) -> str:
    """All of it so far; the process writes at the position that it shares with this file."""
    return os.pread(log, 1 << 20, 0).decode(errors="replace")
