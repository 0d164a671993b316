"""Where a series changes: inside one request, on step times and on committed tokens apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import ruptures
from scipy import stats

from verify_attn.live.tokens import Floats

MIN_SEGMENT = 20
# A sweep makes some hundred such tests: this keeps a false alarm to one sweep in thousands.
SIGNIFICANT = 1e-5
_MAX_POINTS = 3000  # of a series given to the search, which is quadratic at worst


@dataclass(frozen=True)
class Change:
    """From step ``at`` on, the typical value is ``ratio`` times what it was before."""

    at: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


def drift(values: Floats) -> tuple[float, float] | None:
    """(ratio, p) of the last third's mean to the first third's; None for a short series.

    The p value is that of a Mann-Whitney test, which no outlier moves.
    """
    third = len(values) // 3
    if third < 10:
        return None
    first, last = values[:third], values[-third:]
    if first.mean() <= 0 or np.ptp(values) == 0:
        return None
    p = float(stats.mannwhitneyu(first, last, alternative="two-sided").pvalue)
    return float(last.mean() / first.mean()), p


def typical_drift(values: Floats) -> tuple[float, float] | None:
    """As `drift`, with medians: for times, where one pause says nothing about the steps."""
    found = drift(values)
    if found is None:
        return None
    third = len(values) // 3
    before = float(np.median(values[:third]))
    if before <= 0:
        return None
    return float(np.median(values[-third:])) / before, found[1]


def changes(values: Floats, *, log: bool) -> list[Change]:
    """Change points of a series by PELT with a squared-error cost and BIC's penalty.

    ``log`` for times.  Noise is estimated from the first differences, so that the change itself
    does not count as noise.
    """
    if len(values) < 2 * MIN_SEGMENT or len(values) > _MAX_POINTS or np.ptp(values) == 0:
        return []
    series = np.log(np.maximum(values, 1e-9)) if log else values
    noise = 1.4826 * np.median(np.abs(np.diff(series))) / np.sqrt(2)
    sigma = max(float(noise), float(np.std(np.diff(series)) / np.sqrt(2)), 1e-12)
    search = ruptures.Pelt(model="l2", min_size=MIN_SEGMENT, jump=1).fit(series)
    ends = search.predict(pen=3 * sigma**2 * np.log(len(series)))
    starts = [0, *ends[:-1]]
    typical = np.median if log else np.mean
    levels = [float(typical(values[a:b])) for a, b in zip(starts, ends, strict=True)]
    return [
        Change(at, before, after)
        for at, before, after in zip(starts[1:], levels, levels[1:], strict=False)
        if before > 0
    ]


def largest(found: list[Change]) -> Change | None:
    """The change with the largest ratio, either way."""
    return max(found, key=lambda c: abs(np.log(max(c.ratio, 1e-9))), default=None)
