"""When this client itself stood still: a stopped event loop looks like a server's pause.

On a busy machine, or behind a slow callback, reads are stamped when the loop comes to them; the
answer then seems to pause and to catch up.  A task that only sleeps shows when that was so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

EVERY_S = 0.005
LATE_S = 0.010  # timers and other tasks take a few milliseconds on any machine
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Stall:
    """Monotonic nanoseconds between which the loop did nothing."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """How long."""
        return (self.end_ns - self.begin_ns) / 1e9


class LagWatch:
    """``async with LagWatch() as watch``: ``watch.stalls`` of the loop meanwhile, in order."""

    def __init__(self) -> None:
        self.stalls: list[Stall] = []

    async def __aenter__(self) -> Self:
        self._slept_ns = time.monotonic_ns()
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _look(self) -> None:
        while True:
            self._slept_ns = time.monotonic_ns()
            try:
                await asyncio.sleep(EVERY_S)
            finally:
                # Cancelled too: the last stretch may be the one that stood still.
                self._note(time.monotonic_ns())

    def _note(self, now_ns: int) -> None:
        due_ns = self._slept_ns + round(EVERY_S * 1e9)
        if now_ns - due_ns > LATE_S * 1e9 and len(self.stalls) < MAX_KEPT:
            self.stalls.append(Stall(due_ns, now_ns))


def overlap_s(
    t_s: npt.NDArray[np.float64], spans: Iterable[tuple[float, float]]
) -> npt.NDArray[np.float64]:
    """Of every gap between the times ``t_s``, the seconds that lie in one of ``spans``."""
    found = np.zeros(max(len(t_s) - 1, 0))
    for begin, end in spans:
        found += np.maximum(np.minimum(t_s[1:], end) - np.maximum(t_s[:-1], begin), 0.0)
    return found
