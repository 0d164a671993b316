"""Runs a server so that it never outlives the tests: ``python supervise.py CORE|- COMMAND...``.

Standard input is a pipe whose other end the tests hold.  When it closes, because they asked for
it or because they are gone however suddenly, the server's whole process group is ended: asked
first, and after GRACE_S killed.  Prints the server's process id and ends with its exit status.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_S = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started."""
    deadline = time.monotonic() + GRACE_S
    _signal(child.pid, signal.SIGCONT)  # it may be stopped
    _signal(child.pid, signal.SIGTERM)
    while time.monotonic() < deadline and _signal(child.pid, 0):
        child.poll()
        _reap(child.pid)
        time.sleep(0.02)
    _signal(child.pid, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
        return True
    return False


def _reap(group: int) -> None:
    """Orphans of the group come to this process, and would stay as zombies."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def main(core: str, command: list[str]) -> int:
    """Start the server, and end it when it or the tests are over."""
    # Control-C and the like are for the tests to answer.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    if core != "-":
        os.sched_setaffinity(0, {int(core)})

    def prepare() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    # Standard output is for the process id; standard error is the log, and both of the server's.
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=prepare
    )
    print(child.pid, flush=True)
    exited = os.pidfd_open(child.pid)
    select.select([sys.stdin, exited], [], [])
    status = child.poll()
    end_group(child)
    return child.wait() if status is None else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]) & 0xFF)
