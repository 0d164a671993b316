"""Medians with intervals, and what two series of times say about each other.

No distribution is assumed: an interval's ends are two of the samples themselves, chosen so that the
median lies between them with the asked confidence (order statistics, a binomial argument).  That
argument is for samples that do not hang on one another.  Where neighbours in time do, as under a
clock that drifts, they count for fewer, and the ends move outwards; benchmarks/interval_coverage.py
says how far that carries.  Kernels are compared by the ratios of neighbours in time, since a clock
that drifts moves both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

CONFIDENCE = 0.95
MARGIN = 0.02  # a change of less is none that anybody should act on
FEWEST = 8  # samples: with fewer no interval of this confidence is worth its name
# Two modes: each holds so much of the samples, they lie so many of their own widths apart (more
# where there are few samples, which fall apart by chance), and so few lie in the middle between.
LEAST_SHARE, APART, BETWEEN = 0.15, 2.0, 0.05
FEW = 10

Verdict = Literal["better", "same", "worse", "unclear"]
Floats = npt.NDArray[np.float64]


class SampleError(ValueError):
    """Samples that no figure can be made of; the message says what is wrong with them."""


@dataclass(frozen=True)
class Interval:
    """A median and where it lies with the asked confidence; all three in the samples' unit."""

    low: float
    median: float
    high: float


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Of samples in the order they were taken in; raises `SampleError` for too few of them, and for
    any that is no positive number."""
    values = _sound(samples)
    count = len(values)
    # The median lies below the k-th smallest with the chance of fewer than k heads in n throws.
    k = int(binom.ppf((1 - confidence) / 2, count, 0.5))
    together = min(max(0.0, hang_together(samples)), 0.99)
    k = int(count / 2 - (count / 2 - k) * ((1 + together) / (1 - together)) ** 0.5)
    return Interval(float(values[max(k - 1, 0)]), float(np.median(values)),
                    float(values[min(count - k, count - 1)]))  # fmt: skip


def hang_together(samples: Sequence[float]) -> float:
    """From -1 to 1: how often neighbours in time lie on the same side of the median; 0: by chance.

    Of signs, as medians are: n samples then tell as much about the median as n (1 - r) / (1 + r)
    that do not hang together.
    """
    sides = np.sign(np.asarray(samples, dtype=np.float64) - np.median(samples))
    apart = float(sides @ sides)  # samples beside the median itself
    return float(sides[:-1] @ sides[1:]) / apart if apart else 0.0


def compare(
    baseline: Sequence[float], candidate: Sequence[float], margin: float = MARGIN
) -> tuple[Verdict, Interval]:
    """(verdict, ratio of candidate to baseline) of times that were taken in turn, pair by pair.

    ``worse`` and ``better`` where the whole interval of the ratio lies beyond the margin, ``same``
    where it lies within it, else ``unclear``; ``unclear`` too where either series has two modes.
    """
    if len(baseline) != len(candidate):
        raise SampleError(
            f"{len(baseline)} times of the baseline and {len(candidate)} of the candidate; take "
            "them in turn, one of each"
        )
    _sound(baseline)
    _sound(candidate)
    ratio = median_interval([c / b for b, c in zip(baseline, candidate, strict=True)])
    if two_modes(baseline) or two_modes(candidate):
        return "unclear", ratio
    if ratio.low > 1 + margin:
        return "worse", ratio
    if ratio.high < 1 - margin:
        return "better", ratio
    return ("same" if ratio.low > 1 - margin and ratio.high < 1 + margin else "unclear"), ratio


def two_modes(samples: Sequence[float]) -> tuple[float, float] | None:
    """The medians of two groups of times far apart, such as those of two clock rates; or None."""
    values = _sound(samples)
    count = len(values)
    least = max(2, math.ceil(LEAST_SHARE * count))
    cuts = np.arange(least, count - least + 1)
    sums = np.cumsum(values)
    below, above = sums[cuts - 1] / cuts, (sums[-1] - sums[cuts - 1]) / (count - cuts)
    # Where the groups vary least within themselves (Otsu's method).
    cut = int(cuts[np.argmax(cuts * (count - cuts) * (above - below) ** 2)])
    first, second = values[:cut], values[cut:]
    low, high = float(np.median(first)), float(np.median(second))
    gap, widths = high - low, _width(first) + _width(second)
    if gap < MARGIN * float(np.median(values)) or gap < APART * (1 + FEW / count) * widths:
        return None
    between = (values > low + 0.3 * gap) & (values < high - 0.3 * gap)
    return (low, high) if between.sum() <= BETWEEN * count else None


def _width(values: Floats) -> float:
    """Between the quartiles."""
    first, third = np.quantile(values, (0.25, 0.75))
    return float(third - first)


def _sound(samples: Sequence[float]) -> Floats:
    values = np.sort(np.asarray(samples, dtype=np.float64))
    if len(values) < FEWEST:
        raise SampleError(f"{len(values)} samples; at least {FEWEST} make an interval")
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise SampleError(f"a time is {wrong[0]}; every one must be a positive number")
    return values
