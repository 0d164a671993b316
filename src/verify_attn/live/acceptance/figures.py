"""Numbers out of somebody else's JSON: a finite figure that is not negative, or None."""

from __future__ import annotations

import math
from typing import Any

# Beyond 2**53 a double no longer holds every integer, and no server counts that far: a larger
# number is junk.
LARGEST = 2**53


def count(value: Any) -> int | None:
    """A whole number from 0 to 2**53; booleans, text, fractions, NaN and the rest are None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value <= LARGEST or value != int(value):  # NaN fails the first comparison
        return None
    return int(value)


def figure(value: Any) -> float | None:
    """A finite number from 0 to 2**53 as a float; booleans, text, NaN and the rest are None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= LARGEST else None


def share(part: float, whole: float) -> float | None:
    """``part / whole``, or None where that is no finite number."""
    if whole <= 0:
        return None
    ratio = part / whole
    return ratio if math.isfinite(ratio) else None


def counts(value: Any) -> tuple[int, ...] | None:
    """A list of whole numbers; None where it is no list or one entry is no count."""
    if not isinstance(value, list):
        return None
    found = tuple(known for entry in value if (known := count(entry)) is not None)
    return found if len(found) == len(value) else None


def member(holder: Any, *names: str) -> Any:
    """``holder[a][b]...`` through objects only; None where a step is missing or no object."""
    for name in names:
        if not isinstance(holder, dict):
            return None
        holder = holder.get(name)
    return holder


def first_count(holder: Any, *names: str) -> int | None:
    """The first of these keys that holds a count: the names one field had over the years."""
    for name in names:
        found = count(member(holder, name))
        if found is not None:
            return found
    return None


def weighted_mean(means: list[tuple[float, float]]) -> float | None:
    """The mean of (mean, weight) pairs; None without weight."""
    return share(sum(mean * weight for mean, weight in means), sum(w for _, w in means))
