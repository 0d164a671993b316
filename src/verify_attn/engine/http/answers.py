"""Answers in OpenAI's shapes, with the extras of vLLM: token ids, and usage in every event.

An answer also says, beside its usage, what became of its verify steps::

    "speculation": {"drafter", "budget", "lossless", "steps", "proposed_drafts",
                    "accepted_drafts", "committed": [tokens of each step]}

In a stream it stands in the event that has the finish reason.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from verify_attn.engine.http.schemas import Generate
from verify_attn.engine.job import Delta, FinishReason, Speculation


@dataclass
class Answer(ABC):
    """One answer as it grows."""

    name: str
    model: str
    prompt: tuple[int, ...]
    request: Generate
    lossless: bool
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    cached: int = 0
    filled: int = 0
    finish: FinishReason | None = None
    speculation: Speculation | None = None

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def take(self, delta: Delta) -> None:
        """Grow by a delta."""
        self.tokens += delta.tokens
        self.text.append(delta.text)
        self.cached = max(self.cached, delta.cached_tokens)
        self.filled = max(self.filled, delta.filled_tokens)
        self.finish = delta.finish or self.finish
        self.speculation = delta.speculation or self.speculation

    @abstractmethod
    def opening(self) -> dict[str, Any] | None:
        """The event before the first delta's, or None."""

    @abstractmethod
    def choice(self, text: str) -> dict[str, Any]:
        """What of a choice holds the text: all of it."""

    @abstractmethod
    def chunk_choice(self, text: str) -> dict[str, Any]:
        """The same of a part of it."""

    def event(self, delta: Delta) -> dict[str, Any]:
        """The event of a delta that was just taken."""
        choice = {**self.chunk_choice(delta.text), "finish_reason": delta.finish}
        if self.request.return_token_ids:
            choice["token_ids"] = list(delta.tokens)
        return self._chunk([choice])

    def last_event(self) -> dict[str, Any] | None:
        """Usage in an event of its own, where it was asked for."""
        if not self.request.stream_options.include_usage:
            return None
        return {**self._chunk([]), "usage": self.usage()}

    def whole(self) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choice = {**self.choice("".join(self.text)), "finish_reason": self.finish}
        if self.request.return_token_ids:
            choice["token_ids"] = list(self.tokens)
        body = {**self._head(self.kind), "choices": [choice], "usage": self.usage()}
        return {**body, **self._speculation()}

    def usage(self) -> dict[str, Any]:
        """Counts so far."""
        prompt, generated = len(self.prompt), len(self.tokens)
        details = {"cached_tokens": self.cached}
        if self.filled:
            details["filled_tokens"] = self.filled  # our own: rows that nothing computed
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": details,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head(self.chunk_kind), "choices": choices}
        if self.request.stream_options.continuous_usage_stats:
            chunk["usage"] = self.usage()
        return {**chunk, **self._speculation()} if choices else chunk

    def _speculation(self) -> dict[str, Any]:
        if self.speculation is None:
            return {}
        return {"speculation": {**asdict(self.speculation), "lossless": self.lossless}}

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self.prompt)} if self.request.return_token_ids else {}


class CompletionAnswer(Answer):
    """Of ``/v1/completions``; prompt token ids are the choice's, as vLLM has it."""

    kind = chunk_kind = "text_completion"

    def opening(self) -> None:
        """None: the first delta opens it."""

    def choice(self, text: str) -> dict[str, Any]:
        """A text."""
        return {"index": 0, "text": text, "logprobs": None, **self._prompt_ids()}

    def chunk_choice(self, text: str) -> dict[str, Any]:
        """A text; the prompt's ids in the first."""
        first = self._prompt_ids() if len(self.text) == 1 else {}
        return {"index": 0, "text": text, "logprobs": None, **first}


class ChatAnswer(Answer):
    """Of ``/v1/chat/completions``; prompt token ids stand beside the choices, as vLLM has it."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self) -> dict[str, Any]:
        """The role."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._chunk([choice]), **self._prompt_ids()}

    def choice(self, text: str) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "logprobs": None}

    def chunk_choice(self, text: str) -> dict[str, Any]:
        """A delta."""
        return {"index": 0, "delta": {"content": text}, "logprobs": None}

    def whole(self) -> dict[str, Any]:
        """With the prompt's ids."""
        return {**super().whole(), **self._prompt_ids()}
