"""The target's choice after each node: its argmax, or a sample that hangs on the position alone.

A sample is the argmax of logits / temperature plus Gumbel noise, which is a draw from the softmax
(Gumbel, 1954).  The noise is a function of the request's seed and the token position, so nodes at
one depth share it.  Only one of them is walked, so the output is distributed as the target's; and
with the same seed it is the same text whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Float64Array = npt.NDArray[np.float64]


class LogitsError(RuntimeError):
    """Logits that no choice can be made from."""


@dataclass(frozen=True)
class Sampling:
    """``temperature`` 0 is greedy; ``top_p`` keeps the most likely tokens of that mass."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


def argmax(logits: torch.Tensor) -> list[int]:
    """Of each row of ``logits`` [n, V]; raises `LogitsError` for a NaN."""
    best, tokens = logits.max(dim=-1)
    # One transfer for both; float64 holds every id.
    both = torch.stack((best.double(), tokens.double())).cpu().numpy()
    wrong = np.flatnonzero(np.isnan(both[0]))
    if wrong.size:
        raise LogitsError(
            f"row {wrong[0]} of {len(logits)} of the logits holds NaN; a kernel left its output "
            "unwritten or the weights are broken: `verify-attn check` tells which"
        )
    return [int(token) for token in both[1]]


def sample(logits: torch.Tensor, positions: Sequence[int], sampling: Sampling) -> list[int]:
    """One token a row of ``logits`` [n, V], for the token positions ``positions``."""
    rows = logits.double().cpu().numpy()
    if not np.isfinite(rows.max(axis=-1)).all():
        raise LogitsError("the logits hold NaN or infinity; no token can be drawn from them")
    noise: dict[int, Float64Array] = {}
    tokens = []
    for row, position in zip(rows, positions, strict=True):
        if position not in noise:
            noise[position] = _gumbel(len(row), sampling.seed, position)
        tokens.append(int(np.argmax(_kept(row, sampling) + noise[position])))
    return tokens


def probabilities(logits: npt.ArrayLike, sampling: Sampling) -> Float64Array:
    """[V] of one row of logits: what `sample` draws from."""
    weights = np.exp(_kept(np.asarray(logits, dtype=np.float64), sampling))
    shares: Float64Array = weights / weights.sum()
    return shares


def _kept(logits: Float64Array, sampling: Sampling) -> Float64Array:
    """Divided by the temperature, the largest 0; -inf past the mass of ``top_p``.

    The largest is taken off first: a temperature near 0 then makes the others -inf, not all inf.
    """
    top_p = sampling.top_p
    with np.errstate(over="ignore"):
        scaled: Float64Array = (logits - logits.max()) / sampling.temperature
    if top_p >= 1.0:
        return scaled
    weights = np.exp(scaled)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    dropped = order[before >= top_p * weights.sum()]
    kept = scaled.copy()
    kept[dropped[dropped != order[0]]] = -np.inf  # the likeliest always stays
    return kept


def _gumbel(count: int, seed: int, position: int) -> Float64Array:
    """Of a counter-based generator: no state to carry, any position at once."""
    bits = np.random.Philox(key=seed % 2**64, counter=[0, 0, position, 0])
    noise: Float64Array = np.random.Generator(bits).gumbel(size=count)
    return noise
