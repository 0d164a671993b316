"""A process that does not outlive the one that started it, even where that one is killed.

``python -P -m verify_attn.child MODULE ARGUMENTS`` runs the module as ``python -m`` would.  Its
standard input is a pipe whose other end the parent alone holds: it closes when the parent is gone,
however it went, and the child then stops as on Ctrl-C.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence

GRACE_S = 10.0  # for what was measured to be written


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of a child; give it a pipe as standard input, and keep that open."""
    # -P: a file of the user's called random.py is not to be torch's random.
    return [sys.executable, "-P", "-m", "verify_attn.child", module, *arguments]


def main() -> None:
    """Watch the parent, run the module."""
    pipe = os.dup(0)  # a copy that no process of ours inherits
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1024):
        pass  # nobody writes; the end is what is waited for
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
