"""``torch``: verify attention in vectorised PyTorch, on any device.

A plain function, since PyTorch allocates as it goes.  Products are taken in float32; a request's
prefix goes through in pieces with a running maximum, so that memory stays bounded.
"""

from __future__ import annotations

import torch

from verify_attn.float32 import exact_products
from verify_attn.kernels.base import declare
from verify_attn.problem import FP8_DTYPES, VerifyBatch

# Scores held at once: 2^25 float32 are 128 MiB.
_SCORES_AT_ONCE = 1 << 25


@declare(
    dtypes=(torch.float16, torch.bfloat16, torch.float32),
    kv_dtypes=(torch.float16, torch.bfloat16, torch.float32, *FP8_DTYPES),
    deterministic=True,
)
def torch_verify(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Fill ``out`` [N, H, D_c] and ``lse`` [N, H]."""
    with exact_products():
        for request in range(batch.requests):
            first, last = batch.offset_list[request], batch.offset_list[request + 1]
            if last > first:
                _one_request(batch, request, out[first:last], lse[first:last])


def _one_request(batch: VerifyBatch, request: int, out: torch.Tensor, lse: torch.Tensor) -> None:
    latent = batch.geometry.latent_dim
    first, last = batch.offset_list[request], batch.offset_list[request + 1]
    nodes, heads = last - first, batch.geometry.heads
    prefix_len = batch.prefix_list[request]
    q = batch.q[first:last].float().reshape(nodes * heads, -1) * batch.softmax_scale
    table = batch.page_table[request]

    # Running maximum, sum and weighted values: the usual online softmax.
    highest = torch.full((nodes * heads, 1), -torch.inf, device=q.device)
    total = torch.zeros_like(highest)
    acc = torch.zeros(nodes * heads, latent, device=q.device)

    step = max(256, _SCORES_AT_ONCE // (nodes * heads))
    stored = batch.stored_tokens(request)
    pieces = [(p, min(p + step, prefix_len)) for p in range(0, prefix_len, step)]
    for start, end in [*pieces, (prefix_len, prefix_len + nodes)]:
        if start >= prefix_len and batch.node_kv is not None:
            k = batch.node_kv[first:last].float()
        else:
            position = torch.arange(start, min(end, stored), device=q.device)
            page = table[position // batch.page_size].long()
            k = batch.kv_pool[page, position % batch.page_size].float() * batch.kv_scale
        scores = q @ k.T  # [n * H, tokens]
        if start >= prefix_len:
            scores = scores.masked_fill(_hidden(batch, first, nodes, heads), -torch.inf)
        peak = torch.maximum(highest, scores.amax(1, keepdim=True))
        base = torch.where(torch.isinf(peak), 0.0, peak)  # a row that has seen nothing yet
        weights = torch.exp(scores - base)
        fade = torch.exp(highest - base)
        total = total * fade + weights.sum(1, keepdim=True)
        acc = acc * fade + weights @ k[:, :latent]
        highest = peak

    seen = total != 0  # a NaN is not nothing: it must come out
    out.copy_(torch.where(seen, acc / total, 0.0).view(nodes, heads, latent))
    lse.copy_(torch.where(seen, highest + torch.log(total), -torch.inf).view(nodes, heads))


def _hidden(batch: VerifyBatch, first: int, nodes: int, heads: int) -> torch.Tensor:
    """[n * H, n] bool: which nodes a row must not see."""
    node = torch.arange(nodes, device=batch.device)
    bits = batch.tree_mask[first : first + nodes][:, node // 64] >> (node % 64)
    return (bits & 1 == 0).repeat_interleave(heads, dim=0)
