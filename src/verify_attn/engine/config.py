"""What a DeepSeek-V3-style decoder is made of, and the presets that `serve` knows.

Field names follow the published config files, in the words of this project: ``latent_dim`` is their
``kv_lora_rank``, ``rope_dim`` their ``qk_rope_head_dim``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from verify_attn.geometry import AttentionGeometry, mla_softmax_scale, yarn_mscale


class ConfigError(ValueError):
    """A model that this engine cannot be; the message names the field and the rule."""


@dataclass(frozen=True)
class Yarn:
    """Context extension by YaRN (Peng et al., arXiv 2309.00071)."""

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    @property
    def attention_factor(self) -> float:
        """On cosine and sine; 1 where mscale equals mscale_all_dim, as in DeepSeek-V3."""
        return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)


@dataclass(frozen=True)
class Experts:
    """The mixture of experts of a layer."""

    count: int
    active: int
    intermediate: int
    shared: int = 1
    groups: int = 1
    active_groups: int = 1
    scale: float = 1.0
    normalize: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """One model, or one tensor-parallel rank of it (then ``heads`` are the rank's)."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    intermediate: int
    max_positions: int
    query_latent_dim: int | None = None  # None: queries come straight from the hidden state
    experts: Experts | None = None
    dense_layers: int = 0  # the first so many have no experts
    rope_theta: float = 10_000.0
    rope_interleaved: bool = True
    yarn: Yarn | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.rope_dim % 2:
            raise ConfigError(f"rope_dim is {self.rope_dim}; it must be even")
        for name in ("vocabulary", "hidden", "layers", "heads", "latent_dim", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def geometry(self) -> AttentionGeometry:
        """The attention layer as a kernel sees it."""
        yarn = self.yarn
        scale = mla_softmax_scale(self.nope_dim, self.rope_dim)
        if yarn is not None:
            scale *= yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
        return AttentionGeometry(self.heads, self.latent_dim, self.rope_dim, scale, self.name)

    @classmethod
    def from_hf(cls, config: dict[str, Any], name: str) -> ModelConfig:
        """From a ``config.json`` of transformers' ``deepseek_v3``; raises `ConfigError`."""
        if config.get("model_type") not in ("deepseek_v3", "kimi_k2"):
            raise ConfigError(
                f"model_type is {config.get('model_type')!r}; this engine runs deepseek_v3"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "yarn"):
            raise ConfigError(f"rope type is {kind!r}; this engine has default and yarn")
        yarn = None
        if kind == "yarn":
            yarn = Yarn(
                rope["factor"], rope["original_max_position_embeddings"],
                rope.get("beta_fast") or 32.0, rope.get("beta_slow") or 1.0,
                rope.get("mscale") or 1.0, rope.get("mscale_all_dim") or 0.0,
            )  # fmt: skip
        experts = None
        if config.get("n_routed_experts"):
            experts = Experts(
                config["n_routed_experts"], config["num_experts_per_tok"],
                config["moe_intermediate_size"], config.get("n_shared_experts") or 0,
                config.get("n_group") or 1, config.get("topk_group") or 1,
                config.get("routed_scaling_factor") or 1.0, config.get("norm_topk_prob", True),
            )  # fmt: skip
        return cls(
            name=name,
            vocabulary=config["vocab_size"], hidden=config["hidden_size"],
            layers=config["num_hidden_layers"], heads=config["num_attention_heads"],
            latent_dim=config["kv_lora_rank"], rope_dim=config["qk_rope_head_dim"],
            nope_dim=config["qk_nope_head_dim"], value_dim=config["v_head_dim"],
            intermediate=config["intermediate_size"],
            max_positions=config["max_position_embeddings"],
            query_latent_dim=config.get("q_lora_rank"), experts=experts,
            dense_layers=config.get("first_k_dense_replace", 0) if experts else 0,
            rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
            rope_interleaved=config.get("rope_interleave", True), yarn=yarn,
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )  # fmt: skip


def rope_frequencies(config: ModelConfig) -> list[float]:
    """[rope_dim / 2] angles a position; YaRN's where the config has it.

    YaRN leaves frequencies that turn more than ``beta_fast`` times over the original context,
    divides those that turn less than ``beta_slow`` times by its factor, and goes linearly between
    (arXiv 2309.00071, section 3.2; the bounds are floored and ceiled as DeepSeek-V3 does).
    """
    half = config.rope_dim // 2
    plain = [config.rope_theta ** (-i / half) for i in range(half)]
    yarn = config.yarn
    if yarn is None:
        return plain

    def index(rotations: float) -> float:
        turns = yarn.original_positions / (rotations * 2 * math.pi)
        return config.rope_dim * math.log(turns) / (2 * math.log(config.rope_theta))

    low = max(math.floor(index(yarn.beta_fast)), 0)
    high = min(math.ceil(index(yarn.beta_slow)), config.rope_dim - 1)
    span = high - low or 0.001
    ramp = [min(max((i - low) / span, 0.0), 1.0) for i in range(half)]
    return [f * (1 - r) + f / yarn.factor * r for f, r in zip(plain, ramp, strict=True)]
