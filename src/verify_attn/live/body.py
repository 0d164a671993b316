"""The chunked body of an HTTP/1.1 answer, read straight off the wire.

A sweep of 64 streams gets its reads one a token: the general reader's cost for each of them would
make this client the limit.  Source: RFC 9112, section 7.1.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpcore2

from verify_attn.live.wire import StampedStream

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?", re.DOTALL)
_MAX_LINE = 16_384
READ_BYTES = 65_536


class Chunked:
    """Bytes in, the body's bytes out, whatever the cuts between reads.

    Raises `httpcore2.RemoteProtocolError` for what is no chunked body.
    """

    def __init__(self) -> None:
        self.ended = False
        self._left = 0  # bytes of the current chunk's data that are still to come
        self._after_data = False  # the next line is the end of a chunk's data
        self._trailer = False  # the last chunk is through: header lines, then an empty one
        self._line = b""  # the start of a line that has not ended yet

    def feed(self, data: bytes) -> bytes:
        """The body's bytes among these."""
        found: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._after_data = not self._left
                continue
            end = data.find(b"\n", at)
            if end < 0 or len(self._line) + end - at > _MAX_LINE:
                self._line += data[at:]
                if len(self._line) > _MAX_LINE:
                    raise _bad(self._line)
                break
            line = (self._line + data[at:end]).removesuffix(b"\r")
            self._line = b""
            at = end + 1
            self._take(line)
        return found[0] if len(found) == 1 else b"".join(found)

    def _take(self, line: bytes) -> None:
        if self._trailer:
            self.ended = not line
            return
        if self._after_data:
            if line:
                raise _bad(line)
            self._after_data = False
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise _bad(line)
        self._left = int(size[1], 16)
        self._trailer = not self._left


async def chunked_body(wire: StampedStream) -> AsyncIterator[bytes]:
    """The body, one piece a network read; `StampedStream.last_read_ns` is the piece's."""
    body = Chunked()
    while not body.ended:
        data = await wire.read(READ_BYTES)
        if not data:
            raise httpcore2.RemoteProtocolError(
                "peer closed connection without sending complete message body "
                "(incomplete chunked read)"
            )
        piece = body.feed(data)
        if piece:
            yield piece


def _bad(line: bytes) -> httpcore2.RemoteProtocolError:
    return httpcore2.RemoteProtocolError(f"malformed chunked body: {line[:40]!r}")
