"""Models by name and out of folders; random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.runners import CPU, DENSE, MIXED
from tests.engine.runners import one_thread as one_thread
from verify_attn.engine import presets, tiny, weights
from verify_attn.engine.config import ConfigError, ModelConfig
from verify_attn.engine.memory import GIB, row_bytes
from verify_attn.engine.model import Model, WeightsError
from verify_attn.engine.presets import K26_RANK, PRESETS, PresetError, open_preset
from verify_attn.engine.weights import load_model, random_weights, weight_bytes, weight_shapes
from verify_attn.geometry import preset

HF = {
    "model_type": "deepseek_v3", "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 4, "kv_lora_rank": 24, "q_lora_rank": None, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "intermediate_size": 48, "first_k_dense_replace": 1,
    "max_position_embeddings": 400, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "routed_scaling_factor": 2.0,
}  # fmt: skip


def logits(model: Model) -> torch.Tensor:
    """Of three tokens that see themselves alone."""
    with torch.no_grad():
        hidden, _ = model.forward(
            torch.tensor([0, 5, 96]), torch.arange(3),
            lambda layer, q, rows: rows[:, None, :24].expand(-1, q.shape[1], -1),
        )  # fmt: skip
    return model.logits(hidden)


def folder(path: Path, files: dict[str, list[str]] | None = None) -> dict[str, torch.Tensor]:
    """config.json and MIXED's random weights, in one file or in these by an index."""
    found = random_weights(MIXED, 2, CPU, torch.float32)
    found["model.layers.1.mlp.gate.e_score_correction_bias"].normal_()
    (path / "config.json").write_text(json.dumps(HF))
    if files is None:
        save_file(found, path / "model.safetensors")
    else:
        for file, names in files.items():
            save_file({name: found[name] for name in names}, path / file)
        index = {"weight_map": {name: file for file, names in files.items() for name in names}}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return found


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    found = folder(tmp_path)
    there = load_model(tmp_path, CPU, torch.float32)
    assert there.config == replace(MIXED, name=tmp_path.name)
    assert torch.equal(logits(there), logits(Model(MIXED, found)))
    assert torch.equal(logits(open_preset(str(tmp_path), CPU)), logits(there))


def test_a_folder_with_an_index(tmp_path: Path) -> None:
    names = sorted(weight_shapes(MIXED))
    found = folder(tmp_path, {"a.safetensors": names[::2], "b.safetensors": names[1::2]})
    # A file that the index does not name is of no matter.
    save_file({"model.norm.weight": torch.zeros(3)}, tmp_path / "c.safetensors")
    there = load_model(tmp_path, CPU, torch.float32)
    assert torch.equal(logits(there), logits(Model(MIXED, found)))


def test_weights_take_the_dtype_and_the_experts_bias_keeps_its_own(tmp_path: Path) -> None:
    found = folder(tmp_path)
    there = load_model(tmp_path, CPU, torch.bfloat16)
    assert there.dtype == torch.bfloat16
    bias = there.layers[1].mlp.bias
    assert torch.equal(bias, found["model.layers.1.mlp.gate.e_score_correction_bias"])


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json is not there"):
        load_model(tmp_path, CPU, torch.float32)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        load_model(tmp_path, CPU, torch.float32)
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3"}')
    with pytest.raises(ConfigError, match=r"config\.json has no 'vocab_size'"):
        load_model(tmp_path, CPU, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps(HF))
    with pytest.raises(WeightsError, match=r"has no \*\.safetensors"):
        load_model(tmp_path, CPU, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        load_model(tmp_path, CPU, torch.float32)
    found = folder(tmp_path)
    (name,) = [n for n in found if n.endswith("layers.2.self_attn.o_proj.weight")]
    found[name] = found[name].to(torch.float8_e4m3fn)
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"weight {name} is torch.float8_e4m3fn"):
        load_model(tmp_path, CPU, torch.float32)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone"}}')
    with pytest.raises(WeightsError, match="gone cannot be read"):
        load_model(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize(
    "config", [DENSE, MIXED, replace(MIXED, query_latent_dim=12)], ids=lambda c: c.name
)
def test_random_weights_are_a_model(config: ModelConfig) -> None:
    found = random_weights(config, 7, CPU, torch.float32)
    made = Model(config, found)
    assert torch.isfinite(logits(made)).all()
    assert {n: tuple(w.shape) for n, w in found.items()} == weight_shapes(config)
    assert weight_bytes(config, torch.float32) == sum(w.nbytes for w in found.values())
    again, other = (random_weights(config, seed, CPU, torch.float32) for seed in (7, 8))
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert not torch.equal(found["lm_head.weight"], other["lm_head.weight"])
    assert found["model.embed_tokens.weight"].std() == pytest.approx(1.0, rel=0.1)
    assert found["lm_head.weight"].std() == pytest.approx(32**-0.5, rel=0.1)
    for name, weight in found.items():
        if name.endswith("norm.weight"):
            assert (weight == 1).all()


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "free_bytes", lambda device: 5 * GIB)
    with pytest.raises(WeightsError, match=r"k2.6-rank take 9.1 GiB, cpu has 5.0 GiB free"):
        open_preset("k2.6-rank", CPU, torch.bfloat16)


def test_k26s_rank_is_kimis() -> None:
    """Attention as the kernels' preset has it; what the description says of memory is so."""
    geometry, kimi = K26_RANK.geometry, preset("kimi-k2.6-tp8")
    for layer in (geometry, kimi):
        assert (layer.heads, layer.latent_dim, layer.rope_dim) == (8, 512, 64)
    assert geometry.softmax_scale == pytest.approx(kimi.softmax_scale)
    assert K26_RANK.intermediate == (8 + 1) * 2048 // 8
    assert K26_RANK.vocabulary == 163_840 // 8
    about = PRESETS["k2.6-rank"]
    assert f"{weight_bytes(K26_RANK, torch.bfloat16) / GIB:.1f} GiB of weights" in about
    kv = K26_RANK.max_positions * row_bytes(K26_RANK, torch.bfloat16)
    assert f"{kv / GIB:.1f} GiB of KV at 204,800 tokens" in about
    assert row_bytes(K26_RANK, torch.bfloat16) == 70_272


def test_a_small_rank_of_k26_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(K26_RANK, layers=1, hidden=64, vocabulary=97, intermediate=32, latent_dim=24)
    monkeypatch.setattr(presets, "K26_RANK", small)
    there = open_preset("k2.6-rank", CPU)
    assert there.dtype == torch.float32
    assert torch.isfinite(logits(there)).all()


def test_tiny_is_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = random_weights(tiny.CONFIG, 3, CPU, torch.float32)
    monkeypatch.setattr(tiny, "weights", lambda dtype: found)
    there = open_preset("tiny", CPU)
    assert there.config == tiny.CONFIG
    assert there.head is found["lm_head.weight"]


def test_an_unknown_preset() -> None:
    with pytest.raises(PresetError, match=r"no preset and no folder 'k3'; there are: tiny, k2.6-"):
        open_preset("k3", CPU)


def test_listing_presets_needs_no_torch() -> None:
    code = (
        "import sys; from verify_attn.engine.presets import PRESETS; "
        "assert 'torch' not in sys.modules; print(*PRESETS)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["tiny", "k2.6-rank"]
