"""The server process: its set-up comes as one line on standard input, ``log`` asks for the log."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
import selectors
import sys
from typing import Any

from tests.live.truth import priority
from tests.live.truth.server import Server

_PR_SET_TIMERSLACK = 29


def exact_timers() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are not rounded up to milliseconds, as epoll's are."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def serve(setup: dict[str, Any]) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    server = Server(setup)
    listening = await loop.create_server(server.connection, "127.0.0.1", 0, backlog=256)
    over = loop.create_future()

    def asked() -> None:
        if not sys.stdin.buffer.readline():
            loop.remove_reader(sys.stdin.fileno())
            over.set_result(None)
            return
        server.save()
        print("saved", flush=True)

    loop.add_reader(sys.stdin.fileno(), asked)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await over


def main() -> None:
    """Read the set-up and serve."""
    setup = pickle.loads(bytes.fromhex(sys.stdin.buffer.readline().decode()))
    if setup["core"] is not None:
        os.sched_setaffinity(0, {setup["core"]})
    if setup["realtime"]:
        priority.take()
    gc.disable()  # a collection would make a send late
    with asyncio.Runner(loop_factory=exact_timers) as runner:
        runner.run(serve(setup))


if __name__ == "__main__":
    main()
