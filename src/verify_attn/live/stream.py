"""One streamed answer: what came over the wire, when, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from verify_attn.live.chunk import DONE, Chunk, Usage, error_in, parse_chunk
from verify_attn.live.sse import Decoder, Event

MAX_KEPT_EVENTS = 200  # of those that carry more than text: final statistics, errors
_PLAIN_KEYS = {
    "id", "object", "created", "model", "choices", "system_fingerprint", "usage", "service_tier",
    "prompt_token_ids", "prompt_text",
}  # fmt: skip
COMPLETE, TRUNCATED, FAILED, STOPPED = "complete", "truncated", "failed", "stopped"


@dataclass(frozen=True, slots=True)
class Read:
    """One network read: monotonic time, size, and the chunks whose event it completed."""

    t_ns: int
    size_bytes: int
    chunks: tuple[Chunk, ...]
    events: int


class Stream:
    """Fed with the reads of one answer's body; knows at the end what it was.

    ``outcome`` is ``complete``, ``truncated`` (the body ended with neither a finish reason nor
    ``[DONE]``), ``failed`` (an error event, a malformed event, a broken connection, no token at
    all) or ``stopped`` (this client ended it, at a time limit); ``reason`` says why.
    """

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.text = ""
        self.reasoning = ""
        self.tool = ""
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.done = False
        self.failure: str | None = None
        self.stopped: str | None = None
        self.notes: list[str] = []
        self.events: list[dict[str, Any]] = []  # those with more than text, for other readers
        self.bad_events = 0
        self._decoder = Decoder()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tool: list[str] = []
        self._ended = False

    def feed(self, t_ns: int, data: bytes) -> tuple[Chunk, ...]:
        """The chunks that this read completed."""
        events = self._decoder.feed(data)
        chunks = [chunk for event in events if (chunk := self._event(event)) is not None]
        if self.reads and self.reads[-1].t_ns == t_ns:  # more of the same network read
            last = self.reads.pop()
            self.reads.append(
                Read(t_ns, last.size_bytes + len(data), (*last.chunks, *chunks),
                     last.events + len(events))
            )  # fmt: skip
        else:
            self.reads.append(Read(t_ns, len(data), tuple(chunks), len(events)))
        return tuple(chunks)

    def end(self, failure: str | None = None, stopped: str | None = None) -> None:
        """The body is over: cleanly, by a failure of the transport, or because we stopped it."""
        if self._ended:
            return
        self._ended = True
        last = self._decoder.close()
        if last is not None and failure is None and stopped is None:
            self.notes.append("the last event was not terminated by a blank line")
            chunk = self._event(last)
            if chunk is not None and self.reads:
                read = self.reads[-1]
                self.reads[-1] = Read(
                    read.t_ns, read.size_bytes, (*read.chunks, chunk), read.events + 1
                )
        self.failure = self.failure or failure
        self.stopped = stopped
        self.text, self.reasoning = _joined(self._text), _joined(self._reasoning)
        self.tool = _joined(self._tool)

    @property
    def outcome(self) -> str:
        """How it ended, out of the closed list."""
        if self.failure is not None:
            return FAILED
        if self.stopped is not None:
            return STOPPED
        if not self.done and self.finish is None:
            return TRUNCATED
        return FAILED if self.empty else COMPLETE

    @property
    def text_seen(self) -> bool:
        """Has any text come yet?"""
        return bool(self._text or self._reasoning or self._tool)

    @property
    def empty(self) -> bool:
        """No chunk belonged to an answer."""
        return not any(chunk.has_choice for read in self.reads for chunk in read.chunks)

    @property
    def reason(self) -> str:
        """Why the outcome is what it is; empty for a complete answer."""
        if self.outcome == TRUNCATED:
            return "the stream ended with neither a finish reason nor [DONE]"
        if self.failure is None and self.outcome == FAILED:
            return "the answer was empty: no event carried a choice"
        return self.failure or self.stopped or ""

    def _event(self, event: Event) -> Chunk | None:
        data = event.data.strip()
        if not data:
            return None  # a keep-alive
        if self.done:
            self._note("data came after [DONE]; it was left out")
            return None
        if data == DONE:
            self.done = True
            return None
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self._malformed(event, data)
            return None
        message = error_in(body)
        if message is not None or event.type == "error":
            self._fail(f"the server sent an error inside the stream: {message or data[:500]}")
            self._keep(body)
            return None
        chunk = parse_chunk(body)
        self._text.append(chunk.content)
        self._reasoning.append(chunk.reasoning)
        self._tool.append(chunk.tool)
        if chunk.usage is not None:
            self.usage = chunk.usage.over(self.usage)
        if chunk.finish is not None:
            self.finish = chunk.finish
        ends = chunk.finish is not None or (chunk.usage is not None and not body.get("choices"))
        if ends or not _PLAIN_KEYS.issuperset(body):
            self._keep(body)
        return chunk

    def _malformed(self, event: Event, data: str) -> None:
        """Only what looks like a chunk can have lost one; a stray word is noted and passed over."""
        self.bad_events += 1
        if event.type == "error":
            self._fail(f"the server sent an error inside the stream: {data[:500]}")
        elif data.startswith(("{", "[")):
            self._fail(f"an event is not the JSON object it should be: {data[:200]!r}")
        else:
            self._note(f"an event that is no chunk was passed over: {data[:80]!r}")

    def _fail(self, message: str) -> None:
        self.failure = self.failure or message

    def _note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 20:
            self.notes.append(note)

    def _keep(self, body: dict[str, Any]) -> None:
        if len(self.events) == MAX_KEPT_EVENTS:
            self.events.pop(0)
        self.events.append(body)


def _joined(parts: list[str]) -> str:
    """One text; the two halves of a character, escaped in two events, become it again."""
    text = "".join(parts)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
