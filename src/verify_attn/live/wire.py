"""The network under httpcore: every read stamped where the event loop hands it over.

httpcore does the HTTP and leaves the sockets to a backend; this is one that notes the monotonic
time of each read before anything is parsed, so that a slow parser or a busy task cannot move it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import httpcore2

_HEAD_END = re.compile(rb"\n\r?\n")
_NUMBER = re.compile(r"\[Errno -?\d+\] ")  # of no use to a reader, whom its words tell the same


class StampedStream(httpcore2.AsyncNetworkStream):
    """One connection.

    ``written_ns``    monotonic time just before the first byte of the last request was written
    ``last_read_ns``  monotonic time at which the read that `read` gave last came in
    ``heads_apart``   a read ends where a head does, so that whoever reads on has all of the body
    """

    def __init__(
        self, protocol: _Protocol, transport: asyncio.Transport, *, heads_apart: bool = False
    ) -> None:
        self.written_ns: int | None = None
        self.last_read_ns = 0
        self.heads_apart = heads_apart
        self._head_end = b""  # of what was read so far
        self._protocol = protocol
        self._transport = transport

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next read as it came, or b"" at the end."""
        protocol = self._protocol
        if not protocol.reads:
            if timeout is None:
                await protocol.wait()
            else:
                try:
                    async with asyncio.timeout(timeout):
                        await protocol.wait()
                except TimeoutError:
                    raise httpcore2.ReadTimeout(f"nothing came for {timeout:g} s") from None
        if protocol.reads:
            self.last_read_ns, data = protocol.reads.popleft()
            return self._head_of(data) if self.heads_apart else data
        if protocol.error is not None:
            raise httpcore2.ReadError(str(protocol.error) or type(protocol.error).__name__)
        return b""

    def _head_of(self, data: bytes) -> bytes:
        """Up to the end of a head, if one ends here; the rest is read next, with this time."""
        before = self._head_end
        end = _HEAD_END.search(before + data)
        if end is None:
            self._head_end = (before + data)[-2:]
            return data
        self._head_end = b""
        cut = end.end() - len(before)
        if cut < len(data):
            self._protocol.reads.appendleft((self.last_read_ns, data[cut:]))
        return data[:cut]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Hand over to the kernel; waits while its buffer is full."""
        if not buffer:
            return
        if self.written_ns is None:
            self.written_ns = time.monotonic_ns()
        if self._protocol.error is not None or self._transport.is_closing():
            raise httpcore2.WriteError("the connection is closed")
        self._transport.write(buffer)
        try:
            async with asyncio.timeout(timeout):
                await self._protocol.writable.wait()
        except TimeoutError:
            raise httpcore2.WriteTimeout(f"could not send for {timeout:g} s") from None

    async def aclose(self) -> None:
        """Close at once: what the server still sends to a stopped request is of no use."""
        self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> StampedStream:
        """The same connection with TLS over it."""
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                self._transport, self._protocol, ssl_context,
                server_hostname=server_hostname, ssl_handshake_timeout=timeout,
            )  # fmt: skip
        except (OSError, ssl.SSLError, ssl.CertificateError) as error:
            self._transport.abort()
            raise httpcore2.ConnectError(f"TLS failed: {_NUMBER.sub('', str(error))}") from None
        if transport is None:
            raise httpcore2.ConnectError("TLS failed: the server closed the connection")
        return StampedStream(self._protocol, transport, heads_apart=self.heads_apart)

    def get_extra_info(self, info: str) -> Any:
        """httpcore asks whether an idle connection has something to read."""
        if info == "is_readable":
            return bool(self._protocol.reads) or self._protocol.ended
        return self._transport.get_extra_info(info)


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.reads: deque[tuple[int, bytes]] = deque()
        self.ended = False
        self.error: Exception | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = asyncio.get_running_loop()  # asked for once: it is a system call
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until there is a read, or the end."""
        if self.ended:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def data_received(self, data: bytes) -> None:
        self.reads.append((time.monotonic_ns(), data))
        self._wake()

    def eof_received(self) -> bool:
        self.ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended, self.error = True, exc
        self.writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class StampedBackend(httpcore2.AsyncNetworkBackend):
    """Opens `StampedStream` connections on asyncio's loop."""

    def __init__(self, *, heads_apart: bool = False) -> None:
        self._heads_apart = heads_apart

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> StampedStream:
        """Every address of the host is tried, IPv6 and IPv4 beside each other."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await loop.create_connection(
                    _Protocol, host, port, happy_eyeballs_delay=0.25
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout:g} s") from None
        except socket.gaierror as error:
            raise httpcore2.ConnectError(f"no such host: {error.strerror or error}") from None
        except OSError as error:  # asyncio's may have several in one text
            raise httpcore2.ConnectError(_NUMBER.sub("", str(error))) from None
        return StampedStream(protocol, transport, heads_apart=self._heads_apart)

    async def sleep(self, seconds: float) -> None:
        """Not used: there are no retries."""
        await asyncio.sleep(seconds)
