"""One request at a time over one connection each: no retries, no proxies, no redirects.

A request that failed is a finding; a client that tried again would hide it and time the wrong one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpcore2

from verify_attn import __version__
from verify_attn.live.body import chunked_body
from verify_attn.live.chunk import Chunk
from verify_attn.live.lag import Stall
from verify_attn.live.reply import Reply, Unreachable
from verify_attn.live.server.errors import error_message
from verify_attn.live.stream import Stream
from verify_attn.live.target import Target
from verify_attn.live.watch import Watch
from verify_attn.live.wire import StampedBackend, StampedStream

MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Limits:
    """Time limits of a streamed request, in seconds.

    ``connect_s``      to a connection, TLS included
    ``first_token_s``  from the request's first byte to the first token
    ``stall_s``        between two chunks of the answer
    ``decode_s``       from the first token: the answer is ended here, if it has ``min_tokens``
    """

    connect_s: float = 10.0
    first_token_s: float = 600.0
    stall_s: float = 60.0
    decode_s: float = 120.0
    min_tokens: int = 16


@dataclass
class Answer:
    """What came back for one streamed request; times are monotonic nanoseconds.

    ``status`` is None where no response came.  ``body`` is the start of a body that was no
    stream (an error object, a page of HTML).  ``stalls`` are this client's own, meanwhile.
    """

    request: dict[str, Any]
    path: str
    started_ns: int
    sent_ns: int | None = None
    status: int | None = None
    content_type: str = ""
    location: str = ""
    coding: str = ""
    body: bytes = b""
    unreachable: str | None = None
    stream: Stream = field(default_factory=Stream)
    stalls: list[Stall] = field(default_factory=list)

    @property
    def failure(self) -> str | None:
        """Why there is no usable answer, or None."""
        if self.unreachable is not None:
            return self.unreachable
        if self.status not in (None, 200):
            return f"HTTP {self.status}: {self.message}"
        return self.stream.reason if self.stream.outcome == "failed" else None

    @property
    def error_body(self) -> Any:
        """The JSON of a body that was no stream, or None."""
        return Reply(self.status or 0, self.content_type, self.body).json()

    @property
    def message(self) -> str:
        """The server's own words in a body that was no stream."""
        if self.location:
            return f"it redirects to {self.location}, and redirects are not followed"
        found = error_message(self.error_body)
        if found:
            return found
        text = self.body[:300].decode("utf-8", "replace").strip()
        return text or "(no body)"


class Client:
    """Requests to one server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._headers = [
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", f"verify-attn/{__version__}".encode()),
        ]
        if target.api_key:
            self._headers.append((b"Authorization", f"Bearer {target.api_key}".encode()))

    async def fetch(
        self, method: str, path: str, *, body: Any = None, timeout_s: float = 30.0
    ) -> Reply:
        """One whole answer within ``timeout_s``; raises `Unreachable` where none comes."""
        content = None if body is None else json.dumps(body).encode()
        headers = list(self._headers)
        if content is not None:
            headers.append((b"Content-Type", b"application/json"))
        try:
            async with (
                asyncio.timeout(timeout_s),
                _pool() as pool,
                pool.stream(
                    method, self.target.root + path, headers=headers, content=content
                ) as response,
            ):
                data = bytearray()
                async for piece in response.aiter_stream():
                    data += piece
                    if len(data) > MAX_BODY_BYTES:
                        raise Unreachable(f"{path} sent more than {MAX_BODY_BYTES} bytes")
                return Reply(
                    response.status, _content_type(response), bytes(data), _location(response)
                )
        except TimeoutError:
            raise Unreachable(f"{method} {path} gave no answer within {timeout_s:g} s") from None
        except _HTTP_ERRORS as error:
            raise Unreachable(f"{method} {path}: {_said(error)}") from None

    async def stream(
        self,
        path: str,
        body: dict[str, Any],
        limits: Limits,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> Answer:
        """Send a request and follow its answer to the end or to a limit; never raises for it."""
        answer = Answer(body, path, time.monotonic_ns())
        watch = Watch(limits, answer)
        headers = [*self._headers, (b"Content-Type", b"application/json"),
                   (b"Accept", b"text/event-stream")]  # fmt: skip
        content = json.dumps(body).encode()
        try:
            async with _pool(heads_apart=True) as pool, asyncio.timeout(None) as timer:
                watch.start(timer)
                async with pool.stream(
                    "POST", self.target.root + path, headers=headers, content=content,
                    extensions={"timeout": {"connect": limits.connect_s}, "trace": watch.trace},
                ) as response:  # fmt: skip
                    await self._follow(response, answer, watch, on_chunk)
        except TimeoutError:
            watch.expired()
        except _HTTP_ERRORS as error:
            if answer.status is None:
                answer.unreachable = _said(error)
            else:
                answer.stream.end(failure=f"the connection broke: {_said(error)}")
        finally:
            watch.stop()
        answer.stream.end()
        return answer

    async def _follow(
        self,
        response: httpcore2.Response,
        answer: Answer,
        watch: Watch,
        on_chunk: Callable[[Chunk], None] | None,
    ) -> None:
        wire = response.extensions["network_stream"]
        assert isinstance(wire, StampedStream)
        answer.sent_ns = wire.written_ns
        answer.status, answer.content_type = response.status, _content_type(response)
        answer.location = _location(response)
        answer.coding = _header(response, b"content-encoding").lower()
        streaming = response.status == 200
        stream = answer.stream
        async for piece in _body(response, wire):
            if len(answer.body) < 65536 and not stream.text_seen:
                answer.body += piece[:65536]
            if not streaming:
                continue
            for chunk in stream.feed(wire.last_read_ns, piece):
                watch.chunk(chunk, wire.last_read_ns)
                if on_chunk is not None:
                    on_chunk(chunk)
            if stream.done:
                return
            if watch.reached is not None:
                stream.end(stopped=watch.reached)
                return
        if streaming and stream.empty and stream.failure is None and not stream.done:
            stream.end(failure=_no_stream(answer))


def _pool(*, heads_apart: bool = False) -> httpcore2.AsyncConnectionPool:
    # A fresh connection a request: a kept one may be half closed, and a retry would hide it.
    return httpcore2.AsyncConnectionPool(
        max_connections=1, max_keepalive_connections=0,
        network_backend=StampedBackend(heads_apart=heads_apart),
    )  # fmt: skip


def _body(response: httpcore2.Response, wire: StampedStream) -> AsyncIterator[bytes]:
    """Its pieces as they come: a chunked one past httpcore, which has had the head alone."""
    wire.heads_apart = False
    codings = [v.lower() for n, v in response.headers if n.lower() == b"transfer-encoding"]
    own = response.status == 200 and codings == [b"chunked"]
    return chunked_body(wire) if own else response.aiter_stream()


_HTTP_ERRORS = (
    httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol, OSError,
)  # fmt: skip


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _header(response: httpcore2.Response, wanted: bytes) -> str:
    for name, value in response.headers:
        if name.lower() == wanted:
            return value.decode("latin-1")
    return ""


def _content_type(response: httpcore2.Response) -> str:
    return _header(response, b"content-type").lower()


def _location(response: httpcore2.Response) -> str:
    """Where a redirect leads; empty for anything else."""
    return _header(response, b"location") if 300 <= response.status < 400 else ""


def _no_stream(answer: Answer) -> str:
    if answer.body.strip():
        found = error_message(answer.error_body)
        if found:
            return f"the server sent an error with status 200: {found}"
        if answer.coding not in ("", "identity"):
            return f"the body is compressed ({answer.coding}), although identity was asked for"
        return f"the answer is {answer.content_type or 'no event stream'}: {answer.message[:200]!r}"
    return "the answer was empty: the body had no bytes"
