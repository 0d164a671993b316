"""Choosing tokens: greedy, and samples whose distribution is the target's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from verify_attn.engine.sampling import LogitsError, Sampling, argmax, probabilities, sample

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0, 0.0]])


def test_argmax_takes_the_largest_of_each_row():
    assert argmax(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]])) == [1, 0]


def test_nan_is_no_choice():
    with pytest.raises(LogitsError, match="row 1 of 2"):
        argmax(torch.tensor([[0.0, 1.0], [float("nan"), 2.0]]))
    with pytest.raises(LogitsError, match="NaN"):
        sample(torch.tensor([[0.0, float("nan")]]), [0], Sampling(1.0))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.6), Sampling(2.0), Sampling(1.0, 0.8), Sampling(0.7, 0.5)],
)
def test_samples_are_distributed_as_the_softmax(sampling: Sampling):
    draws = 20_000
    rows = LOGITS.expand(draws, -1)
    counts = np.bincount(sample(rows, range(draws), sampling), minlength=6)
    expected = probabilities(LOGITS[0].numpy(), sampling) * draws
    possible = expected > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert chisquare(counts[possible], expected[possible]).pvalue > 1e-4


def test_top_p_keeps_the_least_set_that_reaches_it():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    kept = probabilities(logits, Sampling(1.0, 0.79)) > 0
    assert kept.tolist() == [True, True, False, False]
    assert (probabilities(logits, Sampling(1.0, 1e-9)) > 0).tolist() == [True, False, False, False]


def test_the_position_and_the_seed_alone_decide():
    many = sample(LOGITS.expand(64, -1), range(64), Sampling(1.0, seed=3))
    backwards = sample(LOGITS.expand(64, -1), range(63, -1, -1), Sampling(1.0, seed=3))
    assert many == backwards[::-1]
    assert many != sample(LOGITS.expand(64, -1), range(64), Sampling(1.0, seed=4))
    assert len(set(many)) > 1
