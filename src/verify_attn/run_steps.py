"""A step of `verify-attn run`: a process of its own, so that its crash stays one step's.

Signals come to the run alone and are passed on, once: a step has its own process group, so that
Ctrl-C does not reach it twice and it can write its record.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Self

from verify_attn import child

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 30.0  # for an interrupted step to write its record
LOOK_S = 0.1
TAIL_BYTES = 1 << 16
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Ended:
    """``code``: the exit status, negative for a signal.  ``interrupted``: we were told to stop
    while it ran.  ``words``: the end of what it printed."""

    code: int
    seconds: float
    interrupted: bool
    words: str

    @property
    def error(self) -> str:
        """What it said last."""
        return last_error(self.words)


def last_error(words: str) -> str:
    """The last error message in a command's output, with the lines that belong to it; else its
    last line."""
    lines = [line for line in words.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        return "\n".join(lines[starts[-1] :]).removeprefix("error: ")
    return lines[-1] if lines else "it printed nothing"


class Steps:
    """Runs steps; a context: within it SIGINT, SIGTERM and SIGHUP stop the step that runs, a second
    one kills it."""

    def __init__(self, inherited: Sequence[int] = ()) -> None:
        self.asked = 0  # how often we were told to stop
        self._inherited = inherited  # descriptors that a step holds as well
        self._told = 0
        self._since = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def stopped(self) -> bool:
        """Were we told to stop?"""
        return self.asked > 0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:  # nohup keeps its promise
                signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        self._since = time.monotonic()
        self._tell()
        if self.asked > 2 and self._child is None:
            raise KeyboardInterrupt  # patience with the writing of reports has an end

    def _tell(self) -> None:
        """Pass on what the running step was not told yet."""
        process = self._child
        if process is None or self.asked == self._told:
            return
        self._told = self.asked
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGINT if self.asked == 1 else signal.SIGKILL)

    def take(self, module: str, arguments: Sequence[str], output: Path) -> Ended:
        """Run ``python -m MODULE ARGUMENTS``, which ends if we are killed; what it prints goes to
        ``output``, its progress to the terminal where there is one.  Raises OSError where
        ``output`` cannot be written."""
        began = time.monotonic()
        with output.open("w+b") as file:
            with _progress(file) as stderr:
                self._told = 0
                with subprocess.Popen(
                    child.command(module, arguments), stdin=subprocess.PIPE, stdout=file,
                    stderr=stderr, process_group=0, pass_fds=self._inherited,
                ) as process:  # fmt: skip
                    self._child = process
                    self._tell()
                    code = self._wait(process)
                    self._child = None
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            words = file.read().decode(errors="replace")
        return Ended(code, time.monotonic() - began, self.stopped, words)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK_S)
            if self.stopped and time.monotonic() - self._since > GRACE_S:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _progress(file: IO[bytes]) -> Iterator[int]:
    """Where a step's standard error goes: into ``file``, and where ours is a terminal through a
    terminal of its own, so that progress shows as ever and an error message is kept as well."""
    if not sys.stderr.isatty():
        yield file.fileno()
        return
    ours, theirs = pty.openpty()
    size = shutil.get_terminal_size()
    termios.tcsetwinsize(theirs, (size.lines, size.columns))
    seen = bytearray()
    reader = threading.Thread(target=_copy, args=(ours, seen), daemon=True)
    reader.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        reader.join(GRACE_S)
        os.close(ours)
        text = _ESCAPES.sub("", seen.decode(errors="replace")).replace("\r\n", "\n")
        at = text.rfind("error: ")
        if at >= 0:
            os.lseek(file.fileno(), 0, os.SEEK_END)
            os.write(file.fileno(), text[at:].encode())


def _copy(source: int, seen: bytearray) -> None:
    with suppress(OSError):  # EIO: nobody holds the other end any more
        while data := os.read(source, 1 << 14):
            seen += data
            del seen[:-TAIL_BYTES]
            with suppress(OSError):  # our terminal went away; the step goes on
                os.write(2, data)
