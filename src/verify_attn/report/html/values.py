"""Reading records that may lack anything, and words for what is there.

`read_record` vouches for little more than JSON with cases that have a status.  Whatever a section
asks for beyond that comes through here: a value of another type reads as one that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Record = dict[str, Any]
Point = TypeVar("Point")

LONG, SHORT = 4000, 600  # characters of one text: a failure's, a reason's
ROWS = 200  # of one table
HUGE = 1e15


def number(value: object) -> float | None:
    """A number, or None.  True is none, and neither is what no measurement can be: fits and
    ratios of such would leave the range of floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) <= HUGE else None


def mapping(value: object) -> Record:
    """A JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """A JSON list, or an empty one."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[Record]:
    """The objects of a JSON list."""
    return [item for item in listed(value) if isinstance(item, dict)]


def numbers(value: object) -> list[float]:
    """A JSON list of numbers; empty where one of them is none."""
    found = [number(item) for item in listed(value)]
    return [] if None in found else [item for item in found if item is not None]


def cases(record: Record | None) -> list[Record]:
    """A record's cases."""
    return objects(mapping(record).get("cases"))


def metric(case: Record, name: str) -> float | None:
    """One of a case's metrics."""
    return number(mapping(case.get("metrics")).get(name))


def parameter(case: Record, name: str) -> Any:
    """One of a case's parameters, None where it has no such."""
    return mapping(case.get("parameters")).get(name)


def plain(text: object, most: int = SHORT) -> str:
    """Text of a server's, a model's or a kernel's to be shown: control characters spelt out, and
    cut, with how much there was, past ``most`` characters."""
    if text is None:
        return ""
    whole = str(text)
    kept = whole if len(whole) <= most else f"{whole[:most]} ... ({len(whole):,} characters in all)"
    if kept.isprintable():
        return kept
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in kept
    )


def said(value: float | None, form: str = "") -> str:
    """A figure in four significant digits; empty where it was not measured."""
    if value is None:
        return ""
    if form:
        return format(value, form)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def whole(value: object) -> str:
    """A count or a setting, as it stands."""
    found = number(value)
    if found is not None:
        return f"{found:,.0f}" if found == int(found) else said(found)
    return plain(value, 200)


def some(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` of them, evenly spread, the first and the last kept."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(i * step)] for i in range(most)]


def sentence(parts: Iterable[str]) -> str:
    """The parts that say something, each ended by a full stop."""
    found = [part.strip() for part in parts if part.strip()]
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in found)
