"""Where a series changes: inside one request, on step times and on committed tokens apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ruptures
from scipy import stats

from verify_attn.live.tokens import Floats

MIN_SEGMENT = 20
MIN_THIRD = 10  # steps
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


@dataclass(frozen=True)
class Drift:
    """A series' typical value early and late, and the p value of a Mann-Whitney test of the two,
    which no outlier moves."""

    early: float
    late: float
    p: float

    @property
    def ratio(self) -> float:
        """Late over early."""
        return self.late / self.early if self.early > 0 else 1.0

    @property
    def significant(self) -> bool:
        """Is it no accident?"""
        return self.p < SIGNIFICANT


def committed_drift(tokens: Floats) -> Drift | None:
    """Mean committed tokens of the steps that made the first and the last third of the tokens.

    By tokens and not by steps: where few are committed there are many steps, and they would
    fill the first third as well.
    """
    got = np.cumsum(tokens)
    if len(tokens) == 0:
        return None
    first = tokens[: int(np.searchsorted(got, got[-1] / 3)) + 1]
    last = tokens[int(np.searchsorted(got, got[-1] * 2 / 3)) :]
    return _compare(first, last, np.mean)


def time_drift(seconds: Floats) -> Drift | None:
    """Median step time in the first and the last third: one pause says nothing about the steps."""
    third = len(seconds) // 3
    return _compare(seconds[:third], seconds[-third:], np.median) if third else None


def _compare(first: Floats, last: Floats, typical: Callable[[Floats], Any]) -> Drift | None:
    if min(len(first), len(last)) < MIN_THIRD or np.ptp(np.concatenate((first, last))) == 0:
        return None
    p = float(stats.mannwhitneyu(first, last, alternative="two-sided").pvalue)
    return Drift(float(typical(first)), float(typical(last)), p)


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
