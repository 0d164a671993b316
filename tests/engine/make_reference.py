"""A random tiny DeepSeek-V3 of transformers', its weights and its logits; run by transformers' own
environment::

    python make_reference.py DIRECTORY dense|experts|yarn|plain-queries
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

TOKENS = 96
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32, "beta_slow": 1,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 32,
}  # fmt: skip


def config(kind: str) -> DeepseekV3Config:
    """Small in every dimension, and no two of them alike."""
    experts = kind in ("experts", "yarn")
    return DeepseekV3Config(
        vocab_size=131, hidden_size=48, intermediate_size=80, moe_intermediate_size=24,
        num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=6,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
        routed_scaling_factor=2.5, first_k_dense_replace=1 if experts else 3,
        kv_lora_rank=32, q_lora_rank=None if kind == "plain-queries" else 40,
        qk_rope_head_dim=16, qk_nope_head_dim=20, v_head_dim=28,
        max_position_embeddings=256, initializer_range=0.2, rms_norm_eps=1e-5,
        rope_parameters=YARN if kind == "yarn" else {"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip


def main(directory: Path, kind: str) -> None:
    """Write config.json, model.safetensors and reference.safetensors."""
    torch.manual_seed(0)
    model = DeepseekV3ForCausalLM(config(kind)).to(torch.float32).eval()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(std=0.1)  # zero by default, which would not show if it were left out
    tokens = torch.randint(0, 131, (1, TOKENS))
    with torch.no_grad():
        logits = model(tokens).logits[0]
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, directory / "model.safetensors")
    save_file({"tokens": tokens[0], "logits": logits}, directory / "reference.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
