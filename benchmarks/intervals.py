"""Medians of measured times, with how sure they are."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median of times or ratios, and between which of them it lies with 95 % confidence."""

    median: float
    low: float
    high: float

    def metrics(self, name: str) -> dict[str, float]:
        """As fields of a record."""
        return {f"{name}_median": self.median, f"{name}_low": self.low, f"{name}_high": self.high}


def interval(values: list[float]) -> Interval:
    """The interval between order statistics, which holds whatever the distribution is.

    Of fewer than 6 values none is that sure: then it is from the lowest to the highest.
    """
    ordered, n = sorted(values), len(values)
    cut, outside = 0, 0.0
    while True:  # how many may be left off at each end
        outside += math.comb(n, cut) / 2**n
        if 2 * outside > 1 - CONFIDENCE:
            break
        cut += 1
    low = max(cut - 1, 0)
    return Interval(statistics.median(ordered), ordered[low], ordered[n - 1 - low])
