"""Weights: out of a folder as transformers writes it, or random."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from verify_attn.engine.config import ConfigError, ModelConfig
from verify_attn.engine.memory import GIB, free_bytes
from verify_attn.engine.model import Model, WeightsError
from verify_attn.file_errors import why

if TYPE_CHECKING:
    from verify_attn.engine.parallel import Group

Weights = dict[str, torch.Tensor]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_model(
    directory: str | Path, device: torch.device, dtype: torch.dtype, group: Group | None = None
) -> Model:
    """From ``config.json`` and ``*.safetensors``, with or without an index of several files.

    With a ``group`` each rank keeps its share.  Raises `ConfigError` or `WeightsError`.
    """
    folder = Path(directory)
    config = read_config(folder)
    return build(config, read_weights(folder), device, dtype, group)


def build(
    config: ModelConfig,
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
    group: Group | None = None,
) -> Model:
    """The model of these weights, or this rank's share of it, on a device."""
    reduce = None
    if group is not None and group.world > 1:
        from verify_attn.engine.parallel import shard

        config, weights = shard(config, weights, group.rank, group.world)
        reduce = group.reduce
    there = {
        # The choice of experts hangs on the bias's last digits, so it keeps its dtype.
        name: weight.to(device, weight.dtype if name.endswith("bias") else dtype)
        for name, weight in weights.items()
    }
    return Model(config, there, reduce)


def read_config(folder: Path) -> ModelConfig:
    """``config.json``; the folder's name is the model's."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there; give a folder as transformers writes it") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds a {type(config).__name__}; it must be a JSON object")
    try:
        return ModelConfig.from_hf(config, folder.resolve().name)
    except KeyError as error:
        raise ConfigError(f"{path} has no {error}") from None


def read_weights(folder: Path) -> Weights:
    """All tensors of the folder, on the CPU: of the files that the index names, if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder} has no *.safetensors; this engine reads nothing else")
    weights: Weights = {}
    for file in files:
        try:
            weights.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {why(error)}") from None
    for name, weight in weights.items():
        if weight.dtype not in DTYPES:
            raise WeightsError(
                f"weight {name} is {weight.dtype}; this engine reads float32, bfloat16 and "
                "float16: take weights that are not quantised"
            )
    return weights


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of a model, experts one by one, by transformers' names."""
    hidden = config.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config.vocabulary, hidden),
    }
    for i in range(config.layers):
        at, attn = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        qk, rank = config.nope_dim + config.rope_dim, config.query_latent_dim
        shapes[at + "input_layernorm.weight"] = (hidden,)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        if rank is None:
            shapes[attn + "q_proj.weight"] = (config.heads * qk, hidden)
        else:
            shapes[attn + "q_a_proj.weight"] = (rank, hidden)
            shapes[attn + "q_a_layernorm.weight"] = (rank,)
            shapes[attn + "q_b_proj.weight"] = (config.heads * qk, rank)
        latent = config.latent_dim
        shapes[attn + "kv_a_proj_with_mqa.weight"] = (latent + config.rope_dim, hidden)
        shapes[attn + "kv_a_layernorm.weight"] = (latent,)
        up = config.heads * (config.nope_dim + config.value_dim)
        shapes[attn + "kv_b_proj.weight"] = (up, latent)
        shapes[attn + "o_proj.weight"] = (hidden, config.heads * config.value_dim)
        shapes |= _feed_forward(config, i, at + "mlp.")
    return shapes


def _feed_forward(config: ModelConfig, layer: int, at: str) -> dict[str, tuple[int, ...]]:
    moe, hidden = config.experts, config.hidden

    def dense(at: str, width: int) -> dict[str, tuple[int, ...]]:
        return {
            at + "gate_proj.weight": (width, hidden),
            at + "up_proj.weight": (width, hidden),
            at + "down_proj.weight": (hidden, width),
        }

    if moe is None or layer < config.dense_layers:
        return dense(at, config.intermediate)
    shapes: dict[str, tuple[int, ...]] = {
        at + "gate.weight": (moe.count, hidden),
        at + "gate.e_score_correction_bias": (moe.count,),
    }
    for expert in range(moe.count):
        shapes |= dense(f"{at}experts.{expert}.", moe.intermediate)
    if moe.shared:
        shapes |= dense(at + "shared_experts.", moe.shared * moe.intermediate)
    return shapes


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """What the weights take."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values()) * dtype.itemsize


def random_weights(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Norms 1, biases 0, the embedding N(0, 1), other matrices N(0, 1 / fan_in).

    Made on the device, one after the other.  Raises `WeightsError` where they do not fit.
    """
    need, free = weight_bytes(config, dtype), free_bytes(device)
    if need > free:
        raise WeightsError(
            f"the weights of {config.name} take {need / GIB:.1f} GiB, {device} has "
            f"{free / GIB:.1f} GiB free: take a smaller model, or free memory"
        )
    generator = torch.Generator(device).manual_seed(seed)
    weights: Weights = {}
    for name, shape in weight_shapes(config).items():
        weight = torch.empty(shape, dtype=dtype, device=device)
        if name.endswith("bias"):
            weight.zero_()
        elif len(shape) == 1:
            weight.fill_(1.0)
        else:
            scale = 1.0 if "embed_tokens" in name else shape[-1] ** -0.5
            weight.normal_(0.0, scale, generator=generator)
        weights[name] = weight
    return weights
