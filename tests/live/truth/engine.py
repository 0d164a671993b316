"""The simulated engine: which tokens each step commits, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from tests.live.truth.scenario import Decode, Scenario
from tests.live.truth.words import PIECES

_IDS = range(len(PIECES))


class Step(NamedTuple):
    """One engine step: its end, in seconds after the request, and what it committed."""

    end_s: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Generation:
    """A whole answer as the engine makes it."""

    steps: tuple[Step, ...]  # the prefill's first
    finish: Literal["length", "stop"]
    prompt_tokens: int
    cached_tokens: int

    @property
    def tokens(self) -> int:
        """Of the whole answer."""
        return sum(len(s.tokens) for s in self.steps)


@cache
def acceptance(mean: float, most: int) -> float:
    """Chance of each further draft, so that 1 + accepted, at most ``most``, has this mean."""
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**j for j in range(most)) < mean else (low, p)
    return low


def committed(decode: Decode, step: int, position: int, rng: random.Random) -> int:
    """Tokens that one step commits; ``step`` counts decode steps from 0."""
    if decode.pattern:
        return decode.pattern[step % len(decode.pattern)]
    fallen = decode.collapse_at is not None and position >= decode.collapse_at
    mean = decode.collapse_to if fallen else decode.committed
    if decode.constant:
        return round(mean)
    p = acceptance(mean, decode.drafts + 1)
    count = 1
    while count <= decode.drafts and rng.random() < p:
        count += 1
    return count


def step_seconds(
    decode: Decode, prompt: int, position: int, asked: int, rng: random.Random
) -> float:
    """Time of the step that starts when ``position`` tokens are there."""
    seconds = decode.step_s + decode.per_context_token_s * (prompt + position)
    # Linear in position; the middles of the first and last quarter are at 1/8 and 7/8.
    seconds *= 1 + (decode.growth - 1) * (position / asked - 0.125) / 0.75
    if decode.jump_at is not None and position >= decode.jump_at:
        seconds *= decode.jump
    noise = max(-0.5, min(1.0, rng.gauss(0, decode.jitter))) if decode.jitter else 0.0
    return seconds * (1 + noise)


def generate(
    scenario: Scenario, prompt_tokens: int, cached_tokens: int, asked: int, salt: int, late_s: float
) -> Generation:
    """The answer to a request for ``asked`` tokens; ``late_s`` is added to its first."""
    decode = scenario.decode
    rng = random.Random(f"{scenario.seed}/{salt}")
    total = asked if decode.stop_at is None else min(asked, decode.stop_at)
    now = scenario.prefill.seconds(prompt_tokens, cached_tokens) + late_s
    steps: list[Step] = []
    position = 0
    while position < total:
        if steps:
            now += step_seconds(decode, prompt_tokens, position, asked, rng)
            count = committed(decode, len(steps) - 1, position, rng)
        else:
            count = decode.first_commit
        count = min(count, total - position)  # a stop cuts the last step
        steps.append(Step(now, tuple(rng.choices(_IDS, k=count))))
        position += count
    return Generation(
        tuple(steps), "length" if total == asked else "stop", prompt_tokens, cached_tokens
    )
