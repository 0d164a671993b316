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

from verify_attn.problem import VerifyBatch

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


def fill_values(batch: VerifyBatch, kind: str, seed: int, rng: np.random.Generator) -> None:
    """Write q and every row that some token owns; all else stays as it is (poison)."""
    device = batch.device
    generator = torch.Generator(device=device).manual_seed(seed)
    geometry, scale = batch.geometry, batch.softmax_scale
    latent, rope = geometry.latent_dim, geometry.rope_dim
    spread = LARGE_SPREAD if kind == "large" else LOGIT_SPREAD
    sigma = math.sqrt(LOGIT_SPREAD / (scale * math.sqrt(geometry.qk_dim)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    direction = normal(rope)
    direction /= direction.norm()
    live = batch.offset_list[-1]
    q = normal(live, geometry.heads, geometry.qk_dim) * (sigma * spread / LOGIT_SPREAD)
    if kind == "equal":
        q.zero_()

    lift = _lift(batch, kind)
    if lift:
        q[..., latent:] += direction * math.sqrt(lift / scale)
    batch.q[:live] = q.to(batch.q.dtype)

    written: dict[int, int] = {}  # shared pages are written once, by the first request
    for request in range(batch.requests):
        prefix, nodes = batch.prefix_list[request], batch.nodes(request)
        rows = normal(prefix + nodes, geometry.qk_dim) * sigma
        if lift:
            if kind == "dominant":
                planted = torch.tensor([int(rng.integers(prefix))] if prefix else [0])
            else:
                some = planted_positions(prefix, nodes, batch.page_size, rng)
                planted = torch.from_numpy(np.append(some, np.arange(prefix, prefix + nodes)))
            rows[planted.to(device), latent:] += direction * math.sqrt(lift / scale)
        _write(batch, request, rows.to(batch.q.dtype), written)


def _lift(batch: VerifyBatch, kind: str) -> float:
    """What the shared direction adds to a planted key's logit."""
    if kind == "dominant":
        return DOMINANT_LOGIT
    longest = max(batch.prefix_list)
    if kind != "planted" or longest <= 256:
        return 0.0
    # Weight of the planted keys: m * exp(lift) against (n - m), spread alike.
    return math.log(PLANTED_WEIGHT * longest / 160.0 + 1.0)


def _write(batch: VerifyBatch, request: int, rows: torch.Tensor, written: dict[int, int]) -> None:
    """Put a request's rows where its page table says, and its nodes' where the batch keeps them."""
    prefix = batch.prefix_list[request]
    if batch.node_kv is not None:
        first = batch.offset_list[request]
        batch.node_kv[first : first + len(rows) - prefix] = rows[prefix:]
        rows = rows[:prefix]
    if not len(rows):
        return
    page_size = batch.page_size
    used = -(-len(rows) // page_size)
    pages = batch.page_table[request, :used].tolist()
    skip = 0
    while skip < used and pages[skip] in written:  # shared pages lead the table
        skip += 1
    written.update((page, request) for page in pages)
    start = skip * page_size
    position = torch.arange(start, len(rows), device=batch.device)
    page = batch.page_table[request].long()[position // page_size]
    batch.kv_pool[page, position % page_size] = rows[start:]
