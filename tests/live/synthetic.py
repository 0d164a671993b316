"""Answers made of times and token counts, without a network, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from verify_attn.live.absent import Absent
from verify_attn.live.causes import Finding
from verify_attn.live.client import Answer
from verify_attn.live.lag import Stall
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.within import diagnose_answer

SENT_NS = 1_000_000_000
WORD = "word "  # as long as any other, so that shares of the text are counts


class Sent(NamedTuple):
    """Tokens that arrive together, in one event."""

    at_s: float
    tokens: int


def steady(
    steps: int, step_s: float = 0.01, tokens: int | Sequence[int] = 1, first_s: float = 0.1
) -> list[Sent]:
    """Steps of one length, their tokens in turn."""
    turns = [tokens] if isinstance(tokens, int) else tokens
    return [Sent(first_s + i * step_s, turns[i % len(turns)]) for i in range(steps)]


def event(
    tokens: int, *, ids: bool = False, running: int | None = None, finish: str | None = None
) -> bytes:
    """A chunk of a chat."""
    choice: dict[str, Any] = {
        "index": 0, "delta": {"content": WORD * tokens}, "finish_reason": finish,
    }  # fmt: skip
    if ids:
        choice["token_ids"] = list(range(tokens))
    body: dict[str, Any] = {"choices": [choice]}
    if running is not None:
        body["usage"] = {"prompt_tokens": 100, "completion_tokens": running}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answer(
    sends: Iterable[Sent],
    *,
    usage: bool = True,
    ids: bool = False,
    running: bool = False,
    asked: int = 4096,
    stalls: Iterable[tuple[float, float]] = (),
    offset_ns: int = 0,
) -> Answer:
    """The answer that a client would have got; ``stalls`` are its own, in seconds.

    Events of one time share a read.  The usage and the end come with the last token.
    """
    sent_ns = SENT_NS + offset_ns
    found = Answer({"max_tokens": asked}, "/v1/chat/completions", sent_ns, sent_ns, 200)
    found.stalls = [
        Stall(sent_ns + round(begin * 1e9), sent_ns + round(end * 1e9)) for begin, end in stalls
    ]
    total, last_ns = 0, sent_ns
    for at_s, tokens in sends:
        total, last_ns = total + tokens, sent_ns + round(at_s * 1e9)
        found.stream.feed(last_ns, event(tokens, ids=ids, running=total if running else None))
    tail = event(0, finish="length", ids=ids)
    if usage:
        counts = {"prompt_tokens": 100, "completion_tokens": total}
        tail += b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"
    found.stream.feed(last_ns, tail + b"data: [DONE]\n\n")
    found.stream.end()
    return found


def measured(sends: Iterable[Sent], **how: Any) -> Measurement:
    """`measure` of `answer`."""
    return measure(answer(sends, **how))


def findings(sends: Iterable[Sent], **how: Any) -> list[Finding]:
    """What the diagnosis says of an answer whose server has no counters."""
    nothing = Absent("not said")
    return diagnose_answer(measured(sends, **how), None, nothing, nothing)


def causes(sends: Iterable[Sent], **how: Any) -> list[str]:
    """Their names."""
    return [finding.cause for finding in findings(sends, **how)]
