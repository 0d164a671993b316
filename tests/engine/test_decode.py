"""The verify loop is lossless: whatever the drafter, budget, page size, allocator and kernel, the
text is that of plain decoding, token by token.

Trees are hung on what plain decoding said, so that branches, whole trees and nothing are accepted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tests.engine.small import CONFIG, WEIGHTS, decoder_of, differs_by, generate
from verify_attn.engine.drafters.base import Drafted, Proposal
from verify_attn.engine.drafters.ngram import NgramDrafter
from verify_attn.engine.drafters.none import NoDrafter
from verify_attn.engine.drafters.replay import ReplayDrafter
from verify_attn.engine.sampling import Sampling, probabilities
from verify_attn.tree import DraftTree

PROMPTS = [[0, 5, 9, 0, 5, 9, 0, 5], [3], list(range(20)), [7, 7, 7, 7, 7, 7, 7, 7, 7]]
NEW = 24


@dataclass
class Known:
    """Puts the continuation that it knows on a random path of a random tree.

    ``right`` of its tokens are right; id 0 is among the tokens.
    """

    texts: dict[int, list[int]]  # by request: prompt and all that follows
    right: int = 10_000
    seed: int = 0
    name: str = "known"
    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        return [self._one(request, budget) for request in requests]

    def _one(self, request: Drafted, budget: int) -> Proposal:
        at = len(request.tokens)
        draw = random.Random(f"{self.seed} {request.key} {at}")
        kinds = [DraftTree.chain, DraftTree.star, DraftTree.comb,
                 lambda n: DraftTree.random(n, draw.randrange(1000))]  # fmt: skip
        tree = draw.choice(kinds)(draw.randrange(budget + 1) + 1)
        tokens = [draw.randrange(CONFIG.vocabulary) for _ in range(len(tree) - 1)]
        path = tree.path(draw.randrange(len(tree)))
        text = self.texts[request.key]
        for depth, node in enumerate(path[1:]):
            if at + depth < len(text) and depth < self.right:
                tokens[node - 1] = text[at + depth]
        return Proposal(tree, tuple(tokens))

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        assert start + len(features) == self.rows.get(request.key, 0) + len(features)
        self.rows[request.key] = start + len(features)

    def forget(self, request: Drafted) -> None:
        self.rows.pop(request.key, None)

    def __post_init__(self) -> None:
        self.rows: dict[int, int] = {}


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What plain decoding makes of each prompt alone."""
    return [generate(decoder_of(NoDrafter(), 0), [p], NEW)[0] for p in PROMPTS]


def same_as_plain(got: list[list[int]], plain: list[list[int]]) -> None:
    for prompt, text, expected in zip(PROMPTS, got, plain, strict=True):
        assert text[: len(prompt)] == prompt
        size = min(len(text), len(expected))
        if text[:size] != expected[:size]:
            gap = differs_by(text, expected)
            assert gap < 1e-4, f"{text} is not {expected}; the logits are {gap} apart"


def known(plain: list[list[int]], **how) -> Known:
    return Known(dict(enumerate(plain, start=1)), **how)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("allocator", ["fifo", "sorted", "contiguous"])
@pytest.mark.parametrize("tier0", [False, True])
def test_any_tree_any_pages(plain, page_size, allocator, tier0):
    decoder = decoder_of(
        known(plain), 13, page_size=page_size, allocator=allocator, contiguous=tier0
    )
    steps: list[int] = []
    same_as_plain(generate(decoder, PROMPTS, NEW, steps=steps), plain)
    assert max(steps) > 2  # something was accepted
    decoder.cache.check()


@pytest.mark.parametrize("budget", [0, 1, 2, 31, 64, 100])
def test_any_budget(plain, budget):
    steps: list[int] = []
    same_as_plain(generate(decoder_of(known(plain), budget), PROMPTS, NEW, steps=steps), plain)
    assert max(steps) <= budget + 1


def test_nothing_accepted(plain):
    class Wrong(Known):
        def _one(self, request: Drafted, budget: int) -> Proposal:
            wanted = self.texts[request.key]
            at = len(request.tokens)
            right = wanted[at] if at < len(wanted) else 0
            tree = DraftTree.star(budget + 1)
            others = [t for t in range(CONFIG.vocabulary) if t != right]
            return Proposal(tree, tuple(others[:budget]))

    steps: list[int] = []
    texts = dict(enumerate(plain, start=1))
    same_as_plain(generate(decoder_of(Wrong(texts), 7), PROMPTS, NEW, steps=steps), plain)
    assert set(steps) == {1}


def test_the_whole_tree_accepted(plain):
    class Whole(Known):
        def _one(self, request: Drafted, budget: int) -> Proposal:
            at = len(request.tokens)
            rest = self.texts[request.key][at : at + budget]
            return Proposal(DraftTree.chain(len(rest) + 1), tuple(rest))

    steps: list[int] = []
    texts = dict(enumerate(plain, start=1))
    same_as_plain(generate(decoder_of(Whole(texts), 5), PROMPTS, NEW, steps=steps), plain)
    assert steps.count(6) > len(steps) / 2


@pytest.mark.parametrize("drafter", [NgramDrafter, lambda: ReplayDrafter([1, 0, 2], 32)])
def test_drafters_of_the_package(plain, drafter):
    same_as_plain(generate(decoder_of(drafter(), 9, page_size=2), PROMPTS, NEW), plain)


@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_prefill_in_chunks(plain, chunk):
    same_as_plain(generate(decoder_of(known(plain), 9), PROMPTS, NEW, chunk=chunk), plain)


@pytest.mark.parametrize("kernel", ["triton-split", "triton-unsplit"])
def test_triton_in_the_interpreter(plain, kernel):
    texts = [[*plain[0]], [*plain[3]]]
    prompts = [PROMPTS[0], PROMPTS[3]]
    decoder = decoder_of(known(texts), 7, page_size=2, kernel=kernel)
    got = generate(decoder, prompts, 10)
    for text, expected in zip(got, texts, strict=True):
        size = min(len(text), len(expected))
        assert text[:size] == expected[:size] or differs_by(text, expected) < 1e-4


def test_samples_do_not_depend_on_what_was_drafted(plain):
    sampling = Sampling(0.9, 0.95, seed=11)
    alone = [generate(decoder_of(NoDrafter(), 0), [p], NEW, sampling=sampling)[0] for p in PROMPTS]
    assert alone != plain
    decoder = decoder_of(known(alone), 12, page_size=2)
    steps: list[int] = []
    got = generate(decoder, PROMPTS, NEW, sampling=sampling, steps=steps)
    assert max(steps) > 2
    for text, expected in zip(got, alone, strict=True):
        size = min(len(text), len(expected))
        assert text[:size] == expected[:size]


def test_sampled_tokens_have_the_targets_distribution(plain):
    """Over seeds: the third token, conditioned on what came before by the seeds themselves."""
    prompt, draws = PROMPTS[0], 400
    counts: dict[tuple[int, ...], np.ndarray] = {}
    for seed in range(draws):
        decoder = decoder_of(Known({1: plain[0]}, seed=seed), 6)
        text = generate(decoder, [prompt], 2, sampling=Sampling(0.5, seed=seed))[0]
        before = tuple(text[: len(prompt) + 1])
        tally = counts.setdefault(before, np.zeros(CONFIG.vocabulary))
        tally[text[len(prompt) + 1]] += 1
    tested = 0
    for before, tally in counts.items():
        if tally.sum() < 60:
            continue
        expected = probabilities(_next_logits(list(before)), Sampling(0.5)) * tally.sum()
        large = expected >= 5  # chi-square's usual rule; the rest is one class
        classes = np.append(expected[large], expected[~large].sum())
        found = np.append(tally[large], tally[~large].sum())
        if classes[-1] < 1:
            classes, found = classes[:-1], found[:-1]
            classes *= found.sum() / classes.sum()
        assert chisquare(found, classes).pvalue > 1e-4
        tested += 1
    assert tested


def _next_logits(tokens: list[int]) -> np.ndarray:
    from tests.engine.small import logits64

    return logits64(tokens)[-1].numpy()


def test_a_request_alone_and_among_others(plain):
    decoder = decoder_of(known(plain), 8, page_size=2)
    same_as_plain(generate(decoder, PROMPTS, NEW), plain)
    assert WEIGHTS  # the same weights throughout
