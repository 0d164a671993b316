"""Fuzz targets for one streamed answer: the decoder, the stream, its figures and its diagnosis."""

from __future__ import annotations

import json
import math
import random
from dataclasses import fields
from typing import Any

from benchmarks.mutations import DATA, DOCUMENTED, TEXT_JUNK, mutate_json

from verify_attn.live.absent import Absent
from verify_attn.live.client import Answer
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.sse import Decoder, Event
from verify_attn.live.stream import Stream
from verify_attn.live.within import diagnose_answer

OUTCOMES = ("complete", "truncated", "failed", "stopped")
LINE_ENDS = (b"\n", b"\n", b"\r\n", b"\r")
# Lines that are no data, or odd data; each is a line of its own or ends an event.
LINES: tuple[bytes, ...] = (
    b": ping", b":", b"", b"data", b"data:", b"data: ", b"data: [DONE]", b"data:[DONE] ", b"id: 1",
    b"id: \0", b"event: error", b"event: message", b"retry: 3000", b"junk", b"\xef\xbb\xbf",
    b"data: : OPENROUTER PROCESSING", b"data: {", b"data: []", b"data: 7", b"data: \xe4\xb8",
    b'data: {"error":"gone","error_type":"generation"}', b'data: {"error":{"code":500}}',
)  # fmt: skip


class Cut(AssertionError):
    """Where the reads end changed what was read, or a figure cannot be."""


def _bodies() -> list[bytes]:
    found = [p.read_bytes() for p in sorted((DATA / "recordings").glob("*.txt"))]
    return [body[:6000] for body in found if body.startswith((b"data:", b":"))]


def _seeds() -> list[Any]:
    """The distinct kinds of event that servers send: the first two and the last two of each."""
    found: list[Any] = []
    for body in _bodies():
        lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
        for line in lines[:2] + lines[-2:]:
            try:
                found.append(json.loads(line))
            except ValueError:  # the cut through the body
                continue
    return found + list(DOCUMENTED["events"])


BODIES, SEEDS = _bodies(), _seeds()


def _line(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(LINES)
    value = rng.choice(SEEDS)
    if kind < 0.6:
        value = mutate_json(rng, value)
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    except (ValueError, OverflowError):
        text = "{}"
    if kind > 0.97:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(TEXT_JUNK) + text[at:]
    text = text.replace("\r", " ").replace("\n", " ")
    return b"data: " + text.encode("utf-8", "replace")


def body_of(rng: random.Random) -> bytes:
    """A recording with a few edits, or events that are alike, odd or broken, in a row."""
    kind = rng.random()
    if kind < 0.15:
        body = rng.choice(BODIES)
        body = body[: rng.randrange(len(body) + 1)]
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(body) + 1)
            fresh = rng.choice((rng.randbytes(2), rng.choice(LINES), b"\n", b"\r", b"}"))
            body = body[:at] + fresh + body[at + rng.choice((0, 1, 9)) :]
        return body
    end = rng.choice(LINE_ENDS)
    blank = end if rng.random() < 0.9 else b""
    if kind < 0.6:
        return b"".join(_line(rng) + end + blank for _ in range(rng.randrange(12)))
    # An answer that could be, of up to 60 events, with usage that may be anything.
    text = rng.choice(("a", "", "word ", "\u4e16", "\ud83d"))
    events = [
        {"choices": [{"index": 0, "delta": {"content": text * rng.randrange(4)}}]}
        for _ in range(rng.randrange(60))
    ]
    if rng.random() < 0.3:
        for i, event in enumerate(events):
            event["usage"] = {"completion_tokens": i * rng.choice((0, 1, 1, 1, 4, -1))}  # type: ignore[assignment]
    events.append({"choices": [{"delta": {}, "finish_reason": rng.choice(("stop", "length"))}]})
    tokens = rng.choice((len(events), len(events) - 1, 4 * len(events), 0, 1, 10**400, "7", None))
    events.append({"choices": [], "usage": {"completion_tokens": tokens}})  # type: ignore[dict-item]
    lines = [b"data: " + json.dumps(event).encode() for event in events] + [b"data: [DONE]"]
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines)), rng.choice(LINES))
    return b"".join(line + end + blank for line in lines[: rng.choice((-1, None, None))])


def cuts_of(rng: random.Random, body: bytes) -> list[bytes]:
    """The body in reads, cut anywhere."""
    several = rng.choice((0, 1, 5, 40, 80))
    ends = sorted(rng.randrange(len(body) + 1) for _ in range(several))
    return [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]


def decoder(rng: random.Random) -> None:
    """Any cut gives the same events."""
    body = body_of(rng)
    if _decode(cuts_of(rng, body)) != _decode([body]):
        raise Cut("the cuts between reads changed the events")


def _decode(reads: list[bytes]) -> list[Event]:
    reader = Decoder()
    events = [event for read in reads for event in reader.feed(read)]
    last = reader.close()
    return events if last is None else [*events, last]


def stream(rng: random.Random) -> None:
    """Any cut gives the same answer, and its figures are absent or possible."""
    body = body_of(rng)
    ending = {"failure": None, "stopped": None}
    if rng.random() < 0.2:
        ending[rng.choice(("failure", "stopped"))] = "because"
    whole = _read([(1, body)], ending)
    t_ns, reads = 1, []
    for read in cuts_of(rng, body):
        t_ns += rng.choice((0, 0, 1, 20_000, 8_000_000, 8_000_000, 3_000_000_000))
        reads.append((t_ns, read))
    found = _read(reads, ending)
    if _said(found) != _said(whole):
        raise Cut("the cuts between reads changed the answer")
    if found.outcome not in OUTCOMES or (found.outcome == "complete") == bool(found.reason):
        raise Cut(f"outcome {found.outcome!r} for the reason {found.reason!r}")
    answer = Answer({}, "/", 0, sent_ns=0, status=200, stream=found)
    measured = measure(answer, rng.choice((8, 128)))
    possible(measured)
    if rng.random() < 0.4:  # it takes longest
        _diagnosed(rng, measured)


def _diagnosed(rng: random.Random, measured: Measurement) -> None:
    cached = rng.choice((Absent("none"), 0, 80))
    asked = rng.choice((None, 8, 10**6))
    for cause in diagnose_answer(measured, asked, Absent("none"), cached):
        own = cause.evidence.replace(measured.reason, "") if measured.reason else cause.evidence
        if not cause.evidence or "nan" in own or "inf " in own:
            raise Cut(f"evidence {cause.evidence!r}")


def _read(reads: list[tuple[int, bytes]], ending: dict[str, str | None]) -> Stream:
    found = Stream()
    for t_ns, data in reads:
        found.feed(t_ns, data)
    found.end(**ending)
    return found


def _said(of: Stream) -> tuple[Any, ...]:
    chunks = [chunk for read in of.reads for chunk in read.chunks]
    return (
        *(of.text, of.reasoning, of.tool, of.usage, of.finish, of.done, of.outcome, of.reason),
        *(chunks, repr(of.events), of.bad_events, of.notes, sum(r.events for r in of.reads)),
        sum(read.size_bytes for read in of.reads),
    )


def possible(measured: Measurement) -> None:
    """Raise `Cut` unless every figure is absent with a reason, or finite and not negative."""
    holders: list[Any] = [measured, *measured.windows]
    for holder in holders:
        for field in fields(holder):
            value = getattr(holder, field.name)
            if isinstance(value, Absent):
                if not value.reason:
                    raise Cut(f"{field.name} is absent without a reason")
            elif isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise Cut(f"{field.name} is {value}")
    for name in ("decode_tok_s", "first_token_s", "burst_tok_s", "two_point_tok_s", "whole_tok_s"):
        if getattr(measured, name) == 0:
            raise Cut(f"{name} is 0")
    for tokens in (measured.timeline.tokens, measured.steps.tokens):
        if not isinstance(tokens, Absent) and not all(math.isfinite(t) and t > 0 for t in tokens):
            raise Cut("an event carried less than nothing")
    rate = measured.prefill_tok_s(Absent("not said"))
    if not isinstance(rate, Absent) and not (math.isfinite(rate) and rate > 0):
        raise Cut(f"prefill of {rate} tok/s")
