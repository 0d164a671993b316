"""Real-time priority: a machine that others keep busy measures as an idle one would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def take() -> bool:
    """For this thread, from now on; False where the system does not allow it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        return False
    return True


@contextmanager
def realtime() -> Iterator[bool]:
    """For this thread, for a while; yields whether it is so."""
    taken = take()
    try:
        yield taken
    finally:
        if taken:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
