"""One job from the engine's thread to one client: as events, or as a whole; gone if it goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from verify_attn.engine.http.answers import Answer
from verify_attn.engine.http.errors import ApiError, Json
from verify_attn.engine.http.handle import Handle
from verify_attn.engine.job import Delta

# How often a silent engine is asked whether it lives: a dead one may have said nothing.
ASK_EVERY_S = 1.0
_DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]


class Deltas:
    """One job's deltas, up to the one with a finish; made in the loop that reads them.

    An engine that died without a word gives one that says so.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self.ended = False

    def emit(self, delta: Delta) -> None:
        """For the engine's thread; the queue is as long as the answer at most."""
        # A closed loop: the server has ended, and nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, delta)

    def __aiter__(self) -> Deltas:
        return self

    async def __anext__(self) -> Delta:
        if self.ended:
            raise StopAsyncIteration
        delta = await self._next()
        self.ended = delta.finish is not None
        return delta

    async def _next(self) -> Delta:
        while True:
            try:
                async with asyncio.timeout(ASK_EVERY_S):
                    return await self._queue.get()
            except TimeoutError:
                dead = self._handle.alive()
                if dead is not None and self._queue.empty():
                    return Delta(finish="error", error=f"the engine died: {dead}")


class Generation(Response):
    """The answer to a submitted job.

    Headers go out with the first delta, so that what fails before it has an HTTP status of its own.
    Whatever ends this before the job's last delta cancels the job: a client that went away while
    the job was queued, in prefill or in decode, or this server's own end.
    """

    def __init__(self, handle: Handle, deltas: Deltas, answer: Answer) -> None:
        super().__init__()
        self._handle = handle
        self._deltas = deltas
        self._answer = answer
        self._started = False  # is a stream's head out?

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._answer.request.stream
        work = self._stream(send) if stream else self._whole(scope, receive, send)
        try:
            await while_connected(receive, work)
        except asyncio.CancelledError:  # this server ends
            if self._deltas.ended:
                raise
            await self._end_with(ApiError(503, "the server stops"), scope, receive, send)
        finally:
            if not self._deltas.ended:
                self._handle.cancel(self._answer.name)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async for delta in self._deltas:
            self._answer.take(delta)
            if _failed(delta):
                raise ApiError(500, _why(delta))
        await Json(self._answer.whole())(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        answer = self._answer
        opening = answer.opening()
        # Written before the first delta: a long prompt's ids take tens of milliseconds, in which
        # the engine's thread, decoding by then, could not run.
        first = b"" if opening is None else event(opening)
        async for delta in self._deltas:
            answer.take(delta)
            if _failed(delta):
                failure = ApiError(500, _why(delta))
                if not self._started:
                    raise failure
                await _send(send, event(failure.body))
                break
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                if first:
                    await _send(send, first)
            await _send(send, event(answer.event(delta)))
        else:
            last = answer.last_event()
            if last is not None:
                await _send(send, event(last))
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})

    async def _end_with(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Before the answer is whole: a status of its own if nothing is out, else an event."""
        if not self._started:
            await error.response()(scope, receive, send)
            return
        last = event(error.body) + _DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, or stop in the middle of it when the client goes away."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event; JSON in ASCII, which no line splitter can break."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _failed(delta: Delta) -> bool:
    return delta.finish in ("error", "cancelled")


def _why(delta: Delta) -> str:
    return delta.error or "the engine gave the request up"
