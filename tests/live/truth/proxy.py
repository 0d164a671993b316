"""What goes wrong between the engine and the client: late bytes, and answers that break off."""

from __future__ import annotations

import math

from tests.live.truth.log import End
from tests.live.truth.scenario import Fault
from tests.live.truth.wire import Event

_ERRORS = {
    "openai": (
        'data: {"error": {"message": "EngineCore encountered an issue.", '
        '"type": "InternalServerError", "param": null, "code": 500}}\n\ndata: [DONE]\n\n'
    ),
    "tgi": (
        'event: error\ndata: {"error":"Request failed during generation",'
        '"error_type":"generation"}\n\n'
    ),
}


def delay(events: list[Event], fault: Fault) -> list[Event]:
    """The events at the times at which a proxy lets them through."""
    if fault.stall_at is not None:
        events = _stall(events, fault.stall_at, fault.stall_s)
    if fault.fake_streaming:
        events = [e._replace(at_s=events[-1].at_s + i * 2e-6) for i, e in enumerate(events)]
    if fault.buffer_s is not None:
        every = fault.buffer_s
        events = [e._replace(at_s=math.ceil(e.at_s / every) * every) for e in events]
    if fault.buffer_bytes is not None:
        events = _fill(events, fault.buffer_bytes)
    return events


def _stall(events: list[Event], at: int, seconds: float) -> list[Event]:
    seen, until = 0, None
    found = []
    for event in events:
        if until is None and seen >= at:
            until = event.at_s + seconds
        late = until is not None and event.at_s < until
        found.append(event._replace(at_s=until) if late and until is not None else event)
        seen += event.tokens
    return found


def _fill(events: list[Event], size: int) -> list[Event]:
    """Whole events leave once ``size`` bytes have come together, and at the end."""
    found: list[Event] = []
    waiting: list[Event] = []
    for event in events:
        waiting.append(event)
        if sum(len(e.data) for e in waiting) >= size or event is events[-1]:
            found += [e._replace(at_s=event.at_s) for e in waiting]
            waiting = []
    return found


def break_off(events: list[Event], fault: Fault, *, dies: bool) -> tuple[list[Event], End]:
    """The events that still come, an empty one for a mere end, and how the answer ends."""
    total = sum(e.tokens for e in events)
    cuts: list[tuple[int | None, End]] = [
        (fault.error_at, "error"),
        (fault.reset_at, "reset"),
        (fault.cut_at, "cut"),
        (fault.close_at, "closed"),
        (fault.silence_at, "silent"),
        (min(fault.die_after, total - 1) if dies else None, "died"),
    ]
    for at, end in cuts:
        if at is None or at >= total:
            continue
        kept = _first_tokens(events, at)
        if end != "silent":  # when the next event would have come
            when = events[min(len(kept), len(events) - 1)].at_s
            last = _ERRORS[fault.error_form].encode() if end == "error" else b""
            kept.append(Event(when, last))
        return kept, end
    return events, "complete"


def _first_tokens(events: list[Event], count: int) -> list[Event]:
    """Events up to the one with the ``count``-th token; none of the tokens after it."""
    kept, seen = [], 0
    for event in events:
        if event.tokens and seen >= count:
            break
        kept.append(event)
        seen += event.tokens
    return kept
