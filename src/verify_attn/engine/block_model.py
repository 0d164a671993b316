"""The block drafter's network, in DFlash's manner (arXiv 2602.06036): one pass drafts a block.

Its input is the root token and ``block - 1`` blanks; its output a distribution for each of the
next ``block - 1`` positions, none of them knowing what the others turn out to be (marginals).  What
it knows of the text are the target's hidden states of the last ``window`` committed tokens, laid as
additional keys and values before the block; within the block attention runs both ways.

Shapes: R requests, B block, L = B - 1 drafted positions, W window, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from verify_attn.engine.model import WeightsError

NORM_EPS = 1e-6


@dataclass(frozen=True)
class BlockSettings:
    """What a block drafter is made of, and which target it belongs to."""

    vocabulary: int
    taps: tuple[int, ...]  # layers of the target whose residual stream is its context
    target_hidden: int
    block: int  # the root and the drafted positions
    window: int  # committed tokens that it looks back on
    hidden: int
    layers: int
    heads: int
    intermediate: int
    rope_theta: float = 1000.0  # a short reach needs no slow angles

    @property
    def features(self) -> int:
        """Width of the target's hidden states of one token."""
        return len(self.taps) * self.target_hidden

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name; no other is looked at."""
        hidden = self.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, hidden),
            "slots": (self.block, hidden),
            "feature_norm": (len(self.taps), self.target_hidden),
            "context": (hidden, self.features),
            "context_norm": (hidden,),
            "norm": (hidden,),
            "head": (self.vocabulary, hidden),
        }
        for i in range(self.layers):
            shapes |= {
                f"layers.{i}.attention_norm": (hidden,),
                f"layers.{i}.query": (hidden, hidden),
                f"layers.{i}.key_value": (2 * hidden, hidden),
                f"layers.{i}.output": (hidden, hidden),
                f"layers.{i}.mlp_norm": (hidden,),
                f"layers.{i}.gate_up": (2 * self.intermediate, hidden),
                f"layers.{i}.down": (hidden, self.intermediate),
            }
        return shapes


class BlockModel:
    """The network.  `context` turns target features into keys and values once; `logits` drafts."""

    def __init__(self, settings: BlockSettings, weights: Mapping[str, Tensor]) -> None:
        """Raises `WeightsError` for a missing or misshapen weight."""
        for name, shape in settings.shapes.items():
            found = tuple(weights[name].shape) if name in weights else None
            if found != shape:
                raise WeightsError(
                    f"weight {name} of the block drafter is {found}; its settings ask for {shape}"
                )
        self.settings = settings
        self._weights = weights
        half = settings.hidden // settings.heads // 2
        exponents = torch.arange(half, dtype=torch.float64, device=self.device) / half
        self._frequencies = settings.rope_theta**-exponents

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights["head"].device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self._weights["head"].dtype

    def context(self, features: Tensor, positions: Tensor) -> Tensor:
        """[..., layers, 2, D] keys and values of target ``features`` [..., F] at ``positions``.

        Keys are rotated by their position; only differences of positions matter later, so a window
        may keep them in any order.
        """
        settings, weights = self.settings, self._weights
        taps = features.unflatten(-1, (len(settings.taps), settings.target_hidden))
        x = linear(_norm(taps, weights["feature_norm"]).flatten(-2), weights["context"])
        x = _norm(x, weights["context_norm"])
        cos, sin = self._rotations(positions)
        layers = []
        for i in range(settings.layers):
            keys, values = linear(x, weights[f"layers.{i}.key_value"]).chunk(2, dim=-1)
            keys = self._rotate(keys.unflatten(-1, (settings.heads, -1)), cos, sin).flatten(-2)
            layers.append(torch.stack([keys.to(values.dtype), values], dim=-2))
        return torch.stack(layers, dim=-3)

    def logits(self, roots: Tensor, positions: Tensor, context: Tensor, seen: Tensor) -> Tensor:
        """[R, L, V] float32 of the L positions after ``roots`` [R], which lie at ``positions`` [R].

        ``context`` is [R, W, layers, 2, D]; ``seen`` [R, W] bool says which of its rows there are.
        """
        settings, weights = self.settings, self._weights
        block = settings.block
        x = weights["slots"].expand(len(roots), -1, -1)
        first = x[:, :1] + embedding(roots, weights["embedding"])[:, None]
        x = torch.cat([first, x[:, 1:]], dim=1)
        offsets = torch.arange(block, device=positions.device)
        cos, sin = self._rotations(positions[:, None] + offsets)
        mask = torch.cat([seen, seen.new_ones(len(roots), block)], dim=1)[:, None, None]
        mask = mask.expand(-1, settings.heads, block, -1)
        for i in range(settings.layers):
            at = f"layers.{i}."
            h = _norm(x, weights[at + "attention_norm"])
            queries = linear(h, weights[at + "query"]).unflatten(-1, (settings.heads, -1))
            keys, values = linear(h, weights[at + "key_value"]).chunk(2, dim=-1)
            keys = keys.unflatten(-1, (settings.heads, -1))
            keys = self._rotate(keys, cos, sin).flatten(-2).to(values.dtype)
            keys = torch.cat([context[:, :, i, 0], keys], dim=1)
            values = torch.cat([context[:, :, i, 1], values], dim=1)
            mixed = scaled_dot_product_attention(
                self._rotate(queries, cos, sin).to(values.dtype).transpose(1, 2),
                keys.unflatten(-1, (settings.heads, -1)).transpose(1, 2),
                values.unflatten(-1, (settings.heads, -1)).transpose(1, 2),
                attn_mask=mask,
            )
            x = x + linear(mixed.transpose(1, 2).flatten(-2), weights[at + "output"])
            h = _norm(x, weights[at + "mlp_norm"])
            gate, up = linear(h, weights[at + "gate_up"]).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, weights[at + "down"])
        return linear(_norm(x[:, 1:], weights["norm"]), weights["head"]).float()

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[..., 1, half] float32 cosine and sine; float64 angles, exact at any position."""
        angles = positions[..., None, None].double() * self._frequencies
        return angles.cos().float(), angles.sin().float()

    @staticmethod
    def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPS)
    return weight * wide.to(x.dtype)
