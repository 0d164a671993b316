"""The shape of one attention layer as one GPU sees it, and the presets of real models.

Everything a kernel needs to know about the model is here: head count (per GPU), latent and rope
widths, softmax scale.  Nothing else in the package assumes 512 or 64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# The narrowest and widest heads-per-GPU a case may have: one head, or a whole DeepSeek-V3 layer.
MAX_HEADS = 128


class GeometryError(ValueError):
    """A geometry that no attention layer can have; the message names the field and the rule."""


def yarn_mscale(factor: float, mscale_all_dim: float = 1.0) -> float:
    """YaRN's attention temperature, ``0.1 * mscale_all_dim * ln(factor) + 1``.

    Source: Peng et al., "YaRN", arXiv 2309.00071, and DeepSeek-V3's reference model.
    """
    return 1.0 if factor <= 1.0 else 0.1 * mscale_all_dim * math.log(factor) + 1.0


def mla_softmax_scale(nope_dim: int, rope_dim: int, yarn_factor: float = 1.0) -> float:
    """Softmax scale of MLA: ``(nope_dim + rope_dim) ** -0.5 * mscale ** 2``.

    The un-absorbed head width counts (128 + 64 in DeepSeek-V3), not the latent width.
    """
    return float((nope_dim + rope_dim) ** -0.5 * yarn_mscale(yarn_factor) ** 2)


@dataclass(frozen=True)
class AttentionGeometry:
    """One weight-absorbed MLA layer on one GPU.

    ``heads``          query heads on this GPU (H)
    ``latent_dim``     width of the latent row, which is also the value (D_c)
    ``rope_dim``       width of the rotary part of key and query (D_r)
    ``softmax_scale``  factor on q . k, YaRN's mscale included
    ``name``           preset name, or ``custom``
    """

    heads: int
    latent_dim: int
    rope_dim: int
    softmax_scale: float
    name: str = "custom"

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= MAX_HEADS:
            raise GeometryError(f"heads is {self.heads}; it must lie in 1..{MAX_HEADS}")
        for field in ("latent_dim", "rope_dim"):
            value = getattr(self, field)
            if value < 1:
                raise GeometryError(f"{field} is {value}; it must be at least 1")
        if not (math.isfinite(self.softmax_scale) and self.softmax_scale > 0):
            raise GeometryError(
                f"softmax_scale is {self.softmax_scale}; it must be positive and finite"
            )

    @property
    def qk_dim(self) -> int:
        """Width of a query and of a KV row, D_c + D_r."""
        return self.latent_dim + self.rope_dim

    def with_heads(self, heads: int) -> AttentionGeometry:
        """The same layer with another number of heads on this GPU."""
        return replace(self, heads=heads, name=f"{self.name}-h{heads}")

    def row_bytes(self, element_bytes: int = 2) -> int:
        """Bytes of one token's KV row in one layer (1,152 for bf16 DeepSeek-V3)."""
        return self.qk_dim * element_bytes


@dataclass(frozen=True)
class _Model:
    """What a preset family is made from: total heads and the constants of its config file."""

    heads: int
    latent_dim: int
    rope_dim: int
    nope_dim: int
    yarn_factor: float
    layers: int

    def on(self, name: str, tensor_parallel: int) -> AttentionGeometry:
        scale = mla_softmax_scale(self.nope_dim, self.rope_dim, self.yarn_factor)
        heads = self.heads // tensor_parallel
        return AttentionGeometry(
            heads, self.latent_dim, self.rope_dim, scale, f"{name}-tp{tensor_parallel}"
        )


# Sources: DeepSeek-V3's published inference config (128 heads, YaRN factor 40); Kimi K2's and
# K2.6's config copies (64 heads, factor 64).  Heads are split over the tensor-parallel ranks,
# the latent row is not.
_MODELS = {
    "kimi-k2.6": _Model(
        heads=64, latent_dim=512, rope_dim=64, nope_dim=128, yarn_factor=64.0, layers=61
    ),
    "deepseek-v3": _Model(
        heads=128, latent_dim=512, rope_dim=64, nope_dim=128, yarn_factor=40.0, layers=61
    ),
}
_TENSOR_PARALLEL = (1, 2, 4, 8, 16)

PRESETS: dict[str, AttentionGeometry] = {
    f"{name}-tp{tp}": model.on(name, tp)
    for name, model in _MODELS.items()
    for tp in _TENSOR_PARALLEL
}
# Layers of the whole model; a tensor-parallel rank has them all.
LAYERS: dict[str, int] = {
    f"{name}-tp{tp}": model.layers for name, model in _MODELS.items() for tp in _TENSOR_PARALLEL
}
# Small layers with the same structure, for machines without a GPU.
PRESETS["tiny"] = AttentionGeometry(4, 32, 16, mla_softmax_scale(16, 16, 64.0), "tiny")
PRESETS["small"] = AttentionGeometry(8, 64, 16, mla_softmax_scale(32, 16, 64.0), "small")


def preset(name: str) -> AttentionGeometry:
    """The preset of that name; an unknown name raises `GeometryError` with the list of names."""
    try:
        return PRESETS[name]
    except KeyError:
        raise GeometryError(f"no preset {name!r}; there are: {', '.join(PRESETS)}") from None
