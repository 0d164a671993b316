"""The time limits of one streamed answer: which applies next, and what it means that it ran out."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from verify_attn.live.chunk import Chunk

if TYPE_CHECKING:
    from verify_attn.live.client import Answer, Limits

AFTER_FINISH_S = 5.0  # how long usage may come after the finish reason


class Watch:
    """Keeps the timer of one request at the limit that applies next."""

    def __init__(self, limits: Limits, answer: Answer) -> None:
        self.limits, self.answer = limits, answer
        self.reached: str | None = None
        self._tokens = 0
        self._first_ns: int | None = None
        self._due = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def start(self, timer: asyncio.Timeout) -> None:
        self._timer, self._loop = timer, asyncio.get_running_loop()
        self._in(self.limits.connect_s + self.limits.first_token_s)

    async def trace(self, step: str, info: dict[str, Any]) -> None:
        """httpcore's word on what it does: the limit to the first token begins with the request."""
        if step == "http11.send_request_headers.started":
            self._in(self.limits.first_token_s)

    def stop(self) -> None:
        """The answer is over."""
        if self._alarm is not None:
            self._alarm.cancel()

    def chunk(self, chunk: Chunk, t_ns: int) -> None:
        """A chunk came: which limit is next?"""
        if chunk.text_chars or chunk.tokens:
            self._tokens += 1  # at least one
            self._first_ns = self._first_ns or t_ns
        elif not chunk.has_choice:
            return  # no sign that the answer goes on
        elif self._first_ns is not None:
            self._tokens += 1  # a token without text, or as good as one: else this has no end
        if chunk.finish is not None:
            self._in(AFTER_FINISH_S)
        elif self._first_ns is not None:
            left_s = self.limits.decode_s - (t_ns - self._first_ns) / 1e9
            if self._tokens >= self.limits.min_tokens and left_s <= 0:
                self.reached = self._at_limit()
            elif self._tokens >= self.limits.min_tokens:
                self._in(min(self.limits.stall_s, left_s))
            else:
                self._in(self.limits.stall_s)

    def expired(self) -> None:
        """The timer ran out: say of what."""
        stream, limits = self.answer.stream, self.limits
        if stream.finish is not None:
            stream.notes.append(
                f"after its finish reason the stream stayed open for {AFTER_FINISH_S:g} s"
            )
            stream.end()
        elif self._first_ns is None:
            text = f"no token within {limits.first_token_s:g} s of the request"
            if self.answer.status is None:
                self.answer.unreachable = text
            else:
                stream.end(failure=text)
        elif self._tokens >= limits.min_tokens and (
            time.monotonic_ns() - self._first_ns >= limits.decode_s * 1e9
        ):
            stream.end(stopped=self._at_limit())
        else:
            stream.end(failure=f"stalled: no chunk for {limits.stall_s:g} s after {self._tokens}")

    def _at_limit(self) -> str:
        return f"ended by this client at its limit of {self.limits.decode_s:g} s of decoding"

    def _in(self, seconds: float) -> None:
        """The limit is so far off from now.

        Every chunk moves it, so an alarm that is set for earlier stays, and looks again then.
        """
        self._due = self._loop.time() + seconds
        if self._alarm is None or self._due < self._alarm.when():
            self.stop()
            self._alarm = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        if self._loop.time() < self._due:
            self._alarm = self._loop.call_at(self._due, self._ring)
        else:
            self._timer.reschedule(self._due)
