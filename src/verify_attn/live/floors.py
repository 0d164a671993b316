"""Floors: the least decode rate allowed at a context length, out of a TOML file.

::

    schema_version = 1

    [[floor]]
    name = "after the new kernel"      # shown in verdicts
    model = "*kimi-k2*"                # glob over the model's name, case ignored; default "*"
    unit = "tok/s"                     # or "of shortest context", "of saved run"
    rate = "sustained"                 # or "worst window"
    concurrency = 1                    # parallel streams that it holds for
    points = [[1427, 118.6], [184728, 0.7]]   # context in tokens, floor

Between two points the time of a token (1 / rate) is interpolated along the context, since a step's
time is what grows with it; a ratio is interpolated itself.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why

UNITS = ("tok/s", "of shortest context", "of saved run")
RATES = ("sustained", "worst window")
_KEYS = ("name", "model", "unit", "rate", "concurrency", "points")
# An axis in actual tokens never meets a floor's context exactly.
SLACK = 0.1
MAX_RATIO = 1.5  # a larger one was meant in percent


class FloorError(ValueError):
    """A floors file that says something else than it means; the message says where."""


@dataclass(frozen=True)
class Floor:
    """One table of the file; ``points`` are (context in tokens, floor), ascending."""

    name: str
    model: str
    unit: str
    rate: str
    concurrency: int
    points: tuple[tuple[int, float], ...]

    def holds_for(self, model: str, concurrency: int) -> bool:
        """Is it about this model and concurrency?"""
        named = fnmatch.fnmatchcase(model.lower(), self.model.lower())
        return named and concurrency == self.concurrency

    def at(self, context: int) -> float | None:
        """The floor at a context; None outside its points, give or take a tenth."""
        first, last = self.points[0], self.points[-1]
        if context <= first[0]:
            return first[1] if context >= first[0] * (1 - SLACK) else None
        if context >= last[0]:
            return last[1] if context <= last[0] * (1 + SLACK) else None
        for (a, floor_a), (b, floor_b) in pairwise(self.points):
            if context <= b:
                part = (context - a) / (b - a)
                if self.unit == "tok/s":
                    return 1 / ((1 - part) / floor_a + part / floor_b)
                return (1 - part) * floor_a + part * floor_b
        return None


def read_floors(path: Path) -> list[Floor]:
    """Read a floors file; raises `FloorError` with the key, what was given and what is allowed."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FloorError(f"floors file {path}: {why(error)}") from None
    _known(f"floors file {path}", data, ("schema_version", "floor"))
    version = data.get("schema_version")
    if version != 1:
        given = "is missing" if version is None else f"is {version!r}"
        raise FloorError(f"floors file {path}: schema_version {given}; it must be 1")
    tables = data.get("floor")
    if not isinstance(tables, list) or not tables:
        raise FloorError(f"floors file {path}: it has no [[floor]] table")
    return [_floor(f"floors file {path}, floor {i + 1}", t) for i, t in enumerate(tables)]


def _known(where: str, table: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise FloorError(f"{where}: unknown key {key!r}{hint}; allowed are {', '.join(keys)}")


def _floor(where: str, table: Any) -> Floor:
    if not isinstance(table, dict):
        raise FloorError(f"{where}: it is {table!r}; it must be a table")
    _known(where, table, _KEYS)
    text: dict[str, str] = {}
    for key, default in (("name", ""), ("model", "*"), ("unit", "tok/s"), ("rate", "sustained")):
        value = table.get(key, default)
        if not isinstance(value, str):
            raise FloorError(f"{where}: {key} is {value!r}; it must be a string")
        text[key] = value
    for key, allowed in (("unit", UNITS), ("rate", RATES)):
        if text[key] not in allowed:
            raise FloorError(
                f"{where}: {key} is {text[key]!r}; allowed are "
                + ", ".join(repr(a) for a in allowed)
            )
    concurrency = table.get("concurrency", 1)
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        raise FloorError(f"{where}: concurrency is {concurrency!r}; it must be a whole number >= 1")
    return Floor(
        text["name"] or where.rsplit(", ", 1)[-1], text["model"], text["unit"], text["rate"],
        concurrency, _points(where, table.get("points"), text["unit"]),
    )  # fmt: skip


def _points(where: str, value: Any, unit: str) -> tuple[tuple[int, float], ...]:
    rule = "points must be a list of [context in tokens, floor] pairs with ascending contexts"
    if not isinstance(value, list) or not value:
        given = "are missing" if value is None else f"is {value!r}"
        raise FloorError(f"{where}: points {given}; {rule}")
    points: list[tuple[int, float]] = []
    most = math.inf if unit == "tok/s" else MAX_RATIO
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise FloorError(f"{where}: points has {pair!r}; {rule}")
        context, floor = pair
        if not isinstance(context, int) or isinstance(context, bool) or context < 0:
            raise FloorError(f"{where}: points has context {context!r}; it must be a whole number")
        if (
            isinstance(floor, bool) or not isinstance(floor, int | float)
            or not math.isfinite(floor) or floor <= 0
        ):  # fmt: skip
            raise FloorError(
                f"{where}: the floor at {context} is {floor!r}; it must be a number above 0"
            )
        if floor > most:
            raise FloorError(
                f"{where}: the floor at {context} is {floor!r} {unit}; a ratio is at most {most:g}"
            )
        if points and context <= points[-1][0]:
            raise FloorError(f"{where}: context {context} comes after {points[-1][0]}; {rule}")
        points.append((context, float(floor)))
    return tuple(points)
