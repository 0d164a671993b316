"""Intervals cover, comparisons say what is so, two modes are seen."""

from __future__ import annotations

import numpy as np
import pytest

from verify_attn.perf.bench import LOOKS, MOST_ROUNDS, PRECISION
from verify_attn.perf.statistics import (
    SampleError,
    compare,
    median_interval,
    two_modes,
)

RNG, OTHER = np.random.default_rng(7), np.random.default_rng(8)


def times(count: int, median: float = 1.0, spread: float = 0.01) -> list[float]:
    """Right-skewed, as kernel times are."""
    return list(median * (1 + spread * (RNG.gamma(2.0, 1.0, count) - 1.678)))


@pytest.mark.parametrize("count", [8, 15, 40, 101])
def test_intervals_cover_the_median_as_often_as_they_say(count: int):
    inside = 0
    for _ in range(1000):
        found = median_interval(times(count))
        inside += found.low <= 1.0 <= found.high
    assert inside >= 935  # 95 % of 1,000, less three standard errors


@pytest.mark.parametrize(("correlation", "least"), [(0.3, 0.92), (0.5, 0.89)])
def test_samples_that_hang_together_count_for_fewer(correlation: float, least: float):
    inside = 0
    for _ in range(400):
        steps = OTHER.standard_normal(60) * np.sqrt(1 - correlation**2)
        steps[0] /= np.sqrt(1 - correlation**2)
        for i in range(1, 60):
            steps[i] += correlation * steps[i - 1]
        found = median_interval(list(1 + 0.02 * steps))
        inside += found.low <= 1.0 <= found.high
    assert inside >= least * 400  # without it 0.90 and 0.82


def test_a_drift_from_end_to_end_is_no_median_at_all():
    found = median_interval([1 + i / 100 for i in range(20)])
    assert (found.low, found.high) == (1.0, 1.19)


def test_to_stop_when_it_is_narrow_does_not_make_it_wrong():
    inside = 0
    for _ in range(600):
        series = list(1 + 0.03 * OTHER.standard_normal(MOST_ROUNDS))
        for count in (*LOOKS, MOST_ROUNDS):
            found = median_interval(series[:count])
            if max(found.high - found.median, found.median - found.low) <= PRECISION * found.median:
                break
        inside += found.low <= 1.0 <= found.high
    assert inside >= 0.93 * 600


def test_an_interval_is_no_wider_than_it_must_be():
    widths = [i.high - i.low for i in (median_interval(times(101)) for _ in range(50))]
    assert np.median(widths) < 0.01


def test_a_kernel_against_itself_is_never_better_or_worse():
    verdicts = [compare(times(40), times(40))[0] for _ in range(200)]
    assert set(verdicts) <= {"same", "unclear"}
    assert verdicts.count("same") > 150


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "worse"), (0.95, "better"), (1.3, "worse")])
def test_a_change_is_found(factor: float, verdict: str):
    found = [compare(times(40), times(40, factor))[0] for _ in range(100)]
    assert found.count(verdict) >= 95


def test_a_clock_that_drifts_moves_both():
    drift = np.linspace(1.0, 1.5, 60)
    verdict, ratio = compare(
        list(np.array(times(60)) * drift), list(np.array(times(60, 1.06)) * drift)
    )
    assert verdict == "worse"
    assert ratio.median == pytest.approx(1.06, abs=0.01)


def test_two_modes_are_seen_and_make_a_comparison_unclear():
    mixed = [*times(20), *times(20, 1.12)]
    RNG.shuffle(mixed)
    low, high = two_modes(mixed)
    assert (low, high) == (pytest.approx(1.0, abs=0.02), pytest.approx(1.12, abs=0.02))
    assert compare(mixed, times(40))[0] == "unclear"
    assert sum(two_modes(times(40)) is not None for _ in range(2000)) <= 2


@pytest.mark.parametrize("count", [15, 40, 100])
def test_two_clocks_are_seen_however_many_samples_there_are(count: int):
    seen = 0
    for number in range(100):
        high = np.arange(count) % 2 if number % 2 else np.arange(count) >= count / 3
        series = (1 + 0.06 * high) * (1 + 0.003 * OTHER.standard_normal(count))
        seen += two_modes(list(series)) is not None
    assert seen >= 95


def test_a_few_outliers_are_no_mode():
    assert two_modes([*times(40), 3.0, 3.1]) is None


@pytest.mark.parametrize("bad", [[1.0] * 7, [1.0] * 9 + [0.0], [1.0] * 9 + [float("nan")],
                                 [1.0] * 9 + [-1.0], [float("inf")] * 9])  # fmt: skip
def test_what_is_no_time_is_refused(bad: list[float]):
    with pytest.raises(SampleError):
        median_interval(bad)
    with pytest.raises(SampleError):
        compare([1.0] * len(bad), bad)


def test_equal_times_are_one_mode_and_the_same():
    assert two_modes([2.0] * 10) is None
    assert compare([2.0] * 10, [2.0] * 10)[0] == "same"
    with pytest.raises(SampleError, match="in turn"):
        compare([1.0] * 10, [1.0] * 9)
