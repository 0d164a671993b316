"""An answer as server-sent events: which bytes, when, and how many tokens are in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.live.truth.engine import Generation
from tests.live.truth.scenario import Scenario
from tests.live.truth.words import ESCAPED

_BURST_S = 10e-6  # between the tokens of a step that are sent one by one
_ROLE_LEAD_S = 0.002
_ROLE_CONTENT = {"empty": ',"content":""', "null": ',"content":null', "missing": ""}
_REASONING = {
    "reasoning_content": '"reasoning_content":"{0}"',
    "reasoning": '"reasoning":"{0}"',
    "both": '"reasoning":"{0}","reasoning_content":"{0}"',
}


class Event(NamedTuple):
    """Bytes that are due ``at_s`` after the request."""

    at_s: float
    data: bytes
    tokens: int = 0


class Chunk(NamedTuple):
    """Tokens that travel together: ids[start:] of the answer."""

    at_s: float
    start: int
    ids: tuple[int, ...]


def chunks(scenario: Scenario, answer: Generation) -> Iterator[Chunk]:
    """The answer's steps, as the server groups or splits them."""
    wire = scenario.wire
    position = 0
    held: tuple[int, ...] = ()
    for number, step in enumerate(answer.steps):
        if wire.per_token:
            for i, token in enumerate(step.tokens):
                yield Chunk(step.end_s + i * _BURST_S, position + i, (token,))
            position += len(step.tokens)
            continue
        held += step.tokens
        if number in (0, len(answer.steps) - 1) or len(held) >= wire.chunk_interval:
            yield Chunk(step.end_s, position, held)
            position += len(held)
            held = ()


def usage(answer: Generation, generated: int, scenario: Scenario, *, chat: bool) -> dict[str, Any]:
    """The usage object after so many tokens."""
    found: dict[str, Any] = {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + generated,
        "completion_tokens": generated,
    }
    if scenario.prefill.report_cached:
        found["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    if chat and scenario.wire.reasoning_tokens:
        thought = min(generated, scenario.wire.reasoning_tokens)
        found["completion_tokens_details"] = {"reasoning_tokens": thought}
    return found


def timings(scenario: Scenario, answer: Generation) -> dict[str, Any]:
    """llama.cpp's own account of a finished answer."""
    new = answer.prompt_tokens - answer.cached_tokens
    first = answer.steps[0].end_s * 1e3
    rest = answer.steps[-1].end_s * 1e3 - first
    found = {
        "cache_n": answer.cached_tokens,
        "prompt_n": new,
        "prompt_ms": round(first, 3),
        "prompt_per_second": new / first * 1e3,
        "predicted_n": answer.tokens,
        "predicted_ms": round(rest, 3),
        "predicted_per_second": answer.tokens / rest * 1e3 if rest else 0.0,
    }
    if scenario.decode.drafts:
        steps = answer.steps[1:]
        found["draft_n"] = len(steps) * scenario.decode.drafts
        found["draft_n_accepted"] = sum(len(s.tokens) - 1 for s in steps)
    return found


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


class Writer:
    """Makes the events of one answer."""

    def __init__(self, scenario: Scenario, answer: Generation, body: Any, *, chat: bool) -> None:
        self.scenario, self.wire, self.answer, self.chat = scenario, scenario.wire, answer, chat
        options = body.get("stream_options") or {}
        self.wants_usage = bool(options.get("include_usage")) or self.wire.usage_always
        self.continuous = self.wire.continuous_usage and bool(options.get("continuous_usage_stats"))
        self.ids = self.wire.token_ids and bool(body.get("return_token_ids"))
        kind = "chat.completion.chunk" if chat else "text_completion"
        self.head = (
            f'{{"id":"{"chatcmpl" if chat else "cmpl"}-truth","object":"{kind}",'
            f'"created":1790000000,"model":"{scenario.model}","choices":['
        )
        self.count = 0
        self.total = answer.tokens
        self.thinking = self.wire.reasoning_tokens if chat else 0
        # Most events differ in their text alone, and are made fast.
        self.alike = not (self.ids or self.continuous or self.wire.ping_every)
        self.bones = [self.skeleton(thought=False), self.skeleton(thought=True)]
        self.count = 0

    def frame(self, payload: str) -> bytes:
        """One event, after a comment where its turn has come."""
        end = self.wire.newline
        self.count += 1
        ping = self.wire.ping_every and self.count % self.wire.ping_every == 0
        comment = f": ping{end}{end}" if ping else ""
        return f"{comment}{self.wire.data_prefix}{payload}{end}{end}".encode()

    def comment(self, at_s: float) -> Event:
        """A keep-alive."""
        return Event(at_s, f": keep-alive{self.wire.newline * 2}".encode())

    def tail(self, generated: int, *, carries: bool = False) -> str:
        """What follows the choices: usage where it belongs, the end of the object."""
        if (carries and self.wants_usage and self.wire.usage == "finish") or self.continuous:
            return self.with_usage(generated, final=carries)
        return ',"usage":null}' if self.wire.usage_null and self.wants_usage else "}"

    def with_usage(self, generated: int, *, final: bool) -> str:
        """The usage, and llama.cpp's timings beside it."""
        text = f',"usage":{_compact(usage(self.answer, generated, self.scenario, chat=self.chat))}'
        if final and self.scenario.engine == "llamacpp":
            text += f',"timings":{_compact(timings(self.scenario, self.answer))}'
        return text + "}"

    def choice(self, content: str, generated: int, *, finish: str = "null", ids: str = "") -> bytes:
        """An event with one choice; ``content`` is ``"delta":...`` or ``"text":...``."""
        tail = self.tail(generated, carries=finish != "null")
        middle = f'{{"index":0,{content},"logprobs":null,"finish_reason":{finish}{ids}}}]'
        return self.frame(f"{self.head}{middle}{tail}")

    def delta(self, text: str, start: int, *, thought: bool) -> str:
        """Escaped text as it stands in a choice."""
        if not self.chat:
            return f'"text":"{text}"'
        if thought:
            return f'"delta":{{{_REASONING[self.wire.reasoning_key].format(text)}}}'
        if not self.wire.tool_call:
            return f'"delta":{{"content":"{text}"}}'
        named = '"id":"call_1","type":"function",' if start == 0 else ""
        name = '"name":"look_up",' if start == 0 else ""
        return (
            f'"delta":{{"tool_calls":[{{"index":0,{named}'
            f'"function":{{{name}"arguments":"{text}"}}}}]}}'
        )

    def role(self, at_s: float) -> Event:
        """The role-only chunk."""
        content = f'"delta":{{"role":"assistant"{_ROLE_CONTENT[self.wire.role_content]}}}'
        return Event(at_s, self.choice(content, 0))

    def skeleton(self, *, thought: bool) -> list[str]:
        """An event in the middle of an answer, cut where its text belongs."""
        return self.choice(self.delta("\0", 1, thought=thought), 0).decode().split("\0")

    def tokens(self, chunk: Chunk) -> Iterator[Event]:
        """A chunk's events: two where the reasoning ends within it."""
        cut = min(max(self.thinking - chunk.start, 0), len(chunk.ids))
        last = chunk.start + len(chunk.ids) == self.total and not self.wire.finish_event
        if self.alike and chunk.start and not last and cut in (0, len(chunk.ids)):
            text = "".join([ESCAPED[i] for i in chunk.ids])
            yield Event(chunk.at_s, text.join(self.bones[cut > 0]).encode(), len(chunk.ids))
            return
        parts = [(chunk.ids[:cut], chunk.start, True), (chunk.ids[cut:], chunk.start + cut, False)]
        parts = [p for p in parts if p[0]]
        for ids, start, thought in parts:
            final = last and ids is parts[-1][0]
            shown = f',"token_ids":{_compact(ids)}' if self.ids else ""
            finish = f'"{self.answer.finish}"' if final else "null"
            content = self.delta("".join(ESCAPED[i] for i in ids), start, thought=thought)
            data = self.choice(content, start + len(ids), finish=finish, ids=shown)
            yield Event(chunk.at_s, data, len(ids))

    def events(self) -> list[Event]:
        """The whole answer, in order; nothing is merged yet."""
        wire, answer = self.wire, self.answer
        first, end = answer.steps[0].end_s, answer.steps[-1].end_s
        found: list[Event] = [self.comment(0.0)] if wire.keep_alive else []
        if self.chat and wire.role != "none":
            lead = {"headers": first, "before": _ROLE_LEAD_S, "with": 0.0}[wire.role]
            found.append(self.role(max(0.0, first - lead)))
        for chunk in chunks(self.scenario, answer):
            found += self.tokens(chunk)
            end = chunk.at_s
        if wire.finish_event:
            empty = '"delta":{}' if self.chat else '"text":""'
            # Usage that comes late comes late on whatever carries it.
            late = wire.usage_delay_s if wire.usage == "finish" else 0.0
            data = self.choice(empty, answer.tokens, finish=f'"{answer.finish}"')
            found.append(Event(end + late, data))
        if wire.usage == "final" and self.wants_usage:
            data = self.frame(f"{self.head}]{self.with_usage(answer.tokens, final=True)}")
            found.append(Event(end + wire.usage_delay_s, data))
        if wire.done:
            found.append(Event(found[-1].at_s, self.frame("[DONE]")))
        return found


def merge(events: list[Event]) -> list[Event]:
    """Events that are due at the same time become one send."""
    found: list[Event] = []
    for event in events:
        if found and event.at_s <= found[-1].at_s:
            both = found[-1].data + event.data
            found[-1] = Event(found[-1].at_s, both, found[-1].tokens + event.tokens)
        else:
            found.append(event)
    return found
