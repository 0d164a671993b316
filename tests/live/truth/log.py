"""What the server did, request by request.  All times are CLOCK_MONOTONIC nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

End = Literal["open", "complete", "error", "reset", "cut", "closed", "silent", "died", "left"]


class Sent(NamedTuple):
    """One send call."""

    due_ns: int  # when the script says
    at_ns: int  # just before the call
    size: int  # bytes, HTTP framing included
    tokens: int
    data: bytes | None = None  # where the server was told to keep them


class StepLog(NamedTuple):
    """One engine step, before any proxy; the first is the prefill's."""

    end_ns: int
    committed: int


@dataclass
class RequestLog:
    """One request and its answer so far."""

    index: int  # of all requests, from 0
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: Any  # JSON, or None
    received_ns: int  # when its last byte was read
    status: int = 0
    measured: int | None = None  # the n-th measured request, from 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    steps: list[StepLog] = field(default_factory=list)  # planned; cut where the answer was
    sends: list[Sent] = field(default_factory=list)
    end: End = "open"
    ended_ns: int | None = None

    @property
    def tokens_sent(self) -> int:
        """Tokens that left the server."""
        return sum(s.tokens for s in self.sends)

    @property
    def token_sends(self) -> list[Sent]:
        """Sends that carried tokens."""
        return [s for s in self.sends if s.tokens]

    @property
    def ttft_s(self) -> float:
        """Request to first token, on the wire."""
        return (self.token_sends[0].at_ns - self.received_ns) / 1e9

    @property
    def decode_tok_per_s(self) -> float:
        """Tokens after the first send that had any, over the time from it to the last."""
        sends = self.token_sends
        return sum(s.tokens for s in sends[1:]) / ((sends[-1].at_ns - sends[0].at_ns) / 1e9)

    @property
    def engine_tok_per_s(self) -> float:
        """The same from the engine's own steps, whatever the wire made of them."""
        first, *rest = self.steps
        return sum(s.committed for s in rest) / ((rest[-1].end_ns - first.end_ns) / 1e9)

    @property
    def lateness_s(self) -> list[float]:
        """Of every send, behind the script."""
        return [(s.at_ns - s.due_ns) / 1e9 for s in self.sends]
