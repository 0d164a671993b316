"""A DeepSeek-V3-style decoder with its MLA weight-absorbed: what is cached is the latent row.

The model knows no pages and no slots.  It is given tokens with their depths, and an ``attend``
that keeps the rows and runs a kernel over them; so the same code prefills, decodes and verifies.

Shapes: T tokens, H heads, D_c latent, D_r rope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from verify_attn.engine.config import ModelConfig, rope_frequencies

LATENT_NORM_EPS = 1e-6  # of the two latent norms, whatever the config says of the others

# attend(layer, q [T, H, D_c + D_r], rows [T, D_c + D_r]) -> [T, H, D_c]; it stores the rows first.
Attend = Callable[[int, Tensor, Tensor], Tensor]
# Sums a tensor over the tensor-parallel ranks; it may do so in place.
Reduce = Callable[[Tensor], Tensor]


class WeightsError(ValueError):
    """Weights that do not fit the config; the message names the first one and both shapes."""


@dataclass(frozen=True)
class _Mlp:
    gate: Tensor
    up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return linear(silu(linear(x, self.gate)) * linear(x, self.up), self.down)


@dataclass(frozen=True)
class _Experts:
    router: Tensor  # [E, hidden]
    bias: Tensor  # [E] float32, for the choice alone
    experts: tuple[_Mlp, ...]
    shared: _Mlp | None


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    mlp_norm: Tensor
    query_down: Tensor | None
    query_norm: Tensor | None
    query: Tensor  # [H * (nope + rope), query latent or hidden]
    latent: Tensor  # [D_c + D_r, hidden]
    latent_norm: Tensor
    key_up: Tensor  # [H, nope, D_c]
    value_up: Tensor  # [H, value, D_c]
    output: Tensor  # [hidden, H * value]
    mlp: _Mlp | _Experts


class Model:
    """Weights by the names of transformers' ``DeepseekV3ForCausalLM``.

    Experts may be packed (``mlp.experts.gate_up_proj``) or one by one.  Norms and the router work
    in float32, everything else in the weights' dtype.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], reduce: Reduce | None = None
    ) -> None:
        """Raises `WeightsError` for a missing or misshapen weight.

        ``reduce`` is for one rank of several (`verify_attn.engine.parallel`): it is called twice a
        layer, on what attention and the feed-forward part add to the residual stream.
        """
        self.config = config
        self.reduce = reduce
        take = _Take(weights)
        self.embedding = take("model.embed_tokens.weight", config.vocabulary, config.hidden)
        self.layers = [_layer(config, take, i) for i in range(config.layers)]
        self.norm = take("model.norm.weight", config.hidden)
        head = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
        self.head = take(head, config.vocabulary, config.hidden)
        self._frequencies = torch.tensor(
            rope_frequencies(config), dtype=torch.float32, device=self.embedding.device
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and the KV rows."""
        return self.embedding.dtype

    def forward(
        self, tokens: Tensor, depths: Tensor, attend: Attend, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """Of ``tokens`` [T] at ``depths`` [T] (both int64): what `logits` and a drafter take.

        Returns ([T, hidden] after the last norm, [T, len(taps) * hidden] the residual stream after
        the layers ``taps``, side by side).  A depth is the position in the text, for RoPE; slots
        are ``attend``'s business.
        """
        tapped = []
        config = self.config
        x = embedding(tokens, self.embedding)
        cos, sin = self._rotations(depths)
        for i, layer in enumerate(self.layers):
            h = _norm(x, layer.attention_norm, config.norm_eps)
            q, rows = self._project(layer, h, cos, sin)
            latent = attend(i, q, rows)
            values = torch.einsum("thc,hvc->thv", latent.to(self.dtype), layer.value_up)
            x = x + self._sum(linear(values.flatten(1), layer.output))
            h = _norm(x, layer.mlp_norm, config.norm_eps)
            more = layer.mlp(h) if isinstance(layer.mlp, _Mlp) else _route(config, layer.mlp, h)
            x = x + self._sum(more)
            if i in taps:
                tapped.append(x)
        features = torch.cat(tapped, dim=-1) if tapped else x.new_empty(len(x), 0)
        return _norm(x, self.norm, config.norm_eps), features

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, vocabulary] float32 of `forward`'s result."""
        return linear(hidden, self.head).float()

    def _sum(self, x: Tensor) -> Tensor:
        return x if self.reduce is None else self.reduce(x)

    def _project(self, layer: _Layer, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Absorbed queries and the rows to cache."""
        config = self.config
        queries = h
        if layer.query_down is not None and layer.query_norm is not None:
            queries = _norm(linear(h, layer.query_down), layer.query_norm, LATENT_NORM_EPS)
        queries = linear(queries, layer.query).view(len(h), config.heads, -1)
        nope, rope = queries[..., : config.nope_dim], queries[..., config.nope_dim :]
        absorbed = torch.einsum("thn,hnc->thc", nope, layer.key_up)
        both = linear(h, layer.latent)
        latent, key_rope = both[:, : config.latent_dim], both[:, config.latent_dim :]
        latent = _norm(latent, layer.latent_norm, LATENT_NORM_EPS)
        q = torch.cat([absorbed, self._rotate(rope, cos[:, None], sin[:, None])], dim=-1)
        return q, torch.cat([latent, self._rotate(key_rope, cos, sin)], dim=-1)

    def _rotations(self, depths: Tensor) -> tuple[Tensor, Tensor]:
        """[T, D_r / 2] cosine and sine, in the weights' dtype as transformers rounds them."""
        angles = depths[:, None].float() * self._frequencies
        factor = self.config.yarn.attention_factor if self.config.yarn is not None else 1.0
        return (angles.cos() * factor).to(self.dtype), (angles.sin() * factor).to(self.dtype)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate pairs; they come out with their halves apart, in queries and keys alike."""
        if self.config.rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
        else:
            a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _route(config: ModelConfig, layer: _Experts, x: Tensor) -> Tensor:
    """Sigmoid scores; the bias helps to choose and does not weigh (DeepSeek-V3, section 2.1.2)."""
    moe = config.experts
    assert moe is not None
    scores = linear(x.float(), layer.router.float()).sigmoid()
    choice = scores + layer.bias
    if moe.groups > 1:
        groups = choice.view(len(x), moe.groups, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(moe.active_groups, dim=-1).indices
        keep = torch.zeros_like(groups[..., 0], dtype=torch.bool).scatter_(1, best, True)
        choice = groups.masked_fill(~keep[..., None], float("-inf")).flatten(1)
    chosen = choice.topk(moe.active, dim=-1).indices
    weights = scores.gather(1, chosen)
    if moe.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * moe.scale
    out = torch.zeros_like(x)
    for number, expert in enumerate(layer.experts):
        token, place = (chosen == number).nonzero(as_tuple=True)
        if len(token):
            out.index_add_(0, token, (expert(x[token]) * weights[token, place, None]).to(x.dtype))
    return out if layer.shared is None else out + layer.shared(x)


class _Take:
    """Weights by name, each held to its shape."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights

    def has(self, name: str) -> bool:
        return name in self._weights

    def __call__(self, name: str, *shape: int) -> Tensor:
        weight = self._weights.get(name)
        if weight is None:
            raise WeightsError(f"there is no weight {name}; the config asks for {list(shape)}")
        if tuple(weight.shape) != shape:
            raise WeightsError(
                f"weight {name} is {list(weight.shape)}; the config asks for {list(shape)}"
            )
        return weight


def _layer(config: ModelConfig, take: _Take, i: int) -> _Layer:
    at, attn = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
    heads, qk = config.heads, config.nope_dim + config.rope_dim
    down = norm = None
    if config.query_latent_dim is None:
        query = take(attn + "q_proj.weight", heads * qk, config.hidden)
    else:
        rank = config.query_latent_dim
        down = take(attn + "q_a_proj.weight", rank, config.hidden)
        norm = take(attn + "q_a_layernorm.weight", rank)
        query = take(attn + "q_b_proj.weight", heads * qk, rank)
    up = take(
        attn + "kv_b_proj.weight", heads * (config.nope_dim + config.value_dim), config.latent_dim
    ).view(heads, -1, config.latent_dim)
    return _Layer(
        attention_norm=take(at + "input_layernorm.weight", config.hidden),
        mlp_norm=take(at + "post_attention_layernorm.weight", config.hidden),
        query_down=down,
        query_norm=norm,
        query=query,
        latent=take(
            attn + "kv_a_proj_with_mqa.weight", config.latent_dim + config.rope_dim, config.hidden
        ),
        latent_norm=take(attn + "kv_a_layernorm.weight", config.latent_dim),
        key_up=up[:, : config.nope_dim].contiguous(),
        value_up=up[:, config.nope_dim :].contiguous(),
        output=take(attn + "o_proj.weight", config.hidden, heads * config.value_dim),
        mlp=_mlp(config, take, at + "mlp.", i),
    )


def _mlp(config: ModelConfig, take: _Take, at: str, i: int) -> _Mlp | _Experts:
    moe = config.experts
    if moe is None or i < config.dense_layers:
        return _dense(config.hidden, config.intermediate, take, at)
    experts = []
    width = moe.intermediate
    if take.has(at + "experts.gate_up_proj"):
        both = take(at + "experts.gate_up_proj", moe.count, 2 * width, config.hidden)
        down = take(at + "experts.down_proj", moe.count, config.hidden, width)
        experts = [_Mlp(both[e, :width], both[e, width:], down[e]) for e in range(moe.count)]
    else:
        experts = [
            _dense(config.hidden, width, take, f"{at}experts.{e}.") for e in range(moe.count)
        ]
    shared = None
    if moe.shared:
        shared = _dense(config.hidden, moe.shared * width, take, at + "shared_experts.")
    return _Experts(
        router=take(at + "gate.weight", moe.count, config.hidden),
        bias=take(at + "gate.e_score_correction_bias", moe.count).float(),
        experts=tuple(experts),
        shared=shared,
    )


def _dense(hidden: int, width: int, take: _Take, at: str) -> _Mlp:
    return _Mlp(
        take(at + "gate_proj.weight", width, hidden),
        take(at + "up_proj.weight", width, hidden),
        take(at + "down_proj.weight", hidden, width),
    )
