"""What the HTTP side asks of the engine, and what it hears back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "error", "cancelled"]


class RefusedError(Exception):
    """A job that the engine does not take; the message is for the client."""


class QueueFullError(RefusedError):
    """As many jobs wait as may."""


class ContextOverflowError(RefusedError):
    """Prompt and ``max_tokens`` do not fit into the context (or the KV pool)."""


@dataclass(frozen=True)
class Speculation:
    """What became of a job's verify steps.

    ``committed``  tokens by step, the bonus token included; the first token comes from prefill and
                   is in none of them
    """

    drafter: str
    budget: int
    steps: int
    proposed_drafts: int
    accepted_drafts: int
    committed: tuple[int, ...]


@dataclass(frozen=True)
class Delta:
    """News of one job: the tokens of prefill or of one verify step, and the text they settle.

    Text that may yet turn out a stop string, or half a character, comes with a later delta.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    finish: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0  # of the prompt, out of the prefix cache
    filled_tokens: int = 0  # of the prompt, random rows instead of computed ones
    speculation: Speculation | None = None  # with the last delta


@dataclass(frozen=True)
class Job:
    """One generation.  ``emit`` is called from the engine's thread, and must not block.

    ``temperature`` 0 is greedy.  ``seed`` None draws one.  ``most_tokens`` counts generated tokens.
    """

    name: str
    tokens: tuple[int, ...]
    most_tokens: int
    emit: Callable[[Delta], None] = field(repr=False)
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
