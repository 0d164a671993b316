"""One run at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path


class FolderInUse(ValueError):
    """Another run is at work in the folder."""


def take(folder: Path, stack: ExitStack) -> int | None:
    """Take the folder until ``stack`` ends; the kernel gives it back when a killed run is gone.

    Returns the descriptor, which a step inherits: a step that is still writing when its run was
    killed keeps the folder as well.  None on a file system that has no locks.
    """
    handle = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUse(
            f"another verify-attn run is at work in {folder}, and a folder is one run's; wait "
            "until it ends, or give another --out"
        ) from None
    except OSError:
        return None
    return handle
