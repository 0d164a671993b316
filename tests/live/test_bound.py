"""How often a bound of a rate holds, and how often a verdict is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.signal import lfilter

from tests.live.synthetic import measured, steady
from verify_attn.live.absent import Absent
from verify_attn.live.bound import MIN_STEPS, Steps, bounds, decide, steps_of, worst_window

RUNS = 300
Make = Callable[[np.random.Generator, int], Steps]


def independent(rng: np.random.Generator, steps: int) -> Steps:
    """Nothing to do with each other: times of 10 ms, commits of 1 to 8."""
    seconds = 0.01 * np.exp(0.1 * rng.standard_normal(steps))
    return Steps(seconds, np.minimum(rng.geometric(0.3, steps), 8).astype(float))


def in_stretches(rng: np.random.Generator, steps: int) -> Steps:
    """Easy and hard text, and busy moments: alike over some five steps."""
    mood = lfilter([np.sqrt(1 - 0.6**2)], [1, -0.6], rng.standard_normal((2, steps + 50)))[:, 50:]
    tokens = np.clip(np.round(3.5 + 1.8 * mood[0]), 1, 8)
    return Steps(0.01 * np.exp(0.2 * mood[1]), tokens)


def true_rate(make: Make) -> float:
    """Of a run that never ends, or nearly."""
    return make(np.random.default_rng(99), 2_000_000).rate


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("make", [independent, in_stretches])
def test_bounds_hold_as_often_as_they_say(make: Make, repeats: int) -> None:
    """Nominally 95 % on each side; a bootstrap of few steps gives up a little."""
    true, below, above = true_rate(make), 0, 0
    for run in range(RUNS):
        rng = np.random.default_rng(run)
        found = bounds([make(rng, 150 // repeats) for _ in range(repeats)], seed=run)
        below += found.low <= true
        above += found.high >= true
        assert found.low < found.high
    assert min(below, above) >= 0.9 * RUNS, (below, above)


@pytest.mark.parametrize("make", [independent, in_stretches])
def test_verdicts_are_seldom_wrong(make: Make) -> None:
    """A rate just under its floor seldom passes, one just over it seldom fails."""
    true, passed, failed = true_rate(make), 0, 0
    for run in range(RUNS):
        steps = [make(np.random.default_rng(run), 150)]
        passed += decide(steps, true * 1.001)[0] == "pass"
        failed += decide(steps, true * 0.999)[0] == "fail"
    assert passed <= 0.1 * RUNS, passed
    assert failed <= 0.1 * RUNS, failed


def test_clear_verdicts() -> None:
    steps = [independent(np.random.default_rng(1), 300)]
    rate = steps[0].rate
    assert decide(steps, rate * 0.8)[0] == "pass"
    assert decide(steps, rate * 1.2)[0] == "fail"
    status, reason = decide(steps, rate)
    assert status == "inconclusive"
    assert "between" in reason
    # More repeats decide what one leaves open.
    more = [independent(np.random.default_rng(i), 300) for i in range(40)]
    assert decide(more, true_rate(independent) * 0.97)[0] == "pass"


def test_too_few_steps() -> None:
    few = Steps(np.full(MIN_STEPS - 1, 0.1), np.ones(MIN_STEPS - 1))
    assert decide([few], 1.0)[0] == "inconclusive"
    assert "too few" in decide([few], 1.0)[1]
    assert decide([few], 100.0)[0] == "fail"  # every step misses by itself
    assert decide([Steps(np.full(40, 0.1), np.ones(40))], 9.9)[0] == "pass"
    assert decide([], 1.0)[0] == "inconclusive"


def test_the_same_steps_give_the_same_bounds() -> None:
    steps = [independent(np.random.default_rng(3), 200)]
    assert bounds(steps) == bounds(steps)


def test_the_worst_window() -> None:
    seconds = np.r_[np.full(100, 0.01), np.full(50, 0.05), np.full(100, 0.01)]
    (slow,) = worst_window([Steps(seconds, np.ones(250))], 50)
    assert slow.rate == pytest.approx(20)
    assert len(slow.seconds) == 50
    other = Steps(np.full(100, 0.1), np.ones(100))
    assert worst_window([Steps(seconds, np.ones(250)), other], 50)[0].rate == pytest.approx(10)
    short = [Steps(np.full(10, 0.1), np.ones(10))]
    assert worst_window(short, 50) == short


def test_steps_of_an_answer() -> None:
    found = steps_of(measured(steady(100, 0.02, 3), running=True))
    assert not isinstance(found, Absent)
    assert found.rate == pytest.approx(150)
    assert len(found.seconds) == 99
    assert isinstance(steps_of(measured(steady(100), usage=False)), Absent)
