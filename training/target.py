"""Trains the target: the engine's own `Model`, with causal attention over its latent rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from verify_attn.engine.config import ModelConfig
from verify_attn.engine.model import Attend, Model
from verify_attn.engine.tokenizer import BOS

Weights = dict[str, Tensor]

PHASES = ((0.75, 2048), (0.90, 16_384), (1.0, 32_768))  # (until this share of the time, length)
PEAK, FLOOR, WARM_UP = 2e-3, 0.02, 0.02  # learning rate; its end and its rise, as shares
WEIGHT_DECAY, CLIP = 0.1, 1.0


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a model without experts and query latent, its head tied."""
    hidden, qk = config.hidden, config.nope_dim + config.rope_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(config.layers):
        at = f"model.layers.{i}."
        found |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}self_attn.q_proj.weight": (config.heads * qk, hidden),
            f"{at}self_attn.kv_a_proj_with_mqa.weight": (
                config.latent_dim + config.rope_dim, hidden
            ),
            f"{at}self_attn.kv_a_layernorm.weight": (config.latent_dim,),
            f"{at}self_attn.kv_b_proj.weight": (
                config.heads * (config.nope_dim + config.value_dim), config.latent_dim
            ),
            f"{at}self_attn.o_proj.weight": (hidden, config.heads * config.value_dim),
            f"{at}mlp.gate_proj.weight": (config.intermediate, hidden),
            f"{at}mlp.up_proj.weight": (config.intermediate, hidden),
            f"{at}mlp.down_proj.weight": (hidden, config.intermediate),
        }  # fmt: skip
    return found


def initial(named: Mapping[str, tuple[int, ...]], device: torch.device, seed: int) -> Weights:
    """Norms are one; matrices have deviation 0.02, those that feed the residual stream less."""
    generator = torch.Generator().manual_seed(seed)
    layers = 1 + max(int(n.split("layers.")[1].split(".")[0]) for n in named if "layers." in n)
    weights = {}
    for name, shape in named.items():
        if "norm" in name:
            weight = torch.ones(shape)
        else:
            feeds = any(part in name for part in ("o_proj", "down_proj", ".output", ".down"))
            scale = 0.02 / math.sqrt(2 * layers) if feeds else 0.02
            weight = torch.randn(shape, generator=generator) * scale
        weights[name] = weight.to(device).requires_grad_()
    return weights


def causal(config: ModelConfig, sequences: int) -> Attend:
    """``attend`` for that many sequences of equal length, end to end; nothing is cached."""
    scale = config.geometry.softmax_scale

    def attend(layer: int, q: Tensor, rows: Tensor) -> Tensor:
        # All heads read the same rows.  The value is the rows whole: equal widths for q, k and v
        # let SDPA take its fastest path; what is past the latent is cut off.
        narrow = torch.bfloat16 if q.is_cuda else q.dtype
        queries = q.to(narrow).view(sequences, -1, *q.shape[1:]).transpose(1, 2)
        keys = rows.to(narrow).view(sequences, 1, -1, rows.shape[-1])
        keys = keys.expand(-1, config.heads, -1, -1)
        out = scaled_dot_product_attention(queries, keys, keys, is_causal=True, scale=scale)
        return out.transpose(1, 2).flatten(0, 1)[..., : config.latent_dim]

    return attend


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, nothing on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def optimizer(weights: Weights) -> torch.optim.AdamW:
    """Weight decay on matrices alone."""
    groups = [
        {"params": [w for w in weights.values() if w.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
    ]
    fused = next(iter(weights.values())).is_cuda
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), fused=fused)


def step(weights: Weights, optimizer: torch.optim.AdamW, loss: Tensor, share: float) -> None:
    """One update at ``share`` of the time: a short rise, then a cosine."""
    rate = FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    for group in optimizer.param_groups:
        group["lr"] = PEAK * rate * min(1.0, (share + 1e-3) / WARM_UP)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def shares(minutes: float) -> Iterator[float]:
    """The share of the time that has gone, until it has."""
    start = time.monotonic()
    while (share := (time.monotonic() - start) / (60 * minutes)) < 1:
        yield share


def windows(stream: Tensor, count: int, length: int) -> Tensor:
    """[count, length + 1] int64 from anywhere in the stream; each begins like a document."""
    starts = torch.randint(len(stream) - length - 1, (count, 1), device=stream.device)
    found = stream[starts + torch.arange(length + 1, device=stream.device)].long()
    found[:, 0] = BOS
    return found


def train(
    config: ModelConfig, stream: Tensor, minutes: float, tokens: int, log: list[dict[str, float]]
) -> Weights:
    """``tokens`` a step, for that many minutes; ``log`` gets a line every 50 steps."""
    device = stream.device
    weights = initial(shapes(config), device, seed=1)
    adam = optimizer(weights)
    start, seen = time.monotonic(), 0
    for number, share in enumerate(shares(minutes)):
        length = min(next(length for until, length in PHASES if share < until), tokens)
        texts = windows(stream, tokens // length, length)
        depths = torch.arange(length, device=device).repeat(len(texts))
        with autocast(device):
            model = Model(config, weights)
            hidden, _ = model.forward(texts[:, :-1].flatten(), depths, causal(config, len(texts)))
            loss = cross_entropy(model.logits(hidden), texts[:, 1:].flatten())
        step(weights, adam, loss, share)
        seen += texts[:, 1:].numel()
        if number % 50 == 0:
            line = {
                "step": number, "seconds": round(time.monotonic() - start, 1), "tokens": seen,
                "length": length, "bits_per_token": round(loss.item() / math.log(2), 4),
            }  # fmt: skip
            log.append(line)
            print("target", line, flush=True)
    return {name: weight.detach() for name, weight in weights.items()}
