"""The ``tiny`` preset: its weights in the package, and that training trains what serving runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from training import acceptance_texts, corpora, drafter, evaluate, reasoning, target

from verify_attn.engine import tiny
from verify_attn.engine.block_model import BlockModel
from verify_attn.engine.config import Yarn
from verify_attn.engine.drafters.block import BlockDrafter
from verify_attn.engine.drafters.none import NoDrafter
from verify_attn.engine.model import Model, WeightsError

# Not the end of a longer sum.
EQUATION = re.compile(r"(?<![\d.*+-] )(?<![\d-])(-?\d+) ([*+]) (\d+) = (-?\d+)\.")
TEXTS = Path(__file__).parent / "acceptance_texts"
SMALL = replace(
    tiny.CONFIG, hidden=24, layers=2, heads=2, latent_dim=16, rope_dim=8, nope_dim=8, value_dim=8,
    intermediate=32, yarn=Yarn(2.0, 64),
)  # fmt: skip
SMALL_DRAFTER = replace(
    tiny.DRAFTER, taps=(0, 1), target_hidden=24, block=5, window=8, hidden=16, heads=2,
    intermediate=24,
)  # fmt: skip


def small_model(seed: int = 0) -> Model:
    """Random weights, larger than a training's first ones, so that tokens differ."""
    weights = target.initial(target.shapes(SMALL), torch.device("cpu"), seed)
    return Model(SMALL, {n: w.detach() * (1 if "norm" in n else 6) for n, w in weights.items()})


def small_block() -> BlockModel:
    weights = target.initial(SMALL_DRAFTER.shapes, torch.device("cpu"), seed=3)
    return BlockModel(SMALL_DRAFTER, {n: w.detach() * 6 for n, w in weights.items()})


class TestPackageData:
    def test_is_there_and_small(self) -> None:
        data = files("verify_attn.engine").joinpath("data")
        names = (tiny.TARGET_FILE, tiny.BLOCK_FILE)
        assert sum(len(data.joinpath(n).read_bytes()) for n in names) <= tiny.MOST_BYTES

    def test_fits_and_has_learned(self) -> None:
        """Under three bits a byte on text that it has not read; chance is eight."""
        model = Model(tiny.CONFIG, tiny.weights())
        texts = acceptance_texts.load(TEXTS)["prose"][:4]
        bits = evaluate.bits_per_byte(model, texts, 1024, 1024)
        assert sum(bits) / 4 < 3

    def test_the_drafter_is_accepted(self) -> None:
        model = Model(tiny.CONFIG, tiny.weights())
        block = BlockDrafter(BlockModel(tiny.DRAFTER, tiny.block_weights()))
        text = acceptance_texts.load(TEXTS)["repetitive"][0]
        found = evaluate.decode(model, block, text, 48, 31, 0.0)
        plain = evaluate.decode(model, NoDrafter(), text, 48, 31, 0.0)
        assert found.tokens[: len(plain.tokens)] == plain.tokens[: len(found.tokens)]
        assert sum(found.committed) / len(found.committed) > 2

    def test_missing_weights_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tiny, "TARGET_FILE", "nothing.safetensors")
        with pytest.raises(WeightsError, match=r"engine/data/nothing\.safetensors.*train_tiny"):
            tiny.weights()

    def test_reaches_far(self) -> None:
        yarn = tiny.CONFIG.yarn
        assert yarn is not None
        assert yarn.factor * yarn.original_positions == tiny.CONFIG.max_positions == 32_768
        assert max(tiny.DRAFTER.taps) < tiny.CONFIG.layers


class TestTraining:
    def test_trains_what_is_served(self) -> None:
        """Logits of whole texts side by side are those of each, token by token, from its rows."""
        model = small_model()
        texts = torch.randint(256, (3, 20))
        depths = torch.arange(20).repeat(3)
        hidden, _ = model.forward(texts.flatten(), depths, target.causal(SMALL, 3))
        together = model.logits(hidden).view(3, 20, -1)
        for text, expected in zip(texts, together, strict=True):
            cache = torch.zeros(SMALL.layers, 20, SMALL.latent_dim + SMALL.rope_dim)
            request = evaluate.Text(0, [], 0, cache)
            for at, token in enumerate(text):
                one = torch.ones(1, 1, dtype=torch.bool)
                hidden, _ = model.forward(
                    token[None], torch.tensor([at]), evaluate._attend(model, request, at, one)
                )
                assert torch.allclose(model.logits(hidden)[0], expected[at], atol=1e-4)

    def test_the_drafter_learns_what_it_will_see(self) -> None:
        """The loss is that of the distributions which the drafter drafts from when serving."""
        model, block = small_model(), small_block()
        texts = torch.randint(256, (2, 30))
        hidden = [
            model.forward(t, torch.arange(30), target.causal(SMALL, 1), SMALL_DRAFTER.taps)[1]
            for t in texts
        ]
        roots, known = torch.tensor([1, 6, 25]), torch.tensor([[1, 6, 8], [1, 2, 3]])
        found, _ = drafter.loss_at(block, texts, torch.stack(hidden), roots, known)
        weight = torch.exp(-torch.arange(4) / drafter.DECAY)
        losses = []
        for i, text in enumerate(texts):
            for root, count in zip(roots.tolist(), known[i].tolist(), strict=True):
                serving = BlockDrafter(block)
                request = evaluate.Text(1, text[: root + 1].tolist(), 1, torch.empty(0))
                serving.observe(request, root - count, hidden[i][root - count : root])
                logits = serving._logits([request])[0]
                each = torch.nn.functional.cross_entropy(
                    logits, text[root + 1 : root + 5], reduction="none"
                )
                losses.append((each * weight).sum() / weight.sum())
        assert found.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)

    def test_drafting_is_lossless(self) -> None:
        """Greedy text with the block drafter is the text without one."""
        model = small_model()
        plain = evaluate.decode(model, NoDrafter(), "What comes next", 60, 9, 0.0)
        found = evaluate.decode(model, BlockDrafter(small_block()), "What comes next", 60, 9, 0.0)
        assert found.tokens[: len(plain.tokens)] == plain.tokens
        assert set(plain.committed) == {1}
        assert sum(found.committed) == len(found.tokens) - found.prompt_tokens - 1

    def test_a_second_teaches_something(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = torch.tensor(list(b"abcdefgh" * 2000), dtype=torch.int32)
        log: list[dict[str, float]] = []
        weights = target.train(SMALL, stream, 1 / 60, 256, log)
        bits = evaluate.bits_per_byte(Model(SMALL, weights), ["abcdefgh" * 40], 128, 300)
        assert bits[-1] < log[0]["bits_per_token"] - 0.5
        monkeypatch.setattr(drafter, "LENGTH", 40)
        monkeypatch.setattr(drafter, "PROMPT", 24)
        written = drafter.continuations(SMALL, weights, stream, 4)
        assert written.shape == (4, 40)
        # The first text is greedy.
        model = Model(SMALL, weights)
        for at in range(24, 40):
            depths = torch.arange(at)
            hidden, _ = model.forward(written[0, :at], depths, target.causal(SMALL, 1))
            odds = model.logits(hidden)[-1]
            assert odds[written[0, at]] > odds.max() - 1e-3
        assert int(written.max()) < SMALL.vocabulary


class TestTexts:
    def test_eight_a_kind(self) -> None:
        texts = acceptance_texts.load(TEXTS)
        assert {kind: len(found) for kind, found in texts.items()} == {
            "prose": 8, "reasoning": 8, "repetitive": 8,
        }  # fmt: skip
        assert all(400 < len(text) <= 530 for found in texts.values() for text in found)

    def test_reasoning_is_right(self) -> None:
        """Every equation of two numbers in a thousand worked answers."""
        count = 0
        for seed in range(1000):
            _, answer = reasoning.problem(seed)
            for a, op, b, c in EQUATION.findall(answer):
                assert (int(a) * int(b) if op == "*" else int(a) + int(b)) == int(c), answer
                count += 1
        assert count > 300

    def test_held_out_texts_stay_out(self, tmp_path: Path) -> None:
        names = [f"text{i}.txt" for i in range(60)]
        for kind in corpora.HELD_OUT:
            (tmp_path / kind).mkdir()
            for name in names:
                (tmp_path / kind / name).write_text(f"{kind} {name} " * 30)
        (tmp_path / "manifest.json").write_text(json.dumps({}))
        inside = corpora.texts(tmp_path, held_out=False)
        outside = corpora.texts(tmp_path, held_out=True)
        for kind in corpora.HELD_OUT:
            assert sorted(inside[kind] + outside[kind]) == sorted(
                f"{kind} {name} " * 30 for name in names
            )
            assert outside[kind]
            assert len(outside[kind]) < len(inside[kind]) * 2
