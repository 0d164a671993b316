"""Do intervals of `bench` hold the median as often as they say, and is its verdict so?  Simulated.

    python benchmarks/interval_coverage.py --runs 1000

Times with a known median are drawn, sampled as `perf/bench.py` samples (it stops once intervals
are narrow), and judged by the functions that judge measured ones.  Noise is a share of the time:
normal, skewed (gamma), with heavy tails (Student's t of 2), and such that neighbours hang together
(``ar.9``: correlation 0.9, a clock that drifts).  Needs no GPU; some minutes.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from verify_attn.perf.bench import LOOKS, MOST_ROUNDS, PRECISION
from verify_attn.perf.judged import judge
from verify_attn.perf.saved import Span
from verify_attn.perf.statistics import Interval, compare, median_interval

DICE = np.random.default_rng(1)
Noise = Callable[[], np.ndarray]


def drifting(correlation: float) -> np.ndarray:
    """Of standard deviation 1."""
    steps = DICE.standard_normal(MOST_ROUNDS) * math.sqrt(1 - correlation**2)
    steps[0] /= math.sqrt(1 - correlation**2)
    for i in range(1, MOST_ROUNDS):
        steps[i] += correlation * steps[i - 1]
    return steps


NOISES: dict[str, Noise] = {
    "normal": lambda: DICE.standard_normal(MOST_ROUNDS),
    "skewed": lambda: DICE.gamma(2, 1, MOST_ROUNDS) - 1.67835,
    "heavy tails": lambda: DICE.standard_t(2, MOST_ROUNDS),
    "ar.3": lambda: drifting(0.3),
    "ar.5": lambda: drifting(0.5),
    "ar.7": lambda: drifting(0.7),
    "ar.9": lambda: drifting(0.9),
}


def times(noise: Noise, spread: float, median: float = 1.0) -> list[float]:
    """As many as a cell can have; a time is never less than a tenth."""
    return list(median * np.maximum(0.1, 1 + spread * noise()))


def half_width(found: Interval) -> float:
    """The wider side, by the median."""
    return max(found.high - found.median, found.median - found.low) / found.median


def taken(*series: list[float]) -> int:
    """Where `bench` stops."""
    for count in LOOKS:
        if all(half_width(median_interval(s[:count])) <= PRECISION for s in series):
            return count
    return MOST_ROUNDS


def coverage(runs: int) -> None:
    """How often an interval holds the median."""
    print("coverage (samples taken on average), noise of 1, 2, 3 and 5 %")
    for name, noise in NOISES.items():
        told = []
        for spread in (0.01, 0.02, 0.03, 0.05):
            inside, samples = 0, 0
            for _ in range(runs):
                series = times(noise, spread)
                count = taken(series)
                found = median_interval(series[:count])
                inside += found.low <= 1 <= found.high
                samples += count
            told.append(f"{inside / runs:.3f} ({samples / runs:.0f})")
        print(f"  {name:12}", *told)


def in_one_run(runs: int) -> None:
    """Two kernels that take turns; the clock's drift is shared, the rest is each one's own."""
    print("verdicts in one run; shared drift of 3 % (ar.9), own noise of 1 and 3 %")
    for name in ("normal", "skewed", "heavy tails", "ar.5"):
        for spread in (0.01, 0.03):
            for factor in (1.0, 1.05):
                verdicts: Counter[str] = Counter()
                for _ in range(runs):
                    clock = 1 + 0.03 * drifting(0.9)
                    a, b = (
                        list(clock * np.array(times(NOISES[name], spread, m))) for m in (1, factor)
                    )
                    count = taken(a, b)
                    verdicts[compare(a[:count], b[:count])[0]] += 1
                print(f"  {name:12} {spread:.0%} x{factor}: {dict(verdicts)}")


def in_two_runs(runs: int, threshold: float = 0.05) -> None:
    """`verify-attn compare`: all times of a run share one factor."""
    print(f"verdicts of two runs at {threshold:.0%}; noise of 1 %, each run's own factor")
    for drift in (0.0, 0.01, 0.02):
        for factor in (1.0, 1.05, 1.1):
            verdicts: Counter[str] = Counter()
            for _ in range(runs):
                spans = []
                for median in (1.0, factor):
                    median *= 1 + drift * DICE.standard_normal()
                    series = times(NOISES["normal"], 0.01, median)
                    found = median_interval(series[: taken(series)])
                    spans.append(Span(found.low, found.median, found.high))
                verdicts[judge("run", spans[0], spans[1], threshold).verdict] += 1
            print(f"  drift {drift:.0%} x{factor}: {dict(verdicts)}")


def main() -> None:
    """All three."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=1000, help="simulations of each kind")
    runs = arguments.parse_args().runs
    coverage(runs)
    in_one_run(runs)
    in_two_runs(runs)


if __name__ == "__main__":
    main()
