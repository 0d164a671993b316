"""The decoder against transformers' DeepseekV3 on the same weights: whole, in chunks, as a tree.

Everything goes through a paged pool with shuffled pages and a verify kernel, as in serving.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.live.real.venvs import NotMade, environment
from verify_attn.engine.config import ConfigError, ModelConfig, rope_frequencies
from verify_attn.engine.model import Model, WeightsError
from verify_attn.geometry import preset
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.problem import VerifyBatch
from verify_attn.tree import DraftTree

KINDS = ("dense", "experts", "yarn", "plain-queries")
PAGE_SIZE = 4


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory):
    """``reference(kind)``: (config, weights, tokens [T], logits [T, vocabulary])."""
    made: dict[str, Path] = {}

    def get(kind: str):
        if kind not in made:
            try:
                python = environment("hf").python
            except NotMade as reason:
                pytest.skip(str(reason))
            directory = tmp_path_factory.mktemp(kind)
            script = Path(__file__).with_name("make_reference.py")
            # -P: the folder of the script has an `http` of its own.
            subprocess.run([str(python), "-P", str(script), str(directory), kind], check=True)
            made[kind] = directory
        directory = made[kind]
        config = ModelConfig.from_hf(json.loads((directory / "config.json").read_text()), kind)
        expected = load_file(directory / "reference.safetensors")
        weights = load_file(directory / "model.safetensors")
        return config, weights, expected["tokens"], expected["logits"]

    return get


class Pool:
    """One request's rows in shuffled pages, and a kernel over them."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        pages = -(-tokens // PAGE_SIZE)
        self.config = config
        self.kv = torch.full(
            (config.layers, pages + 3, PAGE_SIZE, config.latent_dim + config.rope_dim), torch.nan
        )
        order = torch.randperm(pages + 3, generator=torch.Generator().manual_seed(1))
        self.table = order[:pages].to(torch.int32)[None]

    def attend(self, prefix: int, tree: DraftTree):
        """The ``attend`` of a tree whose prefix is there already."""
        nodes = len(tree)
        positions = torch.arange(prefix, prefix + nodes)
        page = self.table[0][positions // PAGE_SIZE].long()

        def attend(layer: int, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            pool = self.kv[layer]
            pool[page, positions % PAGE_SIZE] = rows
            batch = VerifyBatch(
                geometry=self.config.geometry, q=q, kv_pool=pool, page_table=self.table,
                prefix_lens=torch.tensor([prefix], dtype=torch.int32),
                node_offsets=torch.tensor([0, nodes], dtype=torch.int32),
                tree_mask=torch.from_numpy(tree.mask_bits),
                softmax_scale=self.config.geometry.softmax_scale,
                max_prefix_len=prefix, max_nodes=nodes,
            )  # fmt: skip
            out, lse = batch.outputs()
            torch_verify(batch, out, lse)
            return out

        return attend


def run(model: Model, pool: Pool, tokens: torch.Tensor, prefix: int, tree: DraftTree):
    depths = prefix + torch.tensor(tree.depths)
    return model.logits(model.forward(tokens, depths, pool.attend(prefix, tree))[0])


@pytest.mark.real_server
class TestAgainstTransformers:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("chunk", [96, 17, 1])
    def test_logits_are_equal(self, reference, kind: str, chunk: int) -> None:
        config, weights, tokens, expected = reference(kind)
        model, pool = Model(config, weights), Pool(config, len(tokens))
        found = [
            run(
                model,
                pool,
                tokens[at : at + chunk],
                at,
                DraftTree.chain(len(tokens[at : at + chunk])),
            )
            for at in range(0, len(tokens), chunk)
        ]
        error = (torch.cat(found) - expected).abs().max()
        assert error < 2e-4 * expected.abs().max(), error

    def test_a_tree_is_its_paths(self, reference) -> None:
        """Two continuations verified as one tree have the logits that each has on its own."""
        config, weights, tokens, expected = reference("yarn")
        model, pool = Model(config, weights), Pool(config, len(tokens) + 16)
        prefix = 60
        run(model, pool, tokens[:prefix], 0, DraftTree.chain(prefix))
        # The true continuation is nodes 0, 1, 3, 5; the others are siblings with other tokens.
        tree = DraftTree((-1, 0, 0, 1, 1, 3, 2))
        true = [0, 1, 3, 5]
        drafted = torch.randint(0, config.vocabulary, (len(tree),))
        drafted[true] = tokens[prefix : prefix + len(true)]
        found = run(model, pool, drafted, prefix, tree)
        error = (found[true] - expected[prefix : prefix + len(true)]).abs().max()
        assert error < 2e-4 * expected.abs().max(), error

    def test_it_can_fail(self, reference) -> None:
        """Each part of the arithmetic shows: without it the logits are others."""
        config, weights, tokens, expected = reference("yarn")
        wrong = {
            "no yarn": replace(config, yarn=None),
            "theta": replace(config, rope_theta=500.0),
            "halves": replace(config, rope_interleaved=False),
            "scale of experts": replace(config, experts=replace(config.experts, scale=1.0)),
            "groups": replace(config, experts=replace(config.experts, groups=1)),
        }
        for name, other in wrong.items():
            model, pool = Model(other, weights), Pool(other, len(tokens))
            found = run(model, pool, tokens, 0, DraftTree.chain(len(tokens)))
            assert (found - expected).abs().max() > 1e-2 * expected.abs().max(), name
        biased = {k: v + 1.0 if k.endswith("correction_bias") else v for k, v in weights.items()}
        biased["model.layers.1.mlp.gate.e_score_correction_bias"][0] += 9
        model, pool = Model(config, biased), Pool(config, len(tokens))
        found = run(model, pool, tokens, 0, DraftTree.chain(len(tokens)))
        assert (found - expected).abs().max() > 1e-2 * expected.abs().max()

    def test_weights_that_do_not_fit(self, reference) -> None:
        config, weights, _, _ = reference("dense")
        with pytest.raises(WeightsError, match=r"no weight model\.norm\.weight"):
            Model(config, {k: v for k, v in weights.items() if k != "model.norm.weight"})
        with pytest.raises(WeightsError, match=r"embed_tokens.weight is \[131, 48\]"):
            Model(replace(config, vocabulary=132), weights)


def kimi(yarn_factor: float = 64.0) -> dict:
    """Kimi K2's config, as far as attention goes."""
    return {
        "model_type": "kimi_k2", "vocab_size": 163840, "hidden_size": 7168,
        "num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "intermediate_size": 18432, "max_position_embeddings": 262144, "q_lora_rank": 1536,
        "rope_theta": 50000.0,
        "rope_scaling": {"type": "yarn", "factor": yarn_factor, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    }  # fmt: skip


def test_kimis_scale_is_the_kernels_preset() -> None:
    config = ModelConfig.from_hf(kimi(), "kimi")
    scale = preset("kimi-k2.6-tp1").softmax_scale
    assert config.geometry.softmax_scale == pytest.approx(scale)
    assert scale == pytest.approx(0.1446796, abs=1e-7)
    assert len(rope_frequencies(config)) == 32
    assert rope_frequencies(config)[0] == 1.0  # turns often: left alone
    assert rope_frequencies(config)[-1] == pytest.approx(50000 ** (-31 / 32) / 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "runs deepseek_v3"),
        ({"rope_scaling": {"type": "longrope"}}, "default and yarn"),
        ({"qk_rope_head_dim": 63}, "must be even"),
        ({"num_hidden_layers": 0}, "layers is 0"),
    ],
)
def test_what_this_engine_cannot_be(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf({**kimi(), **change}, "x")
