"""The numbers of a case: random, but such that every key matters.

With plain random data a long softmax is nearly flat and losing a whole tile moves nothing past a
tolerance.  So some keys are *planted*: a shared direction in the rope part of q and of those keys
lifts their logits until together they hold about three quarters of the weight.  Planted are the
first and last token, both sides of tile, page and split edges, one key in each of 64 equal
stretches, some at random, and every node of the tree.  A row's weight is then spread over some
150 keys; the loss of any one moves the output by about 1 / sqrt(keys) of its RMS, past the bound
even for a single row in bfloat16 (tests/unit/test_values.py).  The direction lies in the rope part
because the latent part is also the value: values stay independent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from verify_attn.assemble import (
    KV_DTYPES,
    KV_SCALE,
    Arrangement,
    Content,
    quantised,
    shared_pages,
)
from verify_attn.geometry import AttentionGeometry
from verify_attn.tree import BoolArray

VALUES = ("planted", "equal", "large", "dominant", "low")
TILE_SIZES = (16, 32, 64, 128)
SPLIT_COUNTS = (2, 4, 8, 16, 32)
STRETCHES = 64
# Planted keys hold this many times the weight of all others together.
PLANTED_WEIGHT = 4.0
# Standard deviation of the random part of a scaled logit.  At 1 the unluckiest of 150 planted keys
# weighs a twelfth of the mean one, and a single row in bfloat16 would not miss it.
LOGIT_SPREAD = 0.5
LARGE_SPREAD = 250.0  # the largest of some thousands of such logits lies near 1e3
DOMINANT_LOGIT = 60.0
# exp of it is 0 in float32, so a maximum that starts at 0 loses everything; no lower than needed,
# since rounding errors of logits grow with their size.
LOW_LOGIT = -110.0

Positions = np.ndarray[Any, np.dtype[np.int64]]


def planted_positions(
    prefix_len: int, nodes: int, page_size: int, rng: np.random.Generator
) -> Positions:
    """Prefix positions whose keys are planted, ascending; all of them up to 256."""
    if prefix_len <= 256:
        return np.arange(prefix_len)
    edges = []
    for size in TILE_SIZES:
        edges += [size, prefix_len // size * size, (prefix_len - 1) // size * size]
    for count in SPLIT_COUNTS:  # ranges over the prefix, and over prefix and tree
        for total in (prefix_len, prefix_len + nodes):
            share = -(-total // count)
            edges += [share * int(rng.integers(1, count)), share * (count - 1)]
    pages = prefix_len // page_size
    if pages:
        edges += [page_size * int(p) for p in rng.integers(1, pages + 1, size=4)]
        edges += [page_size, page_size * pages]
    chosen = [0, prefix_len - 1]
    for edge in edges:
        chosen += [edge - 1, edge]
    cuts = np.linspace(0, prefix_len, STRETCHES + 1).astype(np.int64)
    chosen += rng.integers(cuts[:-1], cuts[1:]).tolist()
    chosen += rng.integers(0, prefix_len, size=16).tolist()
    positions = np.unique(np.array(chosen, dtype=np.int64))
    return positions[(positions >= 0) & (positions < prefix_len)]


def make_contents(
    geometry: AttentionGeometry,
    prefix_lens: list[int],
    visible: list[BoolArray],
    *,
    kind: str,
    arrangement: Arrangement,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Content]:
    """q and KV rows of every request.

    ``kind``: ``planted`` (see above), ``equal`` (q is 0, so all logits are), ``large`` (scaled
    logits up to about 1e3), ``dominant`` (one key a request holds nearly all the weight), ``low``
    (all logits lie far below 0).
    Requests that share pages share the rows in them.  For an fp8 pool the numbers are rounded to
    what it holds, and q's to what fp8 holds unscaled; they stay in ``dtype``.
    """
    seed, page_size = arrangement.seed, arrangement.page_size
    rng = np.random.default_rng([seed, 1])
    generator = torch.Generator(device=device).manual_seed(seed)
    scale, latent = geometry.softmax_scale, geometry.latent_dim
    sigma = math.sqrt(LOGIT_SPREAD / (scale * math.sqrt(geometry.qk_dim)))
    q_sigma = {"equal": 0.0, "large": sigma * LARGE_SPREAD / LOGIT_SPREAD}.get(kind, sigma)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    direction = normal(geometry.rope_dim)
    direction /= direction.norm()
    if kind == "low":  # one product makes the logit low: a sum of many would round at each step
        direction = torch.zeros_like(direction)
        direction[-1] = 1.0
    lift = _lift(kind, max(prefix_lens))
    raise_by = direction * math.sqrt(abs(lift) / scale)
    pages = shared_pages(arrangement.shared_pages, page_size, prefix_lens)
    shared = [count * page_size for count in pages]
    lifted = _lifted(kind, prefix_lens, [len(v) for v in visible], shared, page_size, rng)
    made: list[Content] = []
    for request, prefix in enumerate(prefix_lens):
        nodes = len(visible[request])
        q = normal(nodes, geometry.heads, geometry.qk_dim) * q_sigma
        rows = normal(prefix + nodes, geometry.qk_dim) * sigma
        if lift:
            q[..., latent:] += raise_by - _along(q[..., latent:], direction)
            keys = torch.from_numpy(lifted[request]).to(device)
            raised = math.copysign(1.0, lift) * raise_by
            rows[keys, latent:] += raised - _along(rows[keys, latent:], direction)
        q, rows = q.to(dtype), rows.to(dtype)
        if fp8 := KV_DTYPES[arrangement.kv_dtype]:
            q = quantised(q, fp8, 1.0).to(dtype)
            rows = (quantised(rows, fp8, KV_SCALE).float() * KV_SCALE).to(dtype)
        if request and shared[request]:
            rows[: shared[request]] = made[0].prefix[: shared[request]]
        made.append(Content(q, rows[:prefix], rows[prefix:], visible[request]))
    return made


def _lifted(
    kind: str,
    prefix_lens: list[int],
    nodes: list[int],
    shared: list[int],
    page_size: int,
    rng: np.random.Generator,
) -> list[Positions]:
    """Token positions of each request whose keys are lifted.

    The first ``shared[r]`` rows of request r are request 0's: what r plants there, 0 must plant.
    """
    lifted: list[Positions] = []
    for request, (prefix, own) in enumerate(zip(prefix_lens, shared, strict=True)):
        tree = np.arange(prefix, prefix + nodes[request])
        if kind == "low":
            lifted.append(np.arange(prefix + nodes[request]))
        elif kind != "dominant":
            some = planted_positions(prefix, nodes[request], page_size, rng)
            lifted.append(np.append(some, tree))
        elif prefix:
            lifted.append(rng.integers(own if own < prefix else 0, prefix, size=1))
        else:
            lifted.append(tree[:1])
        mine = lifted[request]
        lifted[0] = np.union1d(lifted[0], mine[mine < own])
    return lifted


def _along(vectors: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """The part of each vector along the unit ``direction``.

    It is taken out before the lift goes in: times the lift it would be a factor on a planted
    key's weight in all rows alike, and hide the unlucky keys.
    """
    return (vectors @ direction)[..., None] * direction


def _lift(kind: str, longest: int) -> float:
    """What the shared direction adds to a planted key's logit."""
    if kind == "dominant":
        return DOMINANT_LOGIT
    if kind == "low":
        return LOW_LOGIT
    if kind != "planted" or longest <= 256:
        return 0.0
    # Weight of the planted keys: m * exp(lift) against (n - m), spread alike.
    return math.log(PLANTED_WEIGHT * longest / 160.0 + 1.0)
