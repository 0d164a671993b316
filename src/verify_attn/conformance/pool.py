"""Worker processes: tasks out, events in; the dead and the hung are named and replaced.

This side imports neither torch nor Triton, so a command shows its first line at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from verify_attn.conformance import POISONED_EXIT
from verify_attn.tracebacks import last_words

START_S = 120.0  # to import torch, reach the GPU and import the kernel
END_S = 30.0  # between the last word and the end of a process
LOG_BYTES = 1 << 16  # of what a dead worker printed, the end that is looked at


@dataclass
class Task:
    """Checks of one kernel: so many drawn examples, or one given case."""

    kernel: str
    checks: list[str]
    seed: int = 0
    examples: int = 0
    case: str | None = None
    chunk: int = 0

    def message(self) -> bytes:
        """What the worker is sent."""
        task: dict[str, Any] = {"kernel": self.kernel, "checks": self.checks, "path": sys.path}
        if self.case is not None:
            task["case"] = self.case
        else:
            task |= {"seed": self.seed, "examples": self.examples}
        return json.dumps(task).encode()


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    log: Any
    task: Task | None = None
    since: float = field(default_factory=time.monotonic)
    doing: dict[str, Any] | None = None  # the last "start" event
    failing: dict[str, Any] | None = None  # a failure still being shrunk
    left: int = 0  # examples of the task not yet finished

    @property
    def dead(self) -> bool:
        """It ended and said all; a process that it left may hold its connection open."""
        return self.process.poll() is not None and not self.connection.poll()

    def kill(self) -> None:
        """End it and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()


class Pool:
    """Runs tasks on ``count`` workers and yields (task, event) pairs as they come.

    Workers stay for the next `run` until `close`.  An event is one of the worker's; for a crash or
    a hang it is a failure with the case that was running.
    """

    def __init__(self, count: int, time_limit_s: float) -> None:
        self._count = count
        self._limit_s = time_limit_s
        self._workers: list[_Worker] = []

    def run(
        self, tasks: list[Task], enabled: Callable[[Task], list[str]]
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Work through the tasks; ``enabled`` is asked for a task's checks as it starts."""
        queue = deque(tasks)
        while True:
            self._assign(queue, enabled)
            if not any(w.task for w in self._workers):
                return
            for ready in wait([w.connection for w in self._workers], timeout=0.2):
                worker = next(w for w in self._workers if w.connection is ready)
                yield from self._receive(worker, queue)
            for worker in [w for w in self._workers if w.task]:
                if worker.dead:
                    yield from self._lost(worker, queue, hung=False)
                elif time.monotonic() - worker.since > self._limit(worker):
                    yield from self._lost(worker, queue, hung=True)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.kill()
            worker.process.wait()
            worker.connection.close()
            worker.log.close()
        self._workers.clear()

    def _limit(self, worker: _Worker) -> float:
        return self._limit_s if worker.doing else max(START_S, self._limit_s)

    def _assign(self, queue: deque[Task], enabled: Callable[[Task], list[str]]) -> None:
        while queue:
            idle = next((w for w in self._workers if w.task is None), None)
            if idle is None and len(self._workers) >= self._count:
                return
            task = queue.popleft()
            task.checks = [c for c in task.checks if c in enabled(task)]
            if not task.checks:
                continue
            worker = idle or self._start()
            worker.task, worker.left = task, task.examples
            worker.doing = worker.failing = None
            worker.since = time.monotonic()
            with suppress(OSError):  # it died; the next read says so
                worker.connection.send_bytes(task.message())

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        descriptor, name = tempfile.mkstemp(prefix="verify-attn-worker-")
        os.unlink(name)  # it lives as long as it is open
        log = os.fdopen(descriptor, "w+b")
        process = subprocess.Popen(
            # -P: a file of the user's called random.py is not to be torch's random
            [sys.executable, "-P", "-m", "verify_attn.conformance.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        theirs.close()
        worker = _Worker(process, ours, log)
        self._workers.append(worker)
        return worker

    def _receive(
        self, worker: _Worker, queue: deque[Task]
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        try:
            event = json.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            yield from self._lost(worker, queue, hung=False)
            return
        task, kind = worker.task, event["event"]
        worker.since = time.monotonic()
        assert task is not None
        if kind == "start":
            worker.doing = event
            return
        if kind == "example":
            worker.left -= 1
        if kind == "failure":
            worker.failing = None if event["final"] else event
            if event["final"]:
                worker.left -= task.case is None
        if kind in ("done", "unusable"):
            worker.task = worker.doing = None
        yield task, event

    def _lost(
        self, worker: _Worker, queue: deque[Task], hung: bool
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        """A worker died or is killed for hanging: name the culprit, let others do the rest."""
        how = f"hung: no answer in {self._limit(worker):g} s" if hung else _end(worker.process)
        worker.kill()
        worker.process.wait()
        self._workers.remove(worker)
        worker.connection.close()
        worker.log.seek(max(0, worker.log.seek(0, os.SEEK_END) - LOG_BYTES))
        tail = [] if hung else last_words(worker.log.read().decode(errors="replace"))
        worker.log.close()
        task, doing = worker.task, worker.doing
        if task is None:
            return
        if doing is None:
            text = f"{task.kernel!r}: its process {how} before the first case"
            text += "".join(f"\n  {line}" for line in tail)
            yield task, {"event": "unusable", "text": text}
            return
        failure = worker.failing
        if failure is None or not (hung or doing["check"] == failure["check"]):
            text = f"{doing['check']}: the kernel's process {how}\ncase:   {doing['case']}"
            if tail:
                text += "\nits last words:" + "".join(f"\n  {line}" for line in tail)
            kind = "hang" if hung else "crash"
            failure = {"event": "failure", "check": doing["check"], "text": text,
                       "case": doing["case"], "final": True, "kind": kind}  # fmt: skip
        yield task, {**failure, "final": True}
        if task.case is not None:
            rest = replace(task, checks=task.checks[task.checks.index(doing["check"]) + 1 :])
        else:
            rest = replace(task, seed=task.seed + 104_729, examples=worker.left - 1)
        if rest.checks and (rest.examples > 0 or rest.case is not None):
            queue.appendleft(rest)
        else:
            yield task, {"event": "done"}


def _end(process: subprocess.Popen[bytes]) -> str:
    """How a process that fell silent ended."""
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return "closed its connection to the harness"
    if code == POISONED_EXIT:
        return "lost its GPU context (an illegal access)"
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):  # real-time signals have no name
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"


def worker_count(gpu: bool) -> int:
    """Workers that suit the machine: a core each, and at most 16 on one GPU."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(cores, 16) if gpu else cores
