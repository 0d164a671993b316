"""Bodies of streamed requests, and which extras a server grants.

OpenAI's API has no word for most of what a measurement needs.  Servers have their own; some ignore
a field that they do not know, some refuse the request.  Each extra is tried once on a small
request and left out where it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why
from verify_attn.live.client import Answer
from verify_attn.live.server.errors import context_overflow
from verify_attn.live.stream import Stream
from verify_attn.live.target import ENDPOINTS
from verify_attn.live.tokens import running_count

# In the order in which they are given up, where a refusal names none: the most foreign first.
EXTRAS: dict[str, dict[str, Any]] = {
    "return_spec_tokens_details": {"return_spec_tokens_details": True},
    "cache_prompt": {"cache_prompt": False},
    "return_token_ids": {"return_token_ids": True},
    "ignore_eos": {"ignore_eos": True},
    "continuous_usage_stats": {"stream_options": {"continuous_usage_stats": True}},
    "stream_options": {"stream_options": {"include_usage": True}},
}
_TEMPERATURE = "temperature"


class RequestError(ValueError):
    """A recorded request that cannot be replayed as a point; the message says why."""


class Refused(Exception):
    """The server refuses even the plainest request, or is not there; carries its answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.failure)
        self.answer = answer


@dataclass(frozen=True)
class Dialect:
    """How to ask this server: endpoint, model, length field and the extras that it takes."""

    endpoint: str
    model: str
    extras: tuple[str, ...] = tuple(EXTRAS)
    max_tokens_field: str = "max_tokens"
    temperature: float | None = 0.0
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Of the endpoint."""
        return ENDPOINTS[self.endpoint]

    def body(self, text: str, max_tokens: int) -> dict[str, Any]:
        """A streamed request for ``max_tokens`` tokens after ``text``."""
        body: dict[str, Any] = {"model": self.model, "stream": True}
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        body[self.max_tokens_field] = max_tokens
        if self.temperature is not None:
            body[_TEMPERATURE] = self.temperature
        return self.with_extras(body)

    def with_extras(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body with every extra that this server takes, its own fields first."""
        body = dict(body)
        for name in self.extras:
            for key, value in EXTRAS[name].items():
                if isinstance(value, dict):
                    given = body.get(key)
                    body[key] = {**value, **(given if isinstance(given, dict) else {})}
                    body[key].update(value)
                else:
                    body.setdefault(key, value)
        return body

    def without(self, answer: Answer) -> Dialect | None:
        """This dialect less what ``answer`` refused; None if there is nothing left to give up."""
        said = answer.message
        lowered = said.lower()
        if "max_completion_tokens" in lowered and self.max_tokens_field == "max_tokens":
            refused = {**self.refused, "max_tokens": said[:300]}
            return replace(self, max_tokens_field="max_completion_tokens", refused=refused)
        named = [name for name in self.extras if name in said]
        # A refusal of include_usage alone may name its parent.
        if not named and self.temperature is not None and _TEMPERATURE in lowered:
            return replace(
                self, temperature=None, refused={**self.refused, _TEMPERATURE: said[:300]}
            )
        give_up = named or list(self.extras[:1])
        return self._less(give_up, said) if give_up else None

    def plainer(self, answer: Answer) -> Dialect:
        """This dialect with the request for usage as its only extra, or else with none."""
        kept = ("stream_options",) if set(self.extras) > {"stream_options"} else ()
        return self._less([name for name in self.extras if name not in kept], answer.message)

    def _less(self, give_up: list[str], said: str) -> Dialect:
        return replace(
            self,
            extras=tuple(name for name in self.extras if name not in give_up),
            refused={**self.refused, **dict.fromkeys(give_up, said[:300])},
        )


def granted(stream: Stream) -> dict[str, bool]:
    """Which extras showed in an answer: accepted is not yet granted."""
    chunks = [chunk for read in stream.reads for chunk in read.chunks]
    return {
        "usage": stream.usage is not None,
        "per_chunk_usage": running_count(chunks) is not None,
        "token_ids": any(chunk.tokens is not None for chunk in chunks),
    }  # fmt: skip


async def negotiate(
    dialect: Dialect, send: Callable[[Dialect], Awaitable[Answer]]
) -> tuple[Dialect, list[Answer]]:
    """Ask with ever fewer extras until the server answers; returns what it took, and all answers.

    Raises `Refused` with the last answer where even the plainest request fails.
    """
    answers = []
    while True:
        answer = await send(dialect)
        answers.append(answer)
        if answer.status == 500 and dialect.extras:
            # Some servers fall over a field that they do not know.
            dialect = dialect.plainer(answer)
            continue
        if answer.status not in (400, 415, 422) or (
            context_overflow(answer.status, answer.error_body) is not None
        ):
            if answer.failure is not None:
                raise Refused(answer)
            return dialect, answers
        fewer = dialect.without(answer)
        if fewer is None:
            raise Refused(answer)
        dialect = fewer


def recorded_request(path: Path) -> tuple[str, dict[str, Any]]:
    """Read a recorded body: (endpoint, body); raises `RequestError`.

    A file holds the JSON body as the client sent it, or an object with ``path`` and ``request``.
    """
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"--request {path}: {why(error)}") from None
    if isinstance(body, dict) and isinstance(body.get("request"), dict):
        body = body["request"]
    if not isinstance(body, dict) or not ({"messages", "prompt"} & set(body)):
        raise RequestError(
            f"--request {path} holds no request; give the JSON body with its messages (chat) or "
            "prompt (completions)"
        )
    if "messages" in body and not isinstance(body["messages"], list):
        raise RequestError(f"--request {path}: messages must be a list")
    several = body.get("n", 1)
    if several not in (1, None):
        raise RequestError(f"--request {path}: n is {several!r}; a point measures one answer")
    prompts = body.get("prompt")
    if "messages" not in body and isinstance(prompts, list) and (
        len(prompts) > 1 and not all(isinstance(token, int) for token in prompts)
    ):  # fmt: skip
        raise RequestError(
            f"--request {path}: prompt holds {len(prompts)} prompts; a point measures one answer"
        )
    if not isinstance(body.get("model"), str | None):
        raise RequestError(f"--request {path}: model is {body['model']!r}; it must be a text")
    return ("chat" if "messages" in body else "completions"), body


def replayed(dialect: Dialect, body: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """A recorded body as a point: its own messages, sampling and length, our way of streaming.

    ``ignore_eos`` is not added, since the user's complaint ended where it ended; ``max_tokens``
    holds only where the body names no length.
    """
    body = dict(body)
    body["stream"] = True
    body.setdefault("model", dialect.model)
    if not {"max_tokens", "max_completion_tokens"} & set(body):
        body[dialect.max_tokens_field] = max_tokens
    extras = tuple(name for name in dialect.extras if name not in ("ignore_eos", "cache_prompt"))
    return replace(dialect, extras=extras).with_extras(body)


def asked_tokens(body: dict[str, Any]) -> int | None:
    """How many tokens a body asks for."""
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    return value if isinstance(value, int) else None
