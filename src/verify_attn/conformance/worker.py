"""The process in which kernels run, so that a crash or a hang stays there.

Started by `verify_attn.conformance.pool` as ``python -m verify_attn.conformance.worker FD``; tasks
come and events go as JSON over that connection.  What the kernel prints goes to the log.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Serve tasks until the connection closes."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    connection = Connection(int(sys.argv[1]))

    def emit(event: dict[str, Any]) -> None:
        try:
            connection.send_bytes(json.dumps(event).encode())
        except OSError:
            os._exit(0)  # the parent is gone

    from verify_attn.kernels.base import KernelError
    from verify_attn.kernels.registry import choose_triton_mode, load

    choose_triton_mode()
    import torch

    from verify_attn.conformance.fuzz import Fuzz, attempt
    from verify_attn.generate import Case

    torch.set_num_threads(1)  # there are as many workers as cores
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernels: dict[str, Any] = {}
    emit({"event": "ready", "device": str(device)})
    while True:
        try:
            task = json.loads(connection.recv_bytes())
        except EOFError:
            return
        name = task["kernel"]
        try:
            if name not in kernels:
                kernels[name] = load(name)
        except KernelError as error:
            emit({"event": "unusable", "text": str(error)})
            continue
        if "case" in task:
            case = Case.from_json(task["case"])
            for check in task["checks"]:
                emit({"event": "start", "check": check, "case": task["case"]})
                outcome = attempt(kernels[name], case, check, device)
                if outcome["status"] == "fail":
                    emit({
                        "event": "failure", "check": check, "text": outcome["text"],
                        "case": task["case"], "final": True,
                    })  # fmt: skip
                else:
                    emit({"event": "check", "check": check, **outcome})
            emit({"event": "example", "tokens": case.tokens})
        else:
            fuzz = Fuzz(kernels[name], device, task["checks"], emit, task["seed"])
            fuzz.run(task["examples"])
        emit({"event": "done"})


if __name__ == "__main__":
    main()
