"""Fits of time against context, and changes inside an answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_attn.live.changes import changes, committed_drift, largest, time_drift
from verify_attn.live.fits import fit, steepness

N = np.array([1000.0, 4000.0, 16_000.0, 64_000.0, 131_072.0])


@given(st.floats(1e-4, 1.0), st.floats(0, 1e-3), st.floats(0, 1e-9), st.integers(3, 5))
def test_a_fit_finds_what_made_the_times(
    fixed: float, linear: float, quadratic: float, lengths: int
) -> None:
    n = N[:lengths]
    curve = fit(n, fixed + linear * n + quadratic * n**2)
    assert curve is not None
    for at in (2000.0, 10_000.0):
        assert curve.at(at) == pytest.approx(fixed + linear * at + quadratic * at**2, rel=0.02)
    assert sum(curve.shares_at(10_000)) == pytest.approx(1)


def test_no_part_is_negative() -> None:
    curve = fit(N, np.array([1.0, 0.9, 1.1, 1.0, 1.05]))
    assert curve is not None
    assert min(curve.fixed_s, curve.linear_s, curve.quadratic_s) >= 0
    assert curve.at(1e6) >= curve.at(1e3)


def test_too_little_to_fit() -> None:
    assert fit(np.array([5.0, 5.0]), np.array([1.0, 2.0])) is None
    assert fit(N[:2], np.array([1.0, 0.0])) is None
    two = fit(N[:2], np.array([1.0, 4.0]))
    assert two is not None
    assert two.quadratic_s == 0
    assert two.at(7000) == pytest.approx(7)


@given(st.floats(0.0, 3.0), st.floats(1e-9, 1e3), st.permutations(range(5)))
def test_steepness_is_the_exponent(power: float, scale: float, order: list[int]) -> None:
    n = N[order]
    found = steepness(n, scale * (n / 1000) ** power)
    assert found == pytest.approx(power, abs=1e-6)


def test_steepness_needs_a_stretch() -> None:
    assert steepness(np.array([1000.0, 1200.0]), np.array([1.0, 2.0])) is None


@pytest.mark.parametrize("seed", range(30))
def test_noise_has_no_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = time_drift(0.01 * (1 + 0.15 * rng.standard_normal(400)))
    tokens = committed_drift(np.minimum(rng.geometric(0.3, 400), 8).astype(float))
    assert times is not None
    assert tokens is not None
    assert not times.significant
    assert not tokens.significant


@pytest.mark.parametrize("seed", range(10))
def test_drifts_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = time_drift(np.linspace(0.01, 0.02, 200) * (1 + 0.15 * rng.standard_normal(200)))
    assert times is not None
    assert times.significant
    assert times.ratio == pytest.approx(11 / 7, rel=0.15)
    fallen = np.r_[rng.geometric(0.2, 80), rng.geometric(0.7, 160)].astype(float)
    tokens = committed_drift(fallen)
    assert tokens is not None
    assert tokens.significant
    assert tokens.ratio < 0.6


def test_one_pause_is_no_drift() -> None:
    seconds = 0.01 * (1 + 0.05 * np.random.default_rng(0).standard_normal(300))
    seconds[250] = 5.0
    found = time_drift(seconds)
    assert found is not None
    assert not found.significant
    assert found.ratio == pytest.approx(1, abs=0.05)


def test_thirds_are_of_the_tokens() -> None:
    """Where few are committed there are many steps: by steps, the first third would hold both."""
    found = committed_drift(np.r_[np.full(20, 8.0), np.full(160, 1.0)] + 0.0)
    assert found is not None
    assert found.early == pytest.approx(8.0)
    assert found.late == 1.0


def test_nothing_to_compare() -> None:
    assert committed_drift(np.array([])) is None
    assert time_drift(np.array([1.0, 2.0])) is None
    assert time_drift(np.full(100, 0.01)) is None
    assert changes(np.full(100, 1.0), log=True) == []
    assert changes(np.arange(10.0), log=False) == []
    assert largest([]) is None


@pytest.mark.parametrize("at", [40, 150, 260])
@pytest.mark.parametrize("log", [False, True])
def test_a_change_is_found_where_it_is(at: int, log: bool) -> None:
    rng = np.random.default_rng(at)
    values = np.r_[np.full(at, 1.0), np.full(300 - at, 2.0)] * (1 + 0.1 * rng.standard_normal(300))
    (found,) = changes(values, log=log)
    assert abs(found.at - at) <= 2
    assert found.ratio == pytest.approx(2, rel=0.06)
    assert largest([found]) is found


@pytest.mark.parametrize("seed", range(10))
def test_changes_do_not_come_from_noise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert changes(np.exp(0.1 * rng.standard_normal(400)), log=True) == []
