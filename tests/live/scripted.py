"""Scripted answers: events at given times into the real stream, or bytes out of a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from tests.live.truth.http import Request, take_request
from verify_attn.live.client import Answer, Client, Limits
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.target import Target

DONE = b"data: [DONE]\n\n"
Said = dict[str, Any] | bytes


def sse(value: Said) -> bytes:
    """One event; bytes stay as they are."""
    return value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chat event whose delta has these fields."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def word(text: str = "word ", finish: str | None = None) -> dict[str, Any]:
    """A chat event with text."""
    return delta(finish, content=text)


def usage(completion: int, prompt: int = 10, **more: Any) -> dict[str, Any]:
    """The event of counts alone."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return {"choices": [], "usage": counts}


ROLE = delta(role="assistant", content="")


def answered(*reads: tuple[float, Said], **ending: str) -> Answer:
    """An answer whose reads came so many seconds after the request."""
    answer = Answer({}, "/v1/chat/completions", 0, sent_ns=0, status=200)
    for t_s, said in reads:
        answer.stream.feed(round(t_s * 1e9), sse(said))
    answer.stream.end(**ending)
    return answer


def measured(*reads: tuple[float, Said], **ending: str) -> Measurement:
    """Its figures."""
    return measure(answered(*reads, **ending))


def steady(
    n: int, *, first_s: float = 0.1, gap_s: float = 0.01, finish: str = "length"
) -> list[tuple[float, Said]]:
    """``n`` events of one token each, the last with its finish reason; usage and [DONE]."""
    reads: list[tuple[float, Said]] = [(first_s + i * gap_s, word()) for i in range(n)]
    end_s = first_s + (n - 1) * gap_s
    reads[-1] = (end_s, word(finish=finish))
    return [*reads, (end_s + 1e-4, usage(n)), (end_s + 2e-4, DONE)]


# -- over a socket ---------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = HEAD.replace(b"connection: close", b"transfer-encoding: chunked")
RESET, SILENCE = "reset", "silence"
Script = Sequence[bytes | float | str]  # bytes to send, seconds to wait, or how to end


def reply(status: int, body: bytes, kind: str = "application/json", *headers: str) -> list[bytes]:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}"]
    return ["\r\n".join([*lines, *headers, "", ""]).encode() + body]


def as_json(value: Any, status: int = 200) -> list[bytes]:
    """A whole answer in JSON."""
    return reply(status, json.dumps(value).encode())


def chunked(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ScriptedServer:
    """Answers every request with what ``script`` makes of it, then closes the connection."""

    def __init__(
        self, script: Callable[[Request], Script], tls: ssl.SSLContext | None = None
    ) -> None:
        self.script, self.tls = script, tls
        self.requests: list[Request] = []
        self._over = threading.Event()

    @property
    def url(self) -> str:
        """Its root."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://localhost:{self._socket.getsockname()[1]}"

    @property
    def asked(self) -> list[Request]:
        """Those that asked for tokens."""
        return [request for request in self.requests if "completions" in request.path]

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffer = bytearray()
            while (request := take_request(buffer)) is None:
                data = connection.recv(1 << 16)
                if not data:
                    return
                buffer += data
                if self.tls is None and buffer.startswith(b"\x16"):  # a client that speaks TLS
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
            self.requests.append(request)
            for action in self.script(request):
                if isinstance(action, bytes):
                    connection.sendall(action)
                elif isinstance(action, float):
                    time.sleep(action)
                elif action == RESET:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                else:
                    self._over.wait(60)
            connection.close()


def ask(url: str, limits: Limits | None = None, api_key: str | None = None) -> Answer:
    """One streamed chat request by the sweep's own client."""
    client = Client(Target.parse(url, api_key))
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    return asyncio.run(client.stream("/v1/chat/completions", body, limits or Limits()))


def asked(*script: bytes | float | str, limits: Limits | None = None) -> Answer:
    """The same of a server with one answer for everything."""
    with ScriptedServer(lambda request: script) as server:
        return ask(server.url, limits)
