"""The process in which kernels run, so that a crash or a hang stays there.

Started by `verify_attn.conformance.pool` as ``python -m verify_attn.conformance.worker FD``; tasks
come and events go as JSON over that connection.  What the kernel prints goes to the log.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any

from hypothesis.configuration import set_hypothesis_home_dir

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve tasks until the connection closes."""
    faulthandler.enable()
    set_hypothesis_home_dir(tempfile.gettempdir())  # it would leave a folder where the user works
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if sys.platform == "linux":  # a kernel that hangs does not outlive the parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    connection = Connection(int(sys.argv[1]))
    process = os.getpid()

    def emit(event: dict[str, Any]) -> None:
        if os.getpid() != process:
            os._exit(0)  # a fork that the kernel made and let run on
        try:
            connection.send_bytes(json.dumps(event).encode())
        except OSError:
            os._exit(0)  # the parent is gone

    from verify_attn.conformance import POISONED_EXIT
    from verify_attn.kernels.base import KernelError
    from verify_attn.kernels.registry import choose_triton_mode, load

    choose_triton_mode()
    import torch

    from verify_attn.conformance.fuzz import Fuzz, attempt
    from verify_attn.generate import Case
    from verify_attn.tracebacks import user_traceback

    torch.set_num_threads(1)  # there are as many workers as cores
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernels: dict[str, Any] = {}

    def work(kernel: Any, task: dict[str, Any]) -> None:
        if "case" not in task:
            Fuzz(kernel, device, task["checks"], emit, task["seed"]).run(task["examples"])
            return
        case = Case.from_json(task["case"])
        for check in task["checks"]:
            emit({"event": "start", "check": check, "case": task["case"]})
            outcome = attempt(kernel, case, check, device)
            if outcome["status"] == "fail":
                emit({
                    "event": "failure", "check": check, "text": outcome["text"],
                    "case": task["case"], "final": not outcome["poisoned"],
                })  # fmt: skip
                if outcome["poisoned"]:
                    os._exit(POISONED_EXIT)  # the parent goes on with the other checks
            else:
                emit({"event": "check", "check": check, **outcome})
        emit({"event": "example", "tokens": case.tokens})

    while True:
        try:
            task = json.loads(connection.recv_bytes())
        except EOFError:
            return
        emit({"event": "device", "device": device.type})
        sys.path += [
            entry for entry in task["path"] if entry not in sys.path
        ]  # pytest's may differ
        name = task["kernel"]
        try:
            if name not in kernels:
                kernels[name] = load(name)
        except KernelError as error:
            emit({"event": "unusable", "text": str(error)})
            continue
        try:
            work(kernels[name], task)
        except Exception:
            raise
        except BaseException as error:  # the kernel's sys.exit, KeyboardInterrupt, pytest.skip ...
            os.write(2, f"{user_traceback(error)}\n".encode(errors="backslashreplace"))
            os._exit(1)
        emit({"event": "done"})


if __name__ == "__main__":
    main()
