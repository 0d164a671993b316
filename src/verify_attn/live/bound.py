"""How sure a decode rate is: a block bootstrap over the decode steps of all repeats."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from verify_attn.live.absent import Absent
from verify_attn.live.measure import Measurement
from verify_attn.live.tokens import Floats

RESAMPLES = 2000
CONFIDENCE = 0.95  # one-sided
MIN_STEPS = 30
STEPS_FOR_BOUNDS = 16  # four blocks: of fewer the bounds say more than is known
# Steps are alike over short stretches (easy text, a busy moment): a block keeps them together, the
# longer, the more a step is like the one before it.
LEAST_BLOCK = 4
LEAST_BLOCKS = 6


@dataclass(frozen=True)
class Steps:
    """Durations in seconds and tokens of the steps of one answer, the first left out."""

    seconds: Floats
    tokens: Floats

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return float(self.tokens.sum() / self.seconds.sum())


def steps_of(m: Measurement) -> Steps | Absent:
    """The steps that a decode rate is made of."""
    if isinstance(m.decode_tok_s, Absent):
        return m.decode_tok_s
    assert not isinstance(m.steps.tokens, Absent)
    return Steps(np.diff(m.steps.t_s), m.steps.tokens[1:])


@dataclass(frozen=True)
class Bounds:
    """One-sided bounds of a rate in tokens/s at 95 % each, from ``steps`` steps."""

    low: float
    high: float
    steps: int


def bounds(repeats: list[Steps], seed: int = 0, confidence: float = CONFIDENCE) -> Bounds:
    """Circular-block bootstrap of total tokens over total seconds; blocks stay in one repeat.

    Few blocks spread less than what they stand for: the distance from the rate to each bound is
    stretched as Student's t is against the normal distribution.
    """
    rng = np.random.default_rng(seed)
    total = sum(len(steps.seconds) for steps in repeats)
    size = _block(repeats, total)
    block_seconds = np.concatenate([_block_sums(steps.seconds, size) for steps in repeats])
    block_tokens = np.concatenate([_block_sums(steps.tokens, size) for steps in repeats])
    blocks = max(2, round(total / size))
    # Sums of every block, then sums of drawn blocks: no need to copy the steps themselves.
    drawn = rng.integers(0, total, size=(RESAMPLES, blocks))
    rates = block_tokens[drawn].sum(axis=1) / np.maximum(block_seconds[drawn].sum(axis=1), 1e-12)
    low, high = np.quantile(rates, [1 - confidence, confidence])
    rate = _rate(repeats)
    stretch = stats.t.ppf(confidence, blocks - 1) / stats.norm.ppf(confidence)
    return Bounds(
        max(0.0, rate - stretch * max(rate - float(low), 0.0)),
        rate + stretch * max(float(high) - rate, 0.0),
        total,
    )


def _rate(repeats: list[Steps]) -> float:
    seconds = sum(float(steps.seconds.sum()) for steps in repeats)
    return sum(float(steps.tokens.sum()) for steps in repeats) / seconds


def _block(repeats: list[Steps], total: int) -> int:
    """Steps a block: twice Carlstein's (1986) length for a series where each step remembers the one
    before it as much as these do; his is the best for the middle of the distribution, and bounds
    are about its ends."""
    rate = _rate(repeats)
    together = apart = 0.0
    for steps in repeats:
        ahead = steps.tokens - rate * steps.seconds
        together += float((ahead[1:] * ahead[:-1]).sum())
        apart += float((ahead * ahead).sum())
    like = together / apart if apart else 0.0
    like = min(max(like + (1 + 4 * like) / total, 0.0), 0.9)  # short series look less alike
    length = float(2 * (2 * like / (1 - like**2)) ** (2 / 3) * total ** (1 / 3))
    most = max(LEAST_BLOCK, total // LEAST_BLOCKS)
    return max(1, min(max(LEAST_BLOCK, round(length)), most, *(len(s.seconds) for s in repeats)))


def _block_sums(values: Floats, size: int) -> Floats:
    """Of every block, the end continued by the beginning: each step is in as many as any other."""
    total = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values[: size - 1])))))
    return total[size:] - total[:-size]


def decide(repeats: list[Steps], floor: float, floor_error: float = 0.0) -> tuple[str, str]:
    """(``pass``, ``fail`` or ``inconclusive``; the reason) of a rate against its floor.

    ``floor_error`` is the floor's own, as a share of it, at the same confidence, where it is a
    ratio to another measured rate; it widens the bounds, errors adding up as squares.
    """
    total = sum(len(steps.seconds) for steps in repeats)
    seconds = sum(float(steps.seconds.sum()) for steps in repeats)
    rate = sum(float(steps.tokens.sum()) for steps in repeats) / seconds if seconds else 0.0
    if total < MIN_STEPS:
        every = total > 0 and all(np.all(steps.tokens < floor * steps.seconds) for steps in repeats)
        if every:
            return "fail", f"{rate:.4g} tok/s, floor {floor:.4g}: every one of {total} steps misses"
        return "inconclusive", (
            f"{rate:.4g} tok/s, floor {floor:.4g}: {total} steps are too few, it takes {MIN_STEPS}"
        )
    found = _widened(bounds(repeats), rate, floor_error)
    if found.low >= floor:
        return "pass", f"{rate:.4g} tok/s, at least {found.low:.4g}; floor {floor:.4g}"
    if found.high < floor:
        return "fail", f"{rate:.4g} tok/s, at most {found.high:.4g}; floor {floor:.4g}"
    return "inconclusive", (
        f"{rate:.4g} tok/s, between {found.low:.4g} and {found.high:.4g}; floor {floor:.4g}"
    )


def _widened(found: Bounds, rate: float, error: float) -> Bounds:
    if error == 0:
        return found
    low = float(np.hypot(1 - found.low / rate, error))
    high = float(np.hypot(found.high / rate - 1, error))
    return Bounds(rate * max(0.0, 1 - low), rate * (1 + high), found.steps)


def worst_window(repeats: list[Steps], window_tokens: int) -> list[Steps]:
    """The slowest window, in the answer's order, of any repeat, as the steps that it has.

    A window has ``window_tokens`` at least, and steps enough to be decided by; a rest of the
    answer that is under half a window belongs to the last one.
    """
    worst: Steps | None = None
    for steps in repeats:
        edges = _edges(np.cumsum(steps.tokens), window_tokens)
        for start, end in pairwise(edges):
            part = Steps(steps.seconds[start:end], steps.tokens[start:end])
            if part.seconds.sum() > 0 and (worst is None or part.rate < worst.rate):
                worst = part
    return [worst] if worst is not None else repeats


def _edges(got: Floats, window_tokens: int) -> list[int]:
    edges, before = [0], 0.0
    while True:
        end = int(np.searchsorted(got, before + window_tokens - 1e-9)) + 1
        end = max(end, edges[-1] + MIN_STEPS)
        if end > len(got):
            break
        edges.append(end)
        before = float(got[end - 1])
    rest = len(got) - edges[-1]
    if len(edges) > 1 and rest:
        if rest >= MIN_STEPS and got[-1] - before >= window_tokens / 2:
            edges.append(len(got))
        else:
            edges[-1] = len(got)
    return edges
