"""Ways to spoil what a server said: its text, its JSON, its bytes."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "tests" / "data" / "live"
# Shapes that no recording holds: log lines, gauges, and the events of servers that need a GPU.
DOCUMENTED = json.loads((DATA / "documented.json").read_text())

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**53, 2**64, 10**400, 0.5, -0.0, 1e308, math.nan, math.inf,
    -math.inf, "", "x", "NaN", "-1", "12", [], {}, [None], [-1], [1.5], {"0": 1}, {"99999999": 1},
    {"": None}, [[[]]], "\ud83d", "9" * 5000,
)  # fmt: skip
TEXT_JUNK: list[str] = DOCUMENTED["text_junk"]


def mutate_text(rng: random.Random, text: str) -> str:
    """A few cuts, insertions, copies and moves of a stretch of it."""
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        cut = rng.choice((0, 1, 3, 20))
        fresh = rng.choice(TEXT_JUNK) if rng.random() < 0.7 else text[at : at + 30]
        text = text[:at] + fresh + text[at + cut :]
    return text


def mutate_json(rng: random.Random, value: Any) -> Any:
    """The value with a few of its parts replaced, renamed or left out."""
    value = copy.deepcopy(value)
    for _ in range(rng.randrange(1, 4)):
        spots = [(None, None), *_spots(value)]
        holder, key = spots[rng.randrange(len(spots))]
        junk = copy.deepcopy(rng.choice(JUNK))
        if holder is None:
            value = junk if rng.random() < 0.05 else value
        elif rng.random() < 0.7 or not isinstance(holder, dict):
            holder[key] = junk
        elif rng.random() < 0.5:
            del holder[key]
        else:
            holder[rng.choice(("x", "usage", "timings", "error", "choices"))] = holder.pop(key)
    return value


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)  # type: ignore[assignment]
    for key, inner in list(items):
        yield value, key
        yield from _spots(inner)
