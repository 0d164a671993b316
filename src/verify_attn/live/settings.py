"""What to measure: contexts, lengths, limits; and how long that should take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verify_attn.live.prompts import CORPORA

DEFAULT_CONTEXTS = (1024, 4096, 16384, 65536, 131072)
MAX_STREAMS = 64
MAX_CONTEXT = 2**24  # tokens; beyond it a size is a slip of the hand
# For the plan of a server that nothing is known of yet.
ASSUMED_PREFILL_TOK_S = 2000.0
ASSUMED_DECODE_TOK_S = 50.0


class SettingsError(ValueError):
    """A setting that cannot be; the message says what was given and the rule."""


@dataclass(frozen=True)
class Settings:
    """All that a sweep is told.

    ``contexts``     prompt lengths to aim at, in tokens, measured in ascending order
    ``concurrency``  streams side by side; each number is a sweep of its own
    ``max_tokens``   to generate at each point
    ``decode_limit_s``  a point's answer is ended after so long, if it has ``min_tokens``
    ``budget_s``     repeats are added to undecided points until the whole has run for so long
    ``request``      a recorded body: the one point that is measured then
    """

    contexts: tuple[int, ...] = DEFAULT_CONTEXTS
    concurrency: tuple[int, ...] = (1,)
    max_tokens: int = 1500
    repeats: int = 1
    corpus: str = "mixed"
    endpoint: str | None = None
    model: str | None = None
    window_tokens: int = 128
    decode_limit_s: float = 120.0
    min_tokens: int = 16
    first_token_s: float | None = None
    stall_s: float = 60.0
    budget_s: float = 900.0
    seed: int = 0
    flush: bool = True
    log: str | None = None
    request: dict[str, Any] | None = None
    keep_reads: bool = False
    floors: Path | None = None
    against: Path | None = None

    def __post_init__(self) -> None:
        rules = (
            (bool(self.contexts) and 1 <= min(self.contexts) <= max(self.contexts) <= MAX_CONTEXT,
             f"contexts must lie in 1..{MAX_CONTEXT:,} tokens"),
            (all(1 <= c <= MAX_STREAMS for c in self.concurrency) and bool(self.concurrency),
             f"concurrency must lie in 1..{MAX_STREAMS}"),
            (self.max_tokens >= 2, "max_tokens must be at least 2: one token has no rate"),
            (self.repeats >= 1, "repeats must be at least 1"),
            (self.corpus in CORPORA, f"corpus must be one of {', '.join(CORPORA)}"),
            (self.window_tokens >= 8, "window_tokens must be at least 8"),
            (all(s > 0 for s in (self.decode_limit_s, self.stall_s)) and (
                self.first_token_s is None or self.first_token_s > 0
            ), "time limits must be above 0 s"),
            (self.budget_s >= 0, "the budget must be at least 0 s"),
        )  # fmt: skip
        for holds, rule in rules:
            if not holds:
                raise SettingsError(rule)

    def points(self) -> list[tuple[int, int]]:
        """(context, concurrency) of every point, in the order of measuring."""
        contexts = (0,) if self.request is not None else sorted(set(self.contexts))
        return [(n, c) for c in dict.fromkeys(self.concurrency) for n in contexts]


def parse_sizes(text: str) -> tuple[int, ...]:
    """``1k,4k,184728``: sizes in tokens, k is 1,024; raises `SettingsError`."""
    sizes = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*([kK]?)\s*", part, re.ASCII)
        if match is None:
            raise SettingsError(f"{part!r} is no size; give tokens as in 512,4k,64k (k is 1,024)")
        sizes.append(int(match[1]) * (1024 if match[2] else 1))
    return tuple(sizes)


def size_name(tokens: int) -> str:
    """``64k`` for 65,536; other numbers as they are."""
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)


def point_name(context: int, concurrency: int) -> str:
    """The id of a point: ``ctx=64k``, ``ctx=64k,streams=4``; ``request`` for a recorded one."""
    name = f"ctx={size_name(context)}" if context else "request"
    return name if concurrency == 1 else f"{name},streams={concurrency}"


def expected_s(context: int, concurrency: int, max_tokens: int, decode_limit_s: float) -> float:
    """How long a point takes at the assumed speeds; the plan's guess, never a figure."""
    prefill = concurrency * context / ASSUMED_PREFILL_TOK_S
    return prefill + min(max_tokens / ASSUMED_DECODE_TOK_S, decode_limit_s)
