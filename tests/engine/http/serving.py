"""The application on a real socket, over an engine that does what a test tells it.

The engine is scripted because faults are: a job that stays in the queue, one that dies between two
steps, half a character at the end of a delta.  What a real engine generates is tested elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from verify_attn.engine.http.app import create_app
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.job import (
    ContextOverflowError,
    Delta,
    Job,
    RefusedError,
    Speculation,
)

Script = Callable[["Engine", Job], None]
LIMIT_S = 10.0


class Engine:
    """A `Handle`; each job runs its script in a thread, as though the engine's."""

    def __init__(self) -> None:
        self.model_name = "tiny"
        self.max_context = 4096
        self.drafter = "block"
        self.budget = 7
        self.lossless = True
        self.about: dict[str, object] = {
            "kernel": "torch", "page_size": 16, "kv_tokens": 8192, "allocator": "fifo",
            "layers": 2, "notes": ["prompts are not computed"],
        }  # fmt: skip
        self.metrics = Metrics()
        self.reset()

    def reset(self) -> None:
        self.script: Script = answers("Hello")
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        self.refuses: RefusedError | None = None
        self.dead: str | None = None
        self.flushed = 0
        self._told = threading.Condition()

    def submit(self, job: Job) -> None:
        if self.refuses is not None:
            raise self.refuses
        if len(job.tokens) + job.most_tokens > self.max_context:
            raise ContextOverflowError(f"the maximum context length is {self.max_context} tokens")
        with self._told:
            self.jobs.append(job)
            self._told.notify_all()
        threading.Thread(target=self.script, args=(self, job), daemon=True).start()

    def cancel(self, name: str) -> None:
        with self._told:
            self.cancelled.append(name)
            self._told.notify_all()

    def flush(self) -> int:
        self.flushed += 1
        return 3

    def alive(self) -> str | None:
        return self.dead

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds; it may be about jobs and cancellations."""
        with self._told:
            assert self._told.wait_for(condition, LIMIT_S), (self.jobs, self.cancelled)

    def wait_cancelled(self) -> None:
        self.wait(lambda: bool(self.jobs) and self.jobs[-1].name in self.cancelled)


def spent(committed: Sequence[int]) -> Speculation:
    drafts = sum(committed) - len(committed)
    return Speculation("block", 7, len(committed), 7 * len(committed), drafts, tuple(committed))


def answers(text: str, *, pieces: int = 1, cached: int = 0, pause_s: float = 0.0) -> Script:
    """The first byte as from prefill, then ``pieces`` bytes a step; ``max_tokens`` cuts it."""

    def script(engine: Engine, job: Job) -> None:
        whole = text.encode()[: job.most_tokens]
        cut = [whole[:1]]
        cut += [whole[i : i + pieces] for i in range(1, len(whole), pieces)]
        finish = "length" if len(whole) == job.most_tokens else "stop"
        committed = []
        for i, piece in enumerate(cut):
            committed += [len(piece)] if i else []
            last = i == len(cut) - 1
            job.emit(
                Delta(
                    tuple(piece), piece.decode("utf-8", "ignore"), finish if last else None,
                    cached_tokens=cached, speculation=spent(committed) if last else None,
                )
            )  # fmt: skip
            time.sleep(pause_s)

    return script


def deltas(*given: Delta) -> Script:
    """Exactly these."""

    def script(engine: Engine, job: Job) -> None:
        for delta in given:
            job.emit(delta)

    return script


def silent(engine: Engine, job: Job) -> None:
    """Nothing comes: the job is queued, or in a long prefill."""


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[str]:
    """The root URL of a server in a thread of this process, on a free port of loopback."""
    config = uvicorn.Config(
        create_app(engine, **options), host="127.0.0.1", port=0, log_level="critical",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + LIMIT_S
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
