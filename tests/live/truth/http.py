"""Just enough HTTP/1.1 of a server: requests out of bytes, heads and chunks into bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

JSON = "application/json"
STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str  # with its query
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        """As JSON, or None."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None


def take_request(buffer: bytearray) -> Request | None:
    """The first whole request, taken off the buffer; None: it is not all there yet."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    length = int(headers.get("content-length", 0))
    if len(buffer) < end + 4 + length:
        return None
    content = bytes(buffer[end + 4 : end + 4 + length])
    del buffer[: end + 4 + length]
    method, path, _ = first.split(" ")
    return Request(method, path, headers, content)


def head(status: int, content_type: str, *, length: int | None) -> bytes:
    """Status line and headers; without a length the body is chunked."""
    phrase = HTTPStatus(status).phrase
    body = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = (f"HTTP/1.1 {status} {phrase}", "server: truth", f"content-type: {content_type}", body)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(status: int, content_type: str, body: bytes) -> bytes:
    """An answer with a known length."""
    return head(status, content_type, length=len(body)) + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; of no data: its end."""
    return b"%x\r\n%b\r\n" % (len(data), data)
