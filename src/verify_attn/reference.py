"""The oracle: tree-verify attention in float64, one request and one node at a time.

For node i of request r, over the tokens t it may attend to (the whole prefix, itself, its
ancestors), with c_t the first D_c entries of token t's row k_t::

    s_t = softmax_scale * q_i . k_t        lse_i = ln sum_t exp(s_t)
    p_t = exp(s_t - lse_i)                 out_i = sum_t p_t c_t

`oracle` reads like that equation and is slow.  `fast_reference` is its vectorised float32 twin
for long contexts on a GPU; tests prove the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verify_attn.float32 import exact_products
from verify_attn.problem import VerifyBatch

# Scores held at once by the twin: 2^26 float32 are 256 MiB.
_SCORES_AT_ONCE = 1 << 26


@dataclass(frozen=True, eq=False)
class Reference:
    """What a kernel should have said, rows from node_offsets[R] on left out.

    ``out``      [N', H, D_c] float64 or float32
    ``lse``      [N', H], natural log; -inf where a row may attend to nothing (out is 0 there)
    ``strength`` [N', H], ``softmax_scale * |q| * max |k|`` over the row's tokens: how large the
                 terms of a logit are, which bounds its rounding error (see conformance/tolerance)
    ``keys``     [N'], tokens the row attends to
    ``dims``     D_c + D_r, products that a logit sums
    """

    out: torch.Tensor
    lse: torch.Tensor
    strength: torch.Tensor
    keys: torch.Tensor
    dims: int

    def to(self, device: torch.device) -> Reference:
        """The same on another device."""
        return Reference(
            self.out.to(device),
            self.lse.to(device),
            self.strength.to(device),
            self.keys.to(device),
            self.dims,
        )

    def rows(
        self,
        rows: slice | torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> Reference:
        """Some rows, with other answers where given: what another run should give."""
        out, lse = self.out if out is None else out, self.lse if lse is None else lse
        return Reference(out[rows], lse[rows], self.strength[rows], self.keys[rows], self.dims)


def oracle(batch: VerifyBatch) -> Reference:
    """Float64, in plain loops.  Everything is brought to the CPU."""
    geometry = batch.geometry
    total = batch.offset_list[-1]
    out = torch.zeros(total, geometry.heads, geometry.latent_dim, dtype=torch.float64)
    lse = torch.full((total, geometry.heads), -torch.inf, dtype=torch.float64)
    strength = torch.zeros(total, geometry.heads, dtype=torch.float64)
    keys = torch.zeros(total, dtype=torch.int64)
    q = batch.q.detach().to("cpu", torch.float64)
    for request in range(batch.requests):
        prefix, tree = request_rows(batch, request, torch.float64, torch.device("cpu"))
        visible = visible_nodes(batch, request).cpu()
        for node in range(batch.nodes(request)):
            row = batch.offset_list[request] + node
            k = torch.cat([prefix, tree[visible[node]]])  # [tokens, D_c + D_r]
            keys[row] = len(k)
            if len(k) == 0:
                continue  # out stays 0, lse stays -inf
            scores = batch.softmax_scale * (q[row] @ k.T)  # [H, tokens]
            lse[row] = torch.logsumexp(scores, dim=1)
            p = torch.exp(scores - lse[row][:, None])
            out[row] = p @ k[:, : geometry.latent_dim]
            strength[row] = batch.softmax_scale * q[row].norm(dim=1) * k.norm(dim=1).max()
    return Reference(out, lse, strength, keys, geometry.qk_dim)


@exact_products()
def fast_reference(batch: VerifyBatch, dtype: torch.dtype = torch.float32) -> Reference:
    """The vectorised twin of `oracle`: a request at a time, all nodes and heads together, on the
    batch's device.  Long prefixes go through in pieces that are merged by log-sum-exp.  To judge a
    float32 kernel, ask for float64."""
    geometry, device = batch.geometry, batch.device
    total, heads = batch.offset_list[-1], geometry.heads
    out = torch.zeros(total, heads, geometry.latent_dim, dtype=dtype, device=device)
    lse = torch.full((total, heads), -torch.inf, dtype=dtype, device=device)
    strength = torch.zeros(total, heads, dtype=dtype, device=device)
    keys = torch.zeros(total, dtype=torch.int64, device=device)
    for request in range(batch.requests):
        first, last = batch.offset_list[request], batch.offset_list[request + 1]
        if first == last:
            continue
        q = batch.q[first:last].to(dtype)  # [n, H, D]
        prefix, tree = request_rows(batch, request, dtype, device)
        visible = visible_nodes(batch, request)  # [n, n]
        keys[first:last] = len(prefix) + visible.sum(1)
        longest = (
            torch.where(visible, tree.norm(dim=1)[None, :], 0.0).amax(1)
            if visible.numel()
            else torch.zeros(last - first, dtype=dtype, device=device)
        )
        if len(prefix):
            longest = torch.maximum(longest, prefix.norm(dim=1).max())
        strength[first:last] = batch.softmax_scale * q.norm(dim=2) * longest[:, None]
        acc_out, acc_lse = _attend(batch, q, tree, ~visible[:, None, :])
        step = max(1, _SCORES_AT_ONCE // (q.shape[0] * q.shape[1]))
        for start in range(0, len(prefix), step):
            part = _attend(batch, q, prefix[start : start + step], None)
            acc_out, acc_lse = _merge(acc_out, acc_lse, *part)
        out[first:last], lse[first:last] = acc_out, acc_lse
    return Reference(out, lse, strength, keys, geometry.qk_dim)


def _attend(
    batch: VerifyBatch, q: torch.Tensor, k: torch.Tensor, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [n, H, D] over k [t, D]; ``hidden`` [n, 1, t] marks what is not seen."""
    scores = batch.softmax_scale * torch.einsum("nhd,td->nht", q, k)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, dim=2)
    p = torch.exp(scores - torch.where(torch.isinf(lse), 0.0, lse)[..., None])
    return torch.einsum("nht,td->nhd", p, k[:, : batch.geometry.latent_dim]), lse


def _merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over two disjoint sets of tokens, each weighted by its share exp(lse)."""
    lse = torch.logaddexp(lse_a, lse_b)
    base = torch.where(torch.isinf(lse), 0.0, lse)
    share_a, share_b = torch.exp(lse_a - base)[..., None], torch.exp(lse_b - base)[..., None]
    return share_a * out_a + share_b * out_b, lse


def request_rows(
    batch: VerifyBatch, request: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """One request's KV rows (prefix [prefix_len, D], nodes [n, D]), scaled, in token order."""
    prefix_len, nodes = batch.prefix_list[request], batch.nodes(request)
    stored = pool_rows(batch, request, 0, batch.stored_tokens(request)).to(device, dtype)
    prefix = stored[:prefix_len] * batch.kv_scale
    if batch.node_kv is None:
        return prefix, stored[prefix_len:] * batch.kv_scale
    first = batch.offset_list[request]
    return prefix, batch.node_kv[first : first + nodes].to(device, dtype)


def pool_rows(batch: VerifyBatch, request: int, start: int, end: int) -> torch.Tensor:
    """Rows [end - start, D] of the pool that hold token positions start..end of a request."""
    positions = torch.arange(start, end, device=batch.device)
    pages = batch.page_table[request].long()[positions // batch.page_size]
    return batch.kv_pool[pages, positions % batch.page_size]


def visible_nodes(batch: VerifyBatch, request: int) -> torch.Tensor:
    """[n, n] bool: the tree mask of one request, unpacked."""
    first, last = batch.offset_list[request], batch.offset_list[request + 1]
    node = torch.arange(last - first, device=batch.device)
    words = batch.tree_mask[first:last][:, node // 64]
    return ((words >> (node % 64)) & 1).bool()
