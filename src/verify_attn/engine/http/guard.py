"""What a request must pass before any route sees it: a key, and a body that is not too long.

Plain ASGI, since Starlette's own middleware classes hide a client that goes away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verify_attn.engine.http.errors import ApiError

MAX_BODY_BYTES = 8 * 2**20
# After a refusal the rest of the body is read and dropped for so long: a client that is still
# sending when the connection closes may never see the answer.
LINGER_S = 2.0
OPEN_PATHS = frozenset({"/health"})


class ApiKey:
    """401 for every path but `OPEN_PATHS` without ``Authorization: Bearer <key>``."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._wanted = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        refused = ApiError(
            401, "no valid API key was given; send the header Authorization: Bearer <key>",
            code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip
        await refused.response()(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        # In constant time, so that an answer's time says nothing about the key.
        return hmac.compare_digest(key.strip(), self._wanted) and scheme.lower() == b"bearer"


class BodyLimit:
    """413 for a body over the limit, which is never held: neither announced nor in chunks."""

    def __init__(self, app: ASGIApp, most_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if int(announced) > self._most:  # the server under us has checked that it is a number
            await self._refuse(scope, receive, send)
            return
        body = bytearray()
        async for piece in _pieces(receive):
            if piece is None:
                return  # the client went away; nobody waits for an answer
            body += piece
            if len(body) > self._most:
                await self._refuse(scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = ApiError(
            413, f"the body is over {self._most} bytes; this server takes no longer one",
            headers={"Connection": "close"},
        ).response()  # fmt: skip
        last: list[Message] = []

        async def but_the_end(message: Message) -> None:
            if message["type"] == "http.response.body":
                last.append({**message, "body": b""})
                message = {**message, "more_body": True}
            await send(message)

        await response(scope, receive, but_the_end)
        if b"expect" not in dict(scope["headers"]):  # else it waits for our word and sends nothing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    async for _ in _pieces(receive):
                        pass
        for message in last:
            await send(message)


async def _pieces(receive: Receive) -> AsyncIterator[bytes | None]:
    """The body as it comes; None, as the last, if the client goes away first."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            yield None
            return
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
