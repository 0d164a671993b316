"""Change points: none in noise, and a real one where it is.  Seeds are fixed; bounds are shares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from verify_attn.report.change_points import LEAST, MIN_SIDE, _apart, changes

SEEDS = 200


def share(claims, seeds=SEEDS):
    return sum(bool(claims(np.random.default_rng(seed))) for seed in range(seeds)) / seeds


def drifting(rng):
    """Each record resembles the one before it, as on a machine that warms and cools."""
    found = [0.0]
    for step in rng.normal(size=199):
        found.append(0.5 * found[-1] + 0.02 * step)
    return np.exp(found)


NOISE = {
    "1 %": lambda rng: 1 + 0.01 * rng.normal(size=200),
    "10 %": lambda rng: np.exp(0.1 * rng.normal(size=200)),
    "around zero": lambda rng: rng.normal(size=200),
    "heavy tails": lambda rng: np.exp(0.03 * rng.standard_t(3, size=200)),
    "two modes": lambda rng: 1 + 0.1 * (rng.random(200) < 0.3) + 0.005 * rng.normal(size=200),
    "drifting": drifting,
}


@pytest.mark.parametrize("kind", NOISE)
def test_noise_alone_is_no_change(kind):
    assert share(lambda rng: changes(NOISE[kind](rng))) <= 0.01


@pytest.mark.parametrize("count", [6, 7, 10, 20])
def test_nor_is_it_in_a_short_series(count):
    assert share(lambda rng: changes(np.exp(0.05 * rng.normal(size=count)))) <= 0.01


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_a_step_of_5_percent_is_found_where_it_is(factor):
    def finds(rng):
        at = int(rng.integers(MIN_SIDE, 200 - MIN_SIDE + 1))
        values = 1 + 0.01 * rng.normal(size=200)
        values[at:] *= factor
        found = changes(values)
        return len(found) == 1 and abs(found[0].at - at) <= 1

    assert share(finds) >= 0.95


def test_a_step_is_found_through_outliers():
    def finds(rng):
        values = (1 + 0.01 * rng.normal(size=200)) * np.where(rng.random(200) < 0.03, 1.5, 1)
        values[90:] *= 1.05
        return any(abs(change.at - 90) <= 1 for change in changes(values))

    assert share(finds) >= 0.95


def test_two_steps_and_their_sizes():
    rng = np.random.default_rng(0)
    values = np.repeat([10.0, 12.0, 9.0], 30) * (1 + 0.01 * rng.normal(size=90))
    first, second = changes(values)
    assert (first.at, second.at) == (30, 60)
    assert first.before == pytest.approx(10, rel=0.02)
    assert first.after == second.before == pytest.approx(12, rel=0.02)
    assert second.ratio == pytest.approx(0.75, rel=0.02)


def test_figures_without_noise():
    assert changes([1.0] * 20) == []
    (change,) = changes([0.0] * 5 + [0.5] * 5)
    assert (change.at, change.before, change.after, change.ratio) == (5, 0.0, 0.5, None)
    assert [c.at for c in changes([2.0] * 3 + [1.0] * 3)] == [3]


def test_two_records_are_no_change_yet_three_are():
    calm = [1.0, 1.001, 0.999] * 10
    assert changes([*calm, 2.0, 2.0]) == []
    assert [c.at for c in changes([*calm, 2.0, 2.0, 2.0])] == [30]
    assert changes(calm[: LEAST - 1]) == []


def test_a_change_too_small_to_act_on():
    assert changes([1.0, 1.0001] * 20 + [1.01, 1.0101] * 20) == []
    assert len(changes([1.0, 1.0001] * 20 + [1.03, 1.0301] * 20)) == 1


def test_a_change_within_what_a_record_says_of_its_accuracy():
    values = [1.0, 1.001] * 10 + [1.05, 1.051] * 10
    wide = [(value * 0.9, value * 1.1) for value in values]
    narrow = [(value * 0.99, value * 1.01) for value in values]
    assert changes(values, wide) == []
    assert len(changes(values, narrow)) == len(changes(values, [None] * 40)) == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-1e12, 1e12, allow_nan=False), max_size=40)
    | st.lists(st.sampled_from([0.0, 5e-324, 1.0, -1.0, 1e12]), max_size=40)
)
def test_any_figures(values):
    found = changes(values)
    bounds = [0, *(change.at for change in found), len(values)]
    assert not found or min(np.diff(bounds)) >= MIN_SIDE
    for change, a, b in zip(found, bounds, bounds[2:], strict=False):
        assert change.before == np.median(values[a : change.at])
        assert change.after == np.median(values[change.at : b])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_the_unit_of_the_figures_is_no_matter(seed, factor):
    rng = np.random.default_rng(seed)
    values = (1 + 0.01 * rng.normal(size=60)) * np.repeat([1, 1.2], 30)
    assert [c.at for c in changes(values)] == [c.at for c in changes(values * factor)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=30),
    st.lists(st.integers(0, 5), min_size=3, max_size=30),
)
def test_the_ranks_are_those_of_mann_and_whitney(a, b):
    if len({*a, *b}) == 1:
        return
    theirs = stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False).pvalue
    ours = _apart(np.array(a, float), np.array(b, float))
    assert 2 * stats.norm.sf(ours) == pytest.approx(theirs)
