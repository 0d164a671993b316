"""The server as a process of its own, and its log."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.live.truth.log import RequestLog
from tests.live.truth.scenario import Scenario

_ROOT = Path(__file__).resolve().parents[3]


class TruthServer:
    """A scenario, served.

    ``pin``: where there are two cores or more, the server gets one for itself and the calling
    thread keeps the others until the end; not under xdist, whose workers share the cores.
    ``keep_bytes``: the log has the bytes of every send.  ``realtime``: the server's process goes
    before all others, where the system allows that.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        pin: bool | None = None,
        keep_bytes: bool = False,
        spin: bool = True,
        realtime: bool = False,
    ) -> None:
        self.scenario = scenario
        self.pin = "PYTEST_XDIST_WORKER" not in os.environ if pin is None else pin
        self.options = {"keep_bytes": keep_bytes, "spin": spin, "realtime": realtime}
        self.port = 0

    @property
    def url(self) -> str:
        """Without a path: ``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._cores = sorted(os.sched_getaffinity(0))
        core = self._cores[-1] if self.pin and len(self._cores) > 1 else None
        self._directory = tempfile.TemporaryDirectory(prefix="truth-")
        self._log = Path(self._directory.name) / "log"
        setup = {**self.options, "scenario": self.scenario, "core": core, "log": str(self._log)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.truth.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
        )
        try:
            self.port = int(self._ask(pickle.dumps(setup).hex()))
            if core is not None:
                os.sched_setaffinity(0, self._cores[:-1])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        os.sched_setaffinity(0, self._cores)
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()
        self._directory.cleanup()

    def _ask(self, line: str) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    @property
    def alive(self) -> bool:
        """Is the process there?"""
        return self._process.poll() is None

    def wait_for_death(self, timeout_s: float) -> None:
        """Until the process has ended; `subprocess.TimeoutExpired` where it has not."""
        self._process.wait(timeout_s)

    def kill(self) -> None:
        """End the process, as somebody else might; the log is of the last moment before."""
        self.requests()
        self._process.kill()
        self._process.wait()

    def requests(self) -> list[RequestLog]:
        """All requests so far, unfinished ones included; also of a server that died."""
        if self.alive:
            with suppress(BrokenPipeError):
                self._ask("log")
        log: list[RequestLog] = pickle.loads(self._log.read_bytes())
        return log

    def generations(self, *, measured: bool = True) -> list[RequestLog]:
        """Only those that asked for tokens; ``measured``: only those that count as such."""
        return [
            r for r in self.requests() if r.measured or (not measured and "completions" in r.path)
        ]
