"""DDTree: a worked example, brute force, ties, limits."""

import json
import math
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.ddtree import MAX_BUDGET, DDTree, ddtree
from verify_attn.tree import TreeError

VECTOR = json.loads((Path(__file__).parents[1] / "data" / "tree_vectors.json").read_text())[
    "ddtree"
]
several = settings(max_examples=80, deadline=None)

# [L, V] logits: small, and every tenth entry or so a token of probability zero.
sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
seeds = st.integers(0, 10_000)


def random_logits(size: tuple[int, int], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=size) * rng.uniform(0.2, 3.0)
    logits[rng.random(size) < 0.1] = -np.inf
    logits[:, 0] = np.where(np.isinf(logits).all(axis=1), 0.0, logits[:, 0])
    return logits


def rank_paths(built: DDTree) -> list[tuple[int, ...]]:
    """Each drafted node's path as ranks, in insertion order."""
    return [
        tuple(built.ranks[step - 1] for step in built.tree.path(node)[1:])
        for node in range(1, len(built.tree))
    ]


def all_paths(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    """Every path of ranks with its log probability; those of probability zero left out."""
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ranked = -np.sort(-scores, axis=1)
    found = {}
    for depth in range(1, len(logits) + 1):
        for path in product(range(logits.shape[1]), repeat=depth):
            score = sum(float(ranked[i, rank]) for i, rank in enumerate(path))
            if np.isfinite(score):
                found[path] = score
    return found


def test_worked_example() -> None:
    built = ddtree(np.log(VECTOR["marginals"]), VECTOR["budget"])
    assert list(built.ranks) == VECTOR["ranks"]
    assert list(built.tree.depths[1:]) == VECTOR["depths"]
    assert list(built.tree.parents) == VECTOR["parents"]
    assert np.exp(built.log_probs) == pytest.approx(VECTOR["path_probability"], rel=1e-6)
    assert built.expected_accepted == pytest.approx(VECTOR["expected_accepted"], rel=1e-6)
    visible = ["".join(str(int(seen)) for seen in row) for row in built.tree.visible]
    assert visible == VECTOR["mask_rows"]
    assert built.tokens == built.ranks  # the marginals fall, so a token's id is its rank


def test_tokens_are_ids_and_logits_need_not_be_normalised() -> None:
    shuffle = [3, 0, 4, 1, 2]  # rank of each token id
    logits = np.log(VECTOR["marginals"])[:, shuffle] + 7.5
    built = ddtree(logits, VECTOR["budget"])
    assert list(built.ranks) == VECTOR["ranks"]
    assert list(built.tokens) == [shuffle.index(rank) for rank in VECTOR["ranks"]]


class TestBruteForce:
    @several
    @given(sizes, seeds, st.integers(0, 40))
    def test_the_most_probable_prefixes(
        self, size: tuple[int, int], seed: int, budget: int
    ) -> None:
        logits = random_logits(size, seed)
        # At most `budget` tokens a position are looked at, which loses nothing: a rank at or
        # above it has `budget` better siblings.
        paths = all_paths(logits)
        best = sorted(paths, key=lambda path: (-paths[path], path))[:budget]
        built = ddtree(logits, budget)
        got = rank_paths(built)
        assert len(got) == len(set(got)) == len(best)
        assert built.expected_accepted == pytest.approx(
            sum(math.exp(paths[path]) for path in best), rel=1e-5
        )
        scores = sorted(paths.values(), reverse=True)
        last = slice(max(0, len(best) - 1), len(best) + 1)
        near = [a - b < 1e-5 for a, b in zip(scores[last], scores[last][1:], strict=False)]
        if not any(near):  # no tie at the cut
            assert set(got) == set(best)
        for path, score in zip(got, built.log_probs, strict=True):
            assert score == pytest.approx(paths[path], abs=1e-5)

    @several
    @given(sizes, seeds, st.integers(0, 40))
    def test_shape(self, size: tuple[int, int], seed: int, budget: int) -> None:
        built = ddtree(random_logits(size, seed), budget)
        got = rank_paths(built)
        assert len(built.tokens) == len(built.ranks) == len(built.log_probs) == len(got)
        for index, path in enumerate(got):
            before = set(got[:index])
            assert len(path) == 1 or path[:-1] in before  # prefix-closed, parents first
            assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in before  # better siblings first
        assert list(built.log_probs) == sorted(built.log_probs, reverse=True)

    @several
    @given(seeds, st.integers(0, 30), st.integers(0, 30))
    def test_a_larger_budget_only_adds(self, seed: int, budget: int, more: int) -> None:
        logits = random_logits((3, 4), seed)
        small, large = ddtree(logits, budget), ddtree(logits, budget + more)
        n = len(small.tree)
        assert large.tree.parents[:n] == small.tree.parents
        assert large.tokens[: n - 1] == small.tokens


class TestTies:
    def test_lexicographic_order_of_ranks(self) -> None:
        """All paths of one length are equally probable, shorter ones more so."""
        built = ddtree(np.zeros((2, 3)), 12)
        assert rank_paths(built) == [(0,), (1,), (2,), *product(range(3), repeat=2)]
        assert built.tokens == (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2)  # equal logits by rising id

    def test_equal_logits_by_rising_token_id(self) -> None:
        built = ddtree(np.tile([0.0, 1.0, 2.0], (1, 300)), 500)
        assert built.tokens == (*range(2, 900, 3), *range(1, 600, 3))

    def test_paths_of_unequal_length(self) -> None:
        """The second row is certain, so a node and its only likely child have one score."""
        logits = np.array([[0.0, 0.0], [0.0, -np.inf]])
        assert rank_paths(ddtree(logits, 9)) == [(0,), (0, 0), (1,), (1, 0)]

    @several
    @given(st.integers(1, 4), st.integers(1, 4), seeds, st.integers(0, 60))
    def test_equal_rows(self, positions: int, width: int, seed: int, budget: int) -> None:
        """Every order of the same ranks, (0, 1) and (1, 0), ties to the last bit."""
        logits = np.tile(np.random.default_rng(seed).normal(size=width), (positions, 1))
        whole = ddtree(logits, MAX_BUDGET)
        single = {
            path[0]: Fraction(score)
            for path, score in zip(rank_paths(whole), whole.log_probs, strict=True)
            if len(path) == 1
        }
        order = sorted(all_paths(logits), key=lambda path: (-sum(single[r] for r in path), path))
        assert rank_paths(ddtree(logits, budget)) == order[:budget]


class TestLimits:
    @pytest.mark.parametrize("budget", [1, 16, 64, 512, MAX_BUDGET])
    def test_budgets(self, budget: int) -> None:
        logits = np.random.default_rng(1).normal(size=(15, 2000)) * 2
        built = ddtree(logits, budget)
        assert len(built.tree) == budget + 1
        assert built.tree.mask_bits.shape == (budget + 1, (budget + 64) // 64)
        assert max(built.tree.depths) <= 15
        assert MAX_BUDGET == 1024

    def test_root_alone(self) -> None:
        for built in (
            ddtree(np.zeros((3, 4)), 0),
            ddtree(np.zeros((0, 4)), 8),
            ddtree(np.zeros((3, 0)), 8),
        ):
            assert built.tree.parents == (-1,)
            assert built.tree.visible.tolist() == [[True]]
            assert built.tokens == built.ranks == built.log_probs == ()
            assert built.expected_accepted == 0.0

    def test_fewer_paths_than_budget(self) -> None:
        assert len(ddtree(np.zeros((2, 3)), 100).tree) == 1 + 3 + 9

    def test_impossible_tokens_are_no_drafts(self) -> None:
        logits = np.array([[-np.inf, 0.0, -np.inf], [1.0, -np.inf, 0.0]])
        built = ddtree(logits, 50)
        assert rank_paths(built) == [(0,), (0, 0), (0, 1)]
        assert built.tokens == (1, 0, 2)
        assert built.expected_accepted == pytest.approx(2.0)

    def test_logits_of_any_size(self) -> None:
        for shift in (-1e4, 1e4):
            assert ddtree(np.array([[0.0, 1.0]]) + shift, 2).tokens == (1, 0)
        assert ddtree(np.array([[0.0, np.finfo(np.float32).min]]), 1).log_probs == (0.0,)

    @pytest.mark.parametrize(
        ("logits", "budget", "message"),
        [
            (np.zeros((1, 2)), -1, "budget is -1; it must lie in 0..1024"),
            (np.zeros((1, 2)), 1025, "budget is 1025; it must lie in 0..1024"),
            (np.zeros(3), 1, "logits has shape (3,); it must be [positions, vocabulary]"),
            ([[0.0, np.nan]], 1, "logits holds NaN or +inf; every entry must be finite or -inf"),
            ([[0.0, np.inf]], 1, "logits holds NaN or +inf"),
            ([[0.0, 1.0], [-np.inf, -np.inf]], 1, "logits[1] is -inf throughout"),
        ],
    )
    def test_errors(self, logits: object, budget: int, message: str) -> None:
        with pytest.raises(TreeError, match=re.escape(message)):
            ddtree(logits, budget)
