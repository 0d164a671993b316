"""``triton-unsplit``: the Triton reference, and the baseline that speedups are told against.

One program a (request, head, node block) walks the whole prefix alone and every head reads the KV
again: the shape of SGLang's ``extend_attention_fwd``, which tree verification runs there.  At 8
heads and up to 32 nodes that is 8 programs on a GPU of over 100 multiprocessors.  Its tiles are
that kernel's too.  On Hopper the compiler spills most of SGLang's kernel, which doubles its time; a
cap of 96 registers makes this one as slow (results/h200/kernel_times.json).  So a speedup over
this kernel is one over what people run; it is not meant to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from verify_attn.kernels.triton_common import (
    LOG2_E,
    Tile,
    architecture,
    capabilities,
    masked_columns,
    masked_rows,
    padded,
    pick,
    refuses,
    softmax_step,
    token_offsets,
    tree_visible,
)
from verify_attn.problem import VerifyBatch

TILES = {
    (0, 0): Tile(64, 64, 4, 1),
    (8, 0): Tile(32, 64, 8, 1),
    (8, 6): Tile(32, 32, 8, 1),
    (9, 0): Tile(32, 64, 8, 1, registers=96),
    (10, 0): Tile(16, 64, 8, 1),
    (12, 0): Tile(32, 32, 8, 1),
}


@triton.jit(do_not_specialize=("stride_table", "stride_mask", "stride_ln", "stride_lh"))
def unsplit_kernel(
    q, pool, node_kv, table, prefix_lens, node_offsets, tree_mask, out, lse,
    scale, page_size,
    stride_qn, stride_qh, stride_page, stride_row, stride_node, stride_table, stride_mask,
    stride_on, stride_oh, stride_ln, stride_lh,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OWN_ROWS: tl.constexpr,
):  # fmt: skip
    """One (request, head, node block).  ``scale`` is softmax_scale * log2(e)."""
    request, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = tl.load(node_offsets + request)
    nodes = tl.load(node_offsets + request + 1) - first
    if tl.program_id(2) * BLOCK_M >= nodes:
        return
    node = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = node < nodes
    row = (first + tl.minimum(node, nodes - 1)).to(tl.int64)  # rows past the end repeat the last
    prefix = tl.load(prefix_lens + request)
    table += request.to(tl.int64) * stride_table

    c = tl.arange(0, BLOCK_C)
    d = tl.arange(0, BLOCK_R)
    q_row = row * stride_qn + head * stride_qh
    q_c = masked_rows(q, q_row, live, c, LATENT)  # [BLOCK_M, BLOCK_C]
    q_r = masked_rows(q + LATENT, q_row, live, d, ROPE)  # [BLOCK_M, BLOCK_R]
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)

    n = tl.arange(0, BLOCK_N)
    for start in range(0, prefix, BLOCK_N):
        position = start + n
        inside = position < prefix
        page = tl.load(table + position // page_size, mask=inside, other=0).to(tl.int64)
        where = page * stride_page + (position % page_size).to(tl.int64) * stride_row
        k_c = masked_columns(pool, where, inside, c, LATENT)  # [BLOCK_C, BLOCK_N]
        k_r = masked_columns(pool + LATENT, where, inside, d, ROPE)  # [BLOCK_R, BLOCK_N]
        scores = tl.dot(q_c, k_c, input_precision="ieee")
        scores = tl.dot(q_r, k_r, scores, input_precision="ieee") * scale
        scores = tl.where(live[:, None] & inside[None, :], scores, float("-inf"))
        weights, fade, highest, total = softmax_step(scores, highest, total)
        v = masked_rows(pool, where, inside, c, LATENT)  # the latent part of the keys, read again
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")

    # No node sees a later one, so the tree ends for this block at its own last node.
    for start in range(0, tl.minimum(nodes, (tl.program_id(2) + 1) * BLOCK_M), BLOCK_N):
        inside = start + n < nodes
        other = tl.minimum(start + n, nodes - 1)
        if OWN_ROWS:
            where = (first + other).to(tl.int64) * stride_node
            source = node_kv
        else:
            where = token_offsets(table, prefix + other, page_size, stride_page, stride_row)
            source = pool
        k_c = masked_columns(source, where, inside, c, LATENT)
        k_r = masked_columns(source + LATENT, where, inside, d, ROPE)
        scores = tl.dot(q_c, k_c, input_precision="ieee")
        scores = tl.dot(q_r, k_r, scores, input_precision="ieee") * scale
        seen = tree_visible(tree_mask, row * stride_mask, start, n)
        scores = tl.where(seen & live[:, None] & inside[None, :], scores, float("-inf"))
        weights, fade, highest, total = softmax_step(scores, highest, total)
        v = masked_rows(source, where, inside, c, LATENT)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")

    some = total != 0.0  # a NaN is not nothing: it must come out
    acc = tl.where(some[:, None], acc / tl.where(some, total, 1.0)[:, None], 0.0)
    log_sum = tl.where(some, highest + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
    to = row * stride_on + head * stride_oh
    keep = live[:, None] & (c < LATENT)[None, :]
    tl.store(out + to[:, None] + c[None, :], acc.to(out.dtype.element_ty), mask=keep)
    tl.store(lse + row * stride_ln + head * stride_lh, log_sum / 1.4426950408889634, mask=live)


@dataclass(frozen=True)
class UnsplitPlan:
    """The grid; the kernel needs no workspace."""

    tile: Tile
    node_blocks: int


class TritonUnsplit:
    """See the module's first lines."""

    def __init__(self) -> None:
        self.capabilities = capabilities()

    def unsupported(self, batch: VerifyBatch) -> str | None:
        return refuses(self.capabilities, batch)

    def plan(self, batch: VerifyBatch) -> UnsplitPlan:
        tile = pick(TILES, architecture(batch.device))
        return UnsplitPlan(tile, max(1, triton.cdiv(batch.max_nodes, tile.block_m)))

    def run(
        self, batch: VerifyBatch, plan: UnsplitPlan, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        geometry, tile = batch.geometry, plan.tile
        own_rows = batch.node_kv is not None
        node_kv: Any = batch.node_kv if own_rows else batch.q
        unsplit_kernel[(batch.requests, geometry.heads, plan.node_blocks)](
            batch.q, batch.kv_pool, node_kv, batch.page_table, batch.prefix_lens,
            batch.node_offsets, batch.tree_mask, out, lse,
            batch.softmax_scale * LOG2_E, batch.page_size,
            batch.q.stride(0), batch.q.stride(1), batch.kv_pool.stride(0), batch.kv_pool.stride(1),
            node_kv.stride(0), batch.page_table.stride(0), batch.tree_mask.stride(0),
            out.stride(0), out.stride(1), lse.stride(0), lse.stride(1),
            LATENT=geometry.latent_dim, ROPE=geometry.rope_dim,
            BLOCK_C=padded(geometry.latent_dim), BLOCK_R=padded(geometry.rope_dim),
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, OWN_ROWS=own_rows,
            num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
        )  # fmt: skip
