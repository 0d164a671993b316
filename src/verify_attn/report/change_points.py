"""Where a series of figures over records changes for good, judged so that noise is no change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import ruptures
from scipy import special

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

MIN_SIDE = 3  # records on either side of a change: two slow runs are no change yet
LEAST = 2 * MIN_SIDE  # records; with fewer nothing can be said
LEAST_CHANGE = 0.02  # a smaller one is none that anybody should act on
CHANCE = 1e-3  # of a false alarm in a series: a record has some hundred of them
_OUTLIER = 4.0  # sizes of the noise, from the median of the five records around
_ENDS = (slice(3), slice(4), slice(-4, None), slice(-3, None))  # five, where there are so many
_MOST_KIN = 0.9  # no more of a record's deviation is taken to come from the one before


@dataclass(frozen=True)
class Change:
    """From index ``at`` on the typical figure is ``after``; from the change before it was
    ``before`` (medians, in the series' unit)."""

    at: int
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """After over before; None where before is 0."""
        return self.after / self.before if self.before else None


def changes(values: Sequence[float], intervals: Sequence[Interval | None] = ()) -> list[Change]:
    """The changes of a series in the order of time; none of fewer than `LEAST` values.

    ``values`` are finite; ``intervals`` is empty or holds each value's own (low, high) or None.

    PELT (ruptures' `KernelCPD`, whose linear kernel is the squared error) proposes changes on the
    logarithms, where all figures are positive.  The weakest is dropped until each that is left

    - is too large for chance, allowing for the number of places that were tried and for records
      that resemble the one before (slow drift);
    - is at least `LEAST_CHANGE`, with `MIN_SIDE` records on either side that are nearer to their
      own side's level;
    - lies outside what a single record says of its own accuracy, where records do.
    """
    raw = np.asarray(values, dtype=float)
    if len(raw) < LEAST or np.ptp(raw) == 0:
        return []
    series = np.log(raw) if (raw > 0).all() else raw
    noise = _noise(series)
    searched = _without_outliers(series)
    if np.ptp(searched) == 0:
        return []
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_SIDE).fit(searched)
    # Of figures that jump between two values the typical step is 0, and all of them would be cuts.
    rough = max(noise, float(np.std(np.diff(searched))) / np.sqrt(2))
    ends = search.predict(pen=3 * rough**2 * np.log(len(raw)))
    cuts = [int(end) for end in ends[:-1]]
    while cuts:
        chances = _chances(series, cuts, noise)
        found = _levels(raw, cuts)
        bounds = [0, *cuts, len(raw)]
        weak = [
            (chance, -_size(change), cut)
            for chance, change, cut, a, b in zip(
                chances, found, cuts, bounds, bounds[2:], strict=False
            )
            if chance > CHANCE / (len(raw) - LEAST + 1)
            or _size(change) < LEAST_CHANGE
            or min(
                _nearer(raw[a:cut], change.before, change.after),
                _nearer(raw[cut:b], change.after, change.before),
            )
            < MIN_SIDE
            or _within_accuracy(change, intervals[a:cut], intervals[cut:b])
        ]
        if not weak:
            return found
        cuts.remove(max(weak)[2])
    return []


def _without_outliers(series: Floats) -> Floats:
    """A record far off the median of the five around it counts as that median: one slow run is no
    segment.  A lasting change has three of the five on its side, and stays where it is."""
    inside = np.median(np.lib.stride_tricks.sliding_window_view(series, 5), axis=1)
    ends = [float(np.median(series[part])) for part in _ENDS]
    around = np.concatenate((ends[:2], inside, ends[2:]))
    off = np.abs(series - around)
    size = 1.4826 * np.median(off)
    # Where most records are exactly alike there is no size to go by: nothing is taken out.
    return np.where(off > _OUTLIER * size, around, series) if size > 0 else series


def _noise(series: Floats) -> float:
    """Of one record, from the differences of neighbours: changes do not count as noise."""
    steps = np.diff(series)
    typical = 1.4826 * float(np.median(np.abs(steps))) / np.sqrt(2)
    return float(typical or np.std(steps) / np.sqrt(2))


def _chances(series: Floats, cuts: Sequence[int], noise: float) -> list[float]:
    """How likely a difference of levels as large as at each cut is, if there is none.

    The smaller of two answers: Student's t, which has power with few records, and Mann-Whitney's
    ranks, which outliers do not blind."""
    parts = np.split(series, cuts)
    rests = [part - part.mean() for part in parts]
    rest = np.concatenate(rests)
    if np.abs(rest).max() < 1e-9 * np.ptp(series):  # the same figure in every record of a part
        return [0.0] * len(cuts)
    free = max(len(series) - len(parts), 1)
    everywhere = np.sqrt(np.sum(rest**2) / free)
    wider = _kinship(rest, len(parts))
    found = []
    for i in range(len(cuts)):
        a, b = parts[i], parts[i + 1]
        squares = np.sum(rests[i] ** 2) + np.sum(rests[i + 1] ** 2)
        here = np.sqrt(squares / (len(a) + len(b) - 2))
        error = max(here, everywhere, noise) * np.sqrt(1 / len(a) + 1 / len(b)) * wider
        by_t = 2 * special.stdtr(free, -abs(a.mean() - b.mean()) / error)
        by_ranks = 2 * special.ndtr(-_apart(a, b) / wider)
        found.append(float(min(by_t, by_ranks)))
    return found


def _apart(a: Floats, b: Floats) -> float:
    """Mann-Whitney's U as a normal deviate, ties allowed for; scipy's takes ten times as long."""
    _, which, counts = np.unique(np.concatenate((a, b)), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    n, pairs = len(ranks), len(a) * len(b)
    above = ranks[: len(a)].sum() - len(a) * (len(a) + 1) / 2
    ties = float(np.sum(counts.astype(float) ** 3 - counts)) / (n * (n - 1))
    spread = np.sqrt(pairs / 12 * (n + 1 - ties))
    return float(abs(above - pairs / 2) / spread) if spread > 0 else 0.0


def _kinship(rest: Floats, parts: int) -> float:
    """How much less sure levels are because records resemble the one before: of a slow drift
    there are fewer independent records than records."""
    kin = float(np.sum(rest[1:] * rest[:-1]) / np.sum(rest**2))
    # Taking out each part's own mean hides some of it.
    kin += (1 + 3 * max(kin, 0.0)) * parts / len(rest)
    kin = min(max(kin, 0.0), _MOST_KIN)
    return float(np.sqrt((1 + kin) / (1 - kin)))


def _levels(raw: Floats, cuts: Sequence[int]) -> list[Change]:
    levels = [float(np.median(part)) for part in np.split(raw, cuts)]
    return [
        Change(cut, before, after)
        for cut, before, after in zip(cuts, levels, levels[1:], strict=False)
    ]


def _size(change: Change) -> float:
    """The change as a share of the larger of the two, so that both ways count alike."""
    largest = max(abs(change.before), abs(change.after))
    return abs(change.after - change.before) / largest if largest else 0.0


def _nearer(values: Floats, own: float, other: float) -> int:
    return int(np.sum(np.abs(values - own) < np.abs(values - other)))


def _within_accuracy(
    change: Change, before: Sequence[Interval | None], after: Sequence[Interval | None]
) -> bool:
    for level, intervals in ((change.after, before), (change.before, after)):
        known = np.array([pair for pair in intervals if pair is not None])
        if len(known) and np.median(known[:, 0]) <= level <= np.median(known[:, 1]):
            return True
    return False
