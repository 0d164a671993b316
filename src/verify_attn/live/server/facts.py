"""What a server says about itself: each figure with the path that it came from."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from verify_attn.live.absent import Absent

Engine = Literal[
    "SGLang",
    "vLLM",
    "llama.cpp",
    "TensorRT-LLM",
    "TGI",
    "transformers serve",
    "LM Studio",
    "verify-attn",
    "unknown",
]


@dataclass(frozen=True)
class Fact:
    """A value as the server gave it."""

    value: Any
    # Where it stood, such as "/v1/models data[0].max_model_len".
    path: str


_UNREAD = Absent("not read")


def finite(value: Any) -> Any:
    """A copy in which NaN and infinities are words: Python's servers send them, JSON has none."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@dataclass(frozen=True)
class ServerFacts:
    """The identity and configuration of one server; what could not be read says why."""

    engine: Engine
    # What the engine was told by.
    evidence: str
    version: Fact | Absent = _UNREAD
    # A list of names.
    model_ids: Fact | Absent = _UNREAD
    # Tokens one request may have, prompt and answer together.
    context_limit: Fact | Absent = _UNREAD
    # Tokens the KV pool of one data-parallel rank holds, all requests together.
    kv_capacity_tokens: Fact | Absent = _UNREAD
    # Tokens a page of the KV pool.
    page_size: Fact | Absent = _UNREAD
    attention_backend: Fact | Absent = _UNREAD
    # Settings by the server's own names.
    memory: Fact | Absent = _UNREAD
    speculative: Fact | Absent = _UNREAD
    # Data-parallel ranks.
    dp_size: Fact | Absent = _UNREAD
    # Requests that can run at once.
    max_running: Fact | Absent = _UNREAD
    # Traps in the figures above, one sentence each.
    notes: tuple[str, ...] = ()
    # What was asked, and what came of it: "200", "404", or why there was no answer.
    asked: dict[str, str] = field(default_factory=dict)

    @property
    def usable_tokens(self) -> int | Absent:
        """The longest request that can fit: the context limit, or the KV pool where it is less.

        SGLang and vLLM let the context limit exceed the pool, so that a legal prompt cannot run.
        """
        known = [
            fact.value
            for fact in (self.context_limit, self.kv_capacity_tokens)
            if isinstance(fact, Fact)
        ]
        return min(known) if known else Absent("neither context limit nor KV capacity is known")

    def as_record(self) -> dict[str, Any]:
        """Plain JSON: a fact is {"value", "path"}, an absent one {"absent": reason}."""
        record: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Absent):
                value = {"absent": value.reason}
            elif isinstance(value, Fact):
                value = {**asdict(value), "value": finite(value.value)}
            record[name] = list(value) if isinstance(value, tuple) else value
        return record
