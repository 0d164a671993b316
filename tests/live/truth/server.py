"""The server itself: connections, scripted sends, deaths.

Alone, a stream's sends are waited for by spinning through the last stretch; as soon as there are
several, timers alone must do.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import time
import zlib
from pathlib import Path
from typing import Any

from tests.live.truth import http
from tests.live.truth.engine import Generation, generate
from tests.live.truth.log import End, RequestLog, Sent, StepLog
from tests.live.truth.proxy import break_off, delay
from tests.live.truth.refuse import Answer, asked_tokens, finished, prompt_of, refusal
from tests.live.truth.scenario import Scenario
from tests.live.truth.side import side_answer
from tests.live.truth.wire import Event, Writer, merge

_SPIN_NS = 1_000_000
_BLOCK = 16  # tokens of a prefix-cache block
GENERATION = {"/v1/completions": False, "/v1/chat/completions": True}


def shared_start(a: str, b: str) -> int:
    """Characters that two texts begin with alike."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


class Server:
    """What the connections share."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.scenario: Scenario = setup["scenario"]
        self.keep_bytes: bool = setup["keep_bytes"]
        self.spin: bool = setup["spin"]
        self.path = Path(setup["log"])
        self.started_ns = time.monotonic_ns()
        self.log: list[RequestLog] = []
        self.answers: list[tuple[RequestLog, Generation]] = []
        self.playing: set[Playback] = set()
        self.measured = 0
        self.flushes = 0
        self.flushed_ns = 0
        self.prompts: list[str] = []

    def connection(self) -> Connection:
        """A new one."""
        return Connection(self)

    def save(self) -> None:
        """Write the log, whole or not at all."""
        part = self.path.with_suffix(".part")
        part.write_bytes(pickle.dumps(self.log))
        part.replace(self.path)

    def die(self) -> None:
        """As a crash would: nobody says goodbye."""
        self.save()
        os._exit(1)

    def cached_tokens(self, record: RequestLog, prompt: str) -> int:
        """Of a prompt: by script, or by what was asked before."""
        prefill, tokenizer = self.scenario.prefill, self.scenario.tokenizer
        found, length = 0, record.prompt_tokens
        low, high = prefill.cached_between or (1, 0)
        if record.measured in prefill.cached_on or low <= length <= high:
            found = int(prefill.cached_share * length)
        elif prefill.prefix_cache:
            shared = max((shared_start(prompt, p) for p in self.prompts), default=0)
            found = min(tokenizer.count(prompt[:shared], chat=False), length - 1)
            found = found // _BLOCK * _BLOCK
            self.prompts = [*self.prompts[-63:], prompt]
        return found


class Playback:
    """One answer on its way."""

    def __init__(
        self,
        server: Server,
        connection: Connection,
        record: RequestLog,
        sends: list[Event],
        end: End,
    ) -> None:
        self.server, self.connection, self.record, self.end = server, connection, record, end
        self.sends = sends
        self.next = 0
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        server.playing.add(self)
        self.wait()

    def due_ns(self) -> int:
        """Of the next send."""
        return self.record.received_ns + round(self.sends[self.next].at_s * 1e9)

    def wait(self) -> None:
        """Until the next send, or a little less where the rest can be spun through."""
        lead = _SPIN_NS if self.server.spin else 0
        self.timer = self.loop.call_at((self.due_ns() - lead) / 1e9, self.fire)

    def fire(self) -> None:
        """Send what is due, and what will be so soon that a timer would not hit it."""
        alone = self.server.spin and len(self.server.playing) == 1
        write, clock = self.connection.transport.write, time.monotonic_ns
        until = clock() + 2 * _SPIN_NS
        while self.next < len(self.sends):
            due = self.due_ns()
            if due - clock() > (_SPIN_NS if alone else 50_000) or clock() > until:
                self.timer = self.loop.call_at((due - _SPIN_NS * alone) / 1e9, self.fire)
                return
            event = self.sends[self.next]
            while (now := clock()) < due:
                pass
            self.next += 1
            if not event.data:
                continue
            write(event.data)
            kept = event.data if self.server.keep_bytes else None
            self.record.sends.append(Sent(due, now, len(event.data), event.tokens, kept))
        self.stop(self.end)

    def stop(self, end: End) -> None:
        """The answer is over, one way or another."""
        self.server.playing.discard(self)
        if self.timer is not None:
            self.timer.cancel()
        self.record.end, self.record.ended_ns = end, time.monotonic_ns()
        if end != "complete":  # an engine stops working for an answer that nobody gets
            steps = self.record.steps
            self.record.steps = [s for s in steps if s.end_ns <= self.record.ended_ns]
        self.connection.over(end)


class Connection(asyncio.Protocol):
    """One client; requests on it are answered one after the other."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.busy: Playback | None = None
        self.silent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """No delay, and no flow control: the script knows no back pressure."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def socket(self) -> socket.socket:
        """The transport's own."""
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or it is all over."""
        if self.busy is not None:
            self.busy.stop("left")

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is whole."""
        now = time.monotonic_ns()
        self.buffer += data
        if self.busy is None and not self.silent:
            request = http.take_request(self.buffer)
            if request is not None:
                self.answer(request, now)

    def over(self, end: End) -> None:
        """What becomes of the connection after an answer."""
        self.busy = None
        if end == "died":
            self.reset()
            self.server.die()
        elif end == "reset":
            self.reset()
        elif end == "cut":
            self.transport.close()
        elif end == "silent":
            self.silent = True
        elif end != "left":
            self.data_received(b"")

    def reset(self) -> None:
        """RST."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    def answer(self, request: http.Request, now: int) -> None:
        """Log a request and start its answer."""
        server, scenario = self.server, self.server.scenario
        path = request.path.partition("?")[0]
        body = request.body
        record = RequestLog(
            len(server.log), request.method, request.path, request.headers, body, now
        )
        server.log.append(record)
        chat = GENERATION.get(path)
        if chat is not None and isinstance(body, dict):
            record.prompt_tokens = scenario.tokenizer.count(prompt_of(body, chat=chat), chat=chat)
        refused = refusal(scenario, record, generates=chat is not None)
        if refused is None and chat is None:
            refused = side_answer(server, record)
        if refused is not None:
            self.whole(record, refused)
        else:
            assert chat is not None
            self.generate(record, chat=chat)

    def whole(
        self, record: RequestLog, answer: Answer, at_s: float = 0.0, end: End = "complete"
    ) -> None:
        """An answer of known length, in one send."""
        record.status = answer.status
        data = http.whole(answer.status, answer.content_type, answer.body)
        self.busy = Playback(self.server, self, record, [Event(at_s, data)], end)

    def generate(self, record: RequestLog, *, chat: bool) -> None:
        """Play the engine's answer."""
        server, scenario, body = self.server, self.server.scenario, record.body
        fault, prompt = scenario.fault, prompt_of(body, chat=chat)
        asked, stream = asked_tokens(scenario, record), bool(body.get("stream"))
        if stream and asked >= scenario.measured_from:
            server.measured += 1
            record.measured = server.measured
        if fault.hang and fault.applies(record.measured):
            record.end, self.silent = "silent", True
            return
        record.cached_tokens = server.cached_tokens(record, prompt)
        late = fault.warm_up_s if record.measured == 1 else 0.0
        salt = zlib.crc32(prompt.encode())
        made = generate(scenario, record.prompt_tokens, record.cached_tokens, asked, salt, late)
        start = record.received_ns
        record.steps = [StepLog(start + round(s.end_s * 1e9), len(s.tokens)) for s in made.steps]
        server.answers.append((record, made))
        if not stream:
            self.whole(record, finished(scenario, made, chat=chat), made.steps[-1].end_s)
            return
        writer = Writer(scenario, made, body, chat=chat)
        events: list[Event] = writer.events()
        end: End = "complete"
        if fault.applies(record.measured):
            dies = fault.dies(record.measured, record.prompt_tokens)
            events, end = break_off(events, fault, dies=dies)
            events = delay(events, fault)
        record.status = 200
        early = scenario.wire.headers == "at-once" or not events
        head = Event(0.0 if early else events[0].at_s, http.head(200, http.STREAM, length=None))
        sends = [Event(e.at_s, http.chunk(e.data) if e.data else b"", e.tokens) for e in events]
        if end in ("complete", "error", "closed"):
            sends.append(Event(sends[-1].at_s if sends else 0.0, http.chunk(b"")))
        self.busy = Playback(server, self, record, merge([head, *sends]), end)
