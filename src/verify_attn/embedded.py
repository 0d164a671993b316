"""The package's own server as a process beside this one, for who has none: a context manager."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

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
) -> Iterator[str]:
    """The URL of `verify-attn serve` with these arguments, on a free port of loopback.

    ``log``: keep there what it prints.  Raises `NotReadyError` if it ends, or is not ready within
    ``limit_s``.
    """
    # -P: a file of the user's called random.py is not to be torch's random.
    command = [sys.executable, "-P", "-m", "verify_attn.cli", "serve", *arguments, "--port", "0"]
    with tempfile.TemporaryFile("w+") if log is None else log.open("w+") as kept:
        process = subprocess.Popen(command, stdout=kept, stderr=subprocess.STDOUT)
        try:
            yield _url(process, " ".join(command), kept.fileno(), limit_s)
        finally:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _url(process: subprocess.Popen[bytes], command: str, log: int, limit_s: float) -> str:
    give_up = time.monotonic() + limit_s
    while True:
        ended = process.poll() is not None
        output = _output(log)
        ready = _READY.search(output)
        if ready is not None:
            return ready[1]
        if ended or time.monotonic() > give_up:
            what = f"ended with {process.returncode}" if ended else f"not ready in {limit_s:g} s"
            raise NotReadyError(f"{command}: {what}\n{output}")
        time.sleep(0.05)


def _output(log: int) -> str:
    """All of it so far; the process writes at the position that it shares with this file."""
    return os.pread(log, 1 << 20, 0).decode(errors="replace")
