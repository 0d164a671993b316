"""Real-time priority: a machine that others keep busy measures as an idle one would."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = Path(tempfile.gettempdir()) / "verify-attn-realtime.lock"


def take() -> bool:
    """For this thread, from now on; False where the system does not allow it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two of these on one machine would only wait for each other."""
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def realtime() -> Iterator[bool]:
    """For this thread, for a while; yields whether it is so."""
    taken = take()
    try:
        yield taken
    finally:
        if taken:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
