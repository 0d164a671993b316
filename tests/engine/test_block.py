"""The block drafter: its network against the plainest computation, its windows, its trees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings, strategies
from torch import Tensor

from verify_attn.ddtree import ddtree
from verify_attn.engine.block_model import BlockModel, BlockSettings
from verify_attn.engine.drafters.base import NOTHING
from verify_attn.engine.drafters.block import BlockDrafter
from verify_attn.engine.model import WeightsError

SETTINGS = BlockSettings(
    vocabulary=20, taps=(0, 2), target_hidden=12, block=6, window=8, hidden=16, layers=2, heads=2,
    intermediate=24,
)  # fmt: skip
BUDGET = 9


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.5 + (1.0 if "norm" in name else 0.0)
        for name, shape in SETTINGS.shapes.items()
    }


def random_features(count: int, seed: int) -> Tensor:
    return torch.randn(count, SETTINGS.features, generator=torch.Generator().manual_seed(seed))


@dataclass
class Request:
    key: int
    tokens: list[int]
    prompt_tokens: int = 1


def naive(weights: dict[str, Tensor], root: int, position: int, features: Tensor) -> Tensor:
    """[L, V] in float64, one head and one query at a time; ``features`` end before the root."""
    w = {name: weight.double() for name, weight in weights.items()}
    width = SETTINGS.hidden // SETTINGS.heads

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + 1e-6).sqrt() * weight

    def rotate(x: Tensor, at: int) -> Tensor:
        out = x.clone()
        for i in range(width // 2):
            angle = at * SETTINGS.rope_theta ** (-i / (width // 2))
            a, b = x[i], x[width // 2 + i]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[width // 2 + i] = b * math.cos(angle) + a * math.sin(angle)
        return out

    known = []
    for row in features.double():
        parts = row.split(SETTINGS.target_hidden)
        parts = [norm(p, s) for p, s in zip(parts, w["feature_norm"], strict=True)]
        known.append(norm(w["context"] @ torch.cat(parts), w["context_norm"]))
    first = position - len(known)
    x = [w["slots"][i] + (w["embedding"][root] if i == 0 else 0) for i in range(SETTINGS.block)]
    for layer in range(SETTINGS.layers):
        of = {n.split(f"layers.{layer}.")[1]: v for n, v in w.items() if f"layers.{layer}." in n}
        inside = [norm(row, of["attention_norm"]) for row in x]
        both = [of["key_value"] @ row for row in (*known, *inside)]
        mixed = []
        for i, row in enumerate(inside):
            heads = []
            for head in range(SETTINGS.heads):
                part = slice(head * width, (head + 1) * width)
                query = rotate((of["query"] @ row)[part], position + i)
                scores = torch.stack(
                    [
                        query @ rotate(kv[: SETTINGS.hidden][part], first + j) / math.sqrt(width)
                        for j, kv in enumerate(both)
                    ]
                )
                values = torch.stack([kv[SETTINGS.hidden :][part] for kv in both])
                heads.append(scores.softmax(0) @ values)
            mixed.append(of["output"] @ torch.cat(heads))
        x = [a + b for a, b in zip(x, mixed, strict=True)]
        for i, row in enumerate(x):
            gate, up = (of["gate_up"] @ norm(row, of["mlp_norm"])).chunk(2)
            x[i] = row + of["down"] @ (torch.nn.functional.silu(gate) * up)
    return torch.stack([w["head"] @ norm(row, w["norm"]) for row in x[1:]])


@pytest.fixture
def drafter() -> BlockDrafter:
    return BlockDrafter(BlockModel(SETTINGS, random_weights()))


def proposed(drafter: BlockDrafter, request: Request) -> tuple:
    proposal = drafter.propose([request], BUDGET)[0]
    return proposal.tree.parents, proposal.tokens


class TestNetwork:
    @pytest.mark.parametrize("seen", [1, 3, 8, 30])
    @pytest.mark.parametrize("position", [30, 31_007])
    def test_drafts_what_the_equations_say(self, drafter, seen: int, position: int) -> None:
        """With few tokens seen, with a whole window, and with more than a window."""
        request = Request(1, [5] * (position + 1))
        features = random_features(seen, seen)
        drafter.observe(request, position - seen, features)
        expected = naive(random_weights(), 5, position, features[-SETTINGS.window :])
        found = drafter._logits([request])[0]
        assert found.shape == (SETTINGS.block - 1, SETTINGS.vocabulary)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
        tree = ddtree(found.numpy(), BUDGET)
        assert proposed(drafter, request) == (tree.tree.parents, tree.tokens)

    @pytest.mark.parametrize("name", ["head", "layers.1.key_value"])
    def test_wrong_weights_are_named(self, name: str) -> None:
        weights = random_weights()
        weights[name] = weights[name][:-1]
        with pytest.raises(WeightsError, match=name):
            BlockModel(SETTINGS, weights)
        del weights[name]
        with pytest.raises(WeightsError, match=name):
            BlockModel(SETTINGS, weights)

    def test_every_weight_matters(self) -> None:
        features = random_features(8, 0)

        def draft(weights: dict[str, Tensor]) -> Tensor:
            drafter = BlockDrafter(BlockModel(SETTINGS, weights))
            request = Request(1, [3] * 9)
            drafter.observe(request, 0, features)
            return drafter._logits([request])

        before = draft(random_weights())
        for name in SETTINGS.shapes:
            weights = random_weights()
            weights[name] = weights[name] * torch.linspace(0.5, 1.5, weights[name].shape[-1])
            assert not torch.allclose(draft(weights), before, atol=1e-4), name


class TestWindows:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(strategies.lists(strategies.integers(1, 20), min_size=1, max_size=6))
    def test_pieces_do_not_matter(self, pieces: list[int]) -> None:
        """Chunks of prefill and accepted paths of any lengths leave what one call leaves."""
        model = BlockModel(SETTINGS, random_weights())
        total, at = sum(pieces), 0
        features = random_features(total, 7)
        request, whole, parts = (
            Request(1, [2] * (total + 1)),
            *(BlockDrafter(model) for _ in range(2)),
        )
        whole.observe(request, 0, features)
        for piece in pieces:
            parts.observe(request, at, features[at : at + piece])
            at += piece
        assert torch.allclose(whole._logits([request]), parts._logits([request]), atol=1e-4)

    def test_a_gap_begins_anew(self, drafter) -> None:
        """What was cached elsewhere is not seen; stale rows of the ring are not either."""
        request = Request(1, [4] * 41)
        drafter.observe(request, 0, random_features(20, 0))
        drafter.observe(request, 38, random_features(2, 1))
        found = drafter._logits([request])[0]
        expected = naive(random_weights(), 4, 40, random_features(2, 1))
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()

    def test_features_are_copied(self, drafter) -> None:
        request, features = Request(1, [1] * 6), random_features(5, 0)
        drafter.observe(request, 0, features)
        before = drafter._logits([request])
        features.fill_(torch.nan)
        assert torch.equal(drafter._logits([request]), before)

    def test_unknown_and_forgotten_requests_get_the_root(self, drafter) -> None:
        request, other = Request(1, [1] * 6), Request(2, [1] * 6)
        assert drafter.propose([request], BUDGET) == [NOTHING]
        drafter.observe(request, 5, random_features(0, 0))
        assert drafter.propose([request], BUDGET) == [NOTHING]
        drafter.observe(request, 0, random_features(5, 0))
        first, second = drafter.propose([other, request], BUDGET)
        assert first == NOTHING
        assert len(second.tokens) == BUDGET
        drafter.forget(other)
        drafter.forget(request)
        assert drafter.propose([request], BUDGET) == [NOTHING]

    @pytest.mark.parametrize("budget", [0, 1, 31, 1024])
    def test_budgets(self, drafter, budget: int) -> None:
        request = Request(1, [1] * 6)
        drafter.observe(request, 0, random_features(5, 0))
        proposal = drafter.propose([request], budget)[0]
        assert len(proposal.tokens) == len(proposal.tree) - 1 == budget
        assert max(proposal.tree.depths) < SETTINGS.block


class TestBatches:
    def test_a_proposal_does_not_depend_on_the_others(self, drafter) -> None:
        requests = [Request(key, [key % 20] * (3 + 5 * key)) for key in range(1, 8)]
        for request in requests:
            count = min(request.key * 2, len(request.tokens) - 1)
            drafter.observe(
                request, len(request.tokens) - 1 - count, random_features(count, request.key)
            )
        alone = [proposed(drafter, request) for request in requests]
        for order in (requests, requests[::-1], requests[2:5]):
            together = drafter.propose(order, BUDGET)
            for request, proposal in zip(order, together, strict=True):
                found = (proposal.tree.parents, proposal.tokens)
                assert found == alone[requests.index(request)]

    def test_token_zero_is_ordinary(self) -> None:
        """A network that knows nothing finds all tokens equal: 0 comes first, and is a node."""
        weights = random_weights() | {"head": torch.zeros(SETTINGS.shapes["head"])}
        drafter = BlockDrafter(BlockModel(SETTINGS, weights))
        request = Request(1, [0, 0])
        drafter.observe(request, 0, random_features(1, 0))
        proposal = drafter.propose([request], 4)[0]
        assert proposal.tokens == (0, 1, 2, 3)
        assert proposal.tree.parents == (-1, 0, 0, 0, 0)
