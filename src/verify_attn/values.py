"""The numbers of a case: random, but such that every key matters.

With plain random data a long softmax is nearly flat and losing a whole tile moves nothing past a
tolerance.  So some keys are *planted*: a shared direction in the rope part of q and of those keys
lifts their logits until together they hold about four fifths of the weight.  Planted are the first
and last token, both sides of tile, page and split edges, one key in each of 64 equal stretches,
some at random, and every node of the tree.  A row's weight is then spread over a few hundred keys;
the loss of any one moves the output by 1 / sqrt(keys) of its RMS, far past the bound.  The
direction lies in the rope part because the latent part is also the value: values stay independent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from verify_attn.assemble import Arrangement, Content, shared_pages
from verify_attn.geometry import AttentionGeometry
from verify_attn.tree import BoolArray

VALUES = ("planted", "equal", "large", "dominant")
TILE_SIZES = (16, 32, 64, 128)
SPLIT_COUNTS = (2, 4, 8, 16, 32)
STRETCHES = 64
# Planted keys hold this many times the weight of all others together.
PLANTED_WEIGHT = 4.0
LOGIT_SPREAD = 1.0  # standard deviation of the random part of a scaled logit
LARGE_SPREAD = 250.0  # the largest of some thousands of such logits lies near 1e3
DOMINANT_LOGIT = 60.0

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
    logits up to about 1e3), ``dominant`` (one key a request holds nearly all the weight).
    Requests that share pages share the rows in them.
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
    lift = _lift(kind, max(prefix_lens))
    raise_by = direction * math.sqrt(lift / scale)
    shared = shared_pages(arrangement.shared_pages, page_size, prefix_lens)
    made: list[Content] = []
    for request, prefix in enumerate(prefix_lens):
        nodes = len(visible[request])
        q = normal(nodes, geometry.heads, geometry.qk_dim) * q_sigma
        rows = normal(prefix + nodes, geometry.qk_dim) * sigma
        if lift:
            q[..., latent:] += raise_by
            if kind == "dominant":
                planted = np.array([rng.integers(prefix) if prefix else 0])
            else:
                some = planted_positions(prefix, nodes, page_size, rng)
                planted = np.append(some, np.arange(prefix, prefix + nodes))
            rows[torch.from_numpy(planted).to(device), latent:] += raise_by
        q, rows = q.to(dtype), rows.to(dtype)
        if request and shared[request]:
            same = shared[request] * page_size
            rows[:same] = made[0].prefix[:same]
        made.append(Content(q, rows[:prefix], rows[prefix:], visible[request]))
    return made


def _lift(kind: str, longest: int) -> float:
    """What the shared direction adds to a planted key's logit."""
    if kind == "dominant":
        return DOMINANT_LOGIT
    if kind != "planted" or longest <= 256:
        return 0.0
    # Weight of the planted keys: m * exp(lift) against (n - m), spread alike.
    return math.log(PLANTED_WEIGHT * longest / 160.0 + 1.0)
