"""A client that knows nothing: one socket, and what came out of it when."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from tests.live.truth.log import RequestLog
from tests.live.truth.process import TruthServer
from tests.live.truth.scenario import Scenario


@dataclass
class Received:
    """Everything that came, read by read."""

    reads: list[tuple[int, bytes]] = field(default_factory=list)  # CLOCK_MONOTONIC ns, bytes
    ended: str = ""  # "whole", "eof", "reset", "refused" or "silence"

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.reads)

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1]) if self.raw else 0

    @property
    def head(self) -> str:
        return self.raw.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def body(self) -> bytes:
        """Without the framing of chunks."""
        rest = self.raw.partition(b"\r\n\r\n")[2]
        if "transfer-encoding: chunked" not in self.head:
            return rest
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The JSON of every event; [DONE] as a string."""
        lines = self.body.decode().replace("\r\n", "\n").split("\n")
        data = [line[5:].strip() for line in lines if line.startswith("data:")]
        return [d if d == "[DONE]" else json.loads(d) for d in data]

    @property
    def choices(self) -> list[Any]:
        """The first choice of every event that has one."""
        objects = [e for e in self.events if e != "[DONE]" and e.get("choices")]
        return [e["choices"][0] for e in objects]

    def text(self, key: str = "content") -> str:
        """All text of one kind; a completion's is content."""
        deltas = [c.get("delta", {"content": c.get("text")}) for c in self.choices]
        return "".join(d.get(key) or "" for d in deltas)

    @property
    def usage(self) -> Any:
        """The last one."""
        found = [e["usage"] for e in self.events if e != "[DONE]" and e.get("usage")]
        return found[-1] if found else None


def ask(
    port: int,
    path: str,
    body: Any = None,
    *,
    headers: tuple[str, ...] = (),
    silence_s: float = 3.0,
) -> Received:
    """One request on a connection of its own, until it is answered or nothing more comes."""
    content = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    lines = [f"{method} {path} HTTP/1.1", "host: here", f"content-length: {len(content)}", *headers]
    got = Received()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=silence_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + content)
            while not got.ended:
                data = sock.recv(1 << 20)
                got.reads.append((time.monotonic_ns(), data))
                got.ended = "" if data else "eof"
                if data and _whole(got):
                    got.ended = "whole"
    except TimeoutError:
        got.ended = "silence"
    except ConnectionRefusedError:
        got.ended = "refused"
    except ConnectionResetError:
        got.ended = "reset"
    return got


def _whole(got: Received) -> bool:
    if "transfer-encoding: chunked" in got.head:
        tail = b"".join(data for _, data in got.reads[-2:])
        return tail.endswith(b"\r\n0\r\n\r\n")
    length = [line for line in got.head.split("\r\n") if line.startswith("content-length:")]
    return bool(length) and len(got.body) >= int(length[0].split(":")[1])


def chat(text: str = "Tell me a story.", tokens: int = 60, **more: Any) -> dict[str, Any]:
    """The body of a streamed chat request that asks for usage."""
    messages = [{"role": "user", "content": text}]
    return _streamed(tokens, {"messages": messages, **more})


def completion(text: str = "Once upon a time", tokens: int = 60, **more: Any) -> dict[str, Any]:
    """The same for a completion."""
    return _streamed(tokens, {"prompt": text, **more})


def _streamed(tokens: int, rest: dict[str, Any]) -> dict[str, Any]:
    options = {"include_usage": True}
    return {
        "model": "truth",
        "stream": True,
        "stream_options": options,
        "max_tokens": tokens,
    } | rest


def one(
    scenario: Scenario, body: dict[str, Any] | None = None, silence_s: float = 3.0
) -> tuple[Received, RequestLog]:
    """One request to a scenario, and the server's account of it."""
    body = body or chat()
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with TruthServer(scenario) as server:
        got = ask(server.port, path, body, silence_s=silence_s)
        return got, server.requests()[0]
