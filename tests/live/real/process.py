"""Starts real servers as subprocesses, waits until they answer, and ends them for certain.

    with running(directory, command, truth, model, limit_s=60) as server:
        ...  # server.url, server.model, server.log_tail()

servers.py has the command of each kind.  A server runs on the first of this process's cores (where
there are two) under supervise.py, which ends the whole process group when the block is left or the
tests die.  A client that measures should keep to the other cores: ``off_the_servers_core()``.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.live.real.models import Model
from tests.live.real.venvs import HERE

PORT_TAKEN = ("address already in use", "couldn't bind", "[errno 98]")
ATTEMPTS = 4  # at a free port, in case somebody else takes it first


class ServerFailed(Exception):
    """A server did not start, or did not answer in time; the log's tail is in the message."""


@dataclass
class Server:
    """A running server."""

    url: str  # http://127.0.0.1:PORT, without /v1
    model: str  # what requests call it
    pid: int  # of the server itself, which leads its process group
    log: Path
    truth: Model  # what it must answer
    supervisor: subprocess.Popen[str]
    draft: Model | None = None  # what proposes its tokens
    started_s: float = 0.0  # from the start to the answer of the first request

    @property
    def port(self) -> int:
        """The port of ``url``."""
        return int(self.url.rpartition(":")[2])

    @property
    def has_ended(self) -> bool:
        """Is its main process gone?"""
        return self.supervisor.poll() is not None

    def log_tail(self, lines: int = 30) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def processes(self) -> dict[int, str]:
        """Process ids and command lines of its process group."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if os.getpgid(int(entry.name)) == self.pid:
                        raw = (entry / "cmdline").read_bytes()
                        found[int(entry.name)] = raw.replace(b"\0", b" ").decode(errors="replace")
        return found

    def listens(self) -> bool:
        """Is the port this one's, and not that of another that took it first?"""
        found = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and int(local.rpartition(":")[2], 16) == self.port:
                found.add(f"socket:[{inode}]")
        for pid in self.processes():
            with suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(link) in found:
                            return True
        return False

    def memory_mb(self) -> float:
        """Resident memory of the group, shared pages shared out."""
        total = 0
        for pid in self.processes():
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    total += int(line.split()[1]) if line.startswith("Pss:") else 0
        return total / 1024

    def held_up_s(self) -> float:
        """How long, so far, threads of it or of ours could have run and did not: they waited for a
        processor (Linux's schedstat), or the host had taken it away (steal)."""
        waited = 0
        for pid in [*self.processes(), os.getpid()]:
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with suppress(OSError):
                    waited += int(task.read_text().split()[1])
        steal = int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
        return waited / 1e9 + steal / os.sysconf("SC_CLK_TCK")

    @contextmanager
    def awake(self) -> Iterator[Server]:
        """Let it run within the block and stop it outside: an idle vLLM still spins on its core."""
        self._signal(signal.SIGCONT)
        try:
            yield self
        finally:
            self._signal(signal.SIGSTOP)

    def kill_engine(self) -> int:
        """Kill vLLM's EngineCore process alone; gives its id."""
        named = {p: c for p, c in self.processes().items() if "EngineCore" in c}
        assert len(named) == 1, f"not one EngineCore among {self.processes()}"
        (pid,) = named
        os.kill(pid, signal.SIGKILL)
        return pid

    def end(self) -> None:
        """End it and wait; no harm where it has ended."""
        assert self.supervisor.stdin is not None
        self.supervisor.stdin.close()
        self.supervisor.wait(30)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if not self.has_ended:
                os.killpg(self.pid, number)


def cores() -> tuple[set[int], set[int]]:
    """Cores of servers and of clients: apart where there are two, else the same one."""
    first, *others = sorted(os.sched_getaffinity(0))
    return {first}, set(others) or {first}


@contextmanager
def off_the_servers_core() -> Iterator[None]:
    """Keep this thread, and threads it starts, to the clients' cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores()[1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ask(port: int, path: str, body: dict | None = None, timeout_s: float = 60) -> tuple[int, bytes]:
    """One request, answered whole: (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if data else {}
        connection.request("POST" if data else "GET", path, data, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(
    directory: Path,
    command: Callable[[int], Sequence[object]],
    truth: Model,
    model: str,
    limit_s: float,
    variables: dict[str, str] | None = None,
    draft: Model | None = None,
) -> Iterator[Server]:
    """A server that has answered a request; ``command`` is given the port."""
    for attempt in range(ATTEMPTS):
        port = free_port()
        log = directory / f"server-{port}.log"
        server = _start(command(port), port, log, truth, model, variables or {})
        server.draft = draft
        try:
            _wait(server, limit_s)
        except ServerFailed as failure:
            server.end()
            taken = any(words in str(failure).lower() for words in PORT_TAKEN)
            if taken and server.has_ended and attempt + 1 < ATTEMPTS:
                continue
            raise
        except BaseException:
            server.end()
            raise
        break
    try:
        yield server
    finally:
        server.end()


def _start(
    command: Sequence[object],
    port: int,
    log: Path,
    truth: Model,
    model: str,
    variables: dict[str, str],
) -> Server:
    core = str(*cores()[0]) if len(os.sched_getaffinity(0)) > 1 else "-"
    supervise = [sys.executable, "-I", str(HERE / "supervise.py"), core, *map(str, command)]
    # Nothing is looked up, neither online nor in what the user once downloaded.
    own = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent / "hf")}
    with log.open("w") as file:
        supervisor = subprocess.Popen(
            supervise,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=os.environ | own | variables,
        )
    assert supervisor.stdout is not None
    pid = supervisor.stdout.readline()
    supervisor.stdout.close()
    if not pid:
        supervisor.communicate()
        raise ServerFailed(f"{command[0]} was not started:\n{log.read_text()}")
    return Server(f"http://127.0.0.1:{port}", model, int(pid), log, truth, supervisor)


def _wait(server: Server, limit_s: float) -> None:
    """Until /health says yes and a token comes; /health alone is known to say yes too early."""
    started = time.monotonic()
    body = {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    last = "nothing"
    for path, sent in (("/health", None), ("/v1/chat/completions", body)):
        status = 0
        while status != 200:
            left_s = started + limit_s - time.monotonic()
            if server.has_ended or left_s < 0:
                how = f"ended with {server.supervisor.poll()}" if left_s > 0 else "is too slow"
                raise ServerFailed(
                    f"the server {how} after {time.monotonic() - started:.1f} s; "
                    f"its last answer: {last}; its log:\n{server.log_tail()}"
                )
            try:
                if server.listens():
                    status, answer = ask(server.port, path, sent, max(left_s, 1))
                    last = f"{path} {status} {answer[:200]!r}"
            except (OSError, http.client.HTTPException) as error:
                last = f"{path} {error!r}"
            if status != 200:
                time.sleep(0.05)
    server.started_s = time.monotonic() - started
