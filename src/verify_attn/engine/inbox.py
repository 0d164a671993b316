"""What other threads leave for the engine: jobs, cancellations, calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from verify_attn.engine.job import Job, QueueFullError, RefusedError

Call = tuple[Callable[[], int], "Future[int]"]


@dataclass(frozen=True)
class Taken:
    """What came in since the last look; ``dropped`` are jobs cancelled before they ran."""

    calls: list[Call]
    cancelled: set[str]
    dropped: list[Job]


class Inbox:
    """``most_waiting`` jobs may wait beside those that the next loop can admit, ``seats``."""

    def __init__(self, most_waiting: int, seats: int) -> None:
        self.seats = seats
        self.dead: str | None = None
        self._most_waiting = most_waiting
        self._lock = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._cancelled: set[str] = set()
        self._calls: list[Call] = []
        self._stopping = False

    # -- from any thread -----------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Raises `QueueFullError`, or `RefusedError` from a dead engine."""
        with self._lock:
            self._require_alive()
            # Those that the next loop can admit do not wait: a burst on an idle engine is no crowd.
            if len(self._waiting) >= self._most_waiting + self.seats:
                raise QueueFullError(
                    f"{len(self._waiting)} requests wait already, and no more may; try again later"
                )
            self._waiting.append(job)
            self._lock.notify()

    def cancel(self, name: str) -> None:
        with self._lock:
            self._cancelled.add(name)
            self._lock.notify()

    def call(self, work: Callable[[], int]) -> int:
        """Have ``work`` done in the engine's thread, and wait for it."""
        done: Future[int] = Future()
        with self._lock:
            self._require_alive()
            self._calls.append((work, done))
            self._lock.notify()
        return done.result()

    def stop(self) -> None:
        """`wait` says so from now on."""
        with self._lock:
            self._stopping = True
            self._lock.notify()

    # -- from the engine's thread --------------------------------------------------------------

    def wait(self, *, busy: bool) -> bool:
        """Sleep until there is work, unless ``busy``; False: stop."""
        with self._lock:
            while not (busy or self._stopping or self._waiting or self._calls or self._cancelled):
                self._lock.wait()
            return not self._stopping

    def take(self) -> Taken:
        """All but the waiting jobs, which stay in the order they came."""
        with self._lock:
            dropped = [job for job in self._waiting if job.name in self._cancelled]
            for job in dropped:
                self._waiting.remove(job)
            taken = Taken(self._calls, self._cancelled, dropped)
            self._calls, self._cancelled = [], set()
            return taken

    def first(self) -> Job | None:
        """The job that has waited longest; it stays until `pop`."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def pop(self) -> None:
        with self._lock:
            self._waiting.popleft()

    def __len__(self) -> int:
        """Jobs that wait."""
        with self._lock:
            return len(self._waiting)

    def die(self, why: str) -> list[Job]:
        """Refuse everything from now on; returns the jobs that waited, for their news."""
        with self._lock:
            self.dead = why
            waiting, self._waiting = list(self._waiting), deque()
            calls, self._calls = self._calls, []
        for _, done in calls:
            done.set_exception(RefusedError(f"the engine is dead: {why}"))
        return waiting

    def _require_alive(self) -> None:
        if self.dead is not None or self._stopping:
            raise RefusedError(f"the engine is dead: {self.dead or 'it was stopped'}")
