"""``triton-split``: split-KV verify attention in Triton.

Heads and nodes are the rows of one tile (row = node * H + head), so that a KV tile is read once
for all of them.  A request's tokens, prefix then tree, are cut into S ranges worked on in
parallel; the tree's bits are looked at only where a range reaches the tree.  A second kernel
merges the ranges by log-sum-exp.  S depends on shape and bounds alone, each range's length on the
lengths in device memory, so a captured graph follows the batch.

A note on the branch in the prefix loop.  Triton lays a dot whose result reaches another dot out
with all warps along its rows, so that the softmax between them stays within a warp.  Here 8 warps
share 64 rows, enough for 4: half of them would repeat the other half's products.  A branch hides
the second dot from that rule: 44 instead of 76 matrix instructions a tile on Hopper.  Elsewhere it
only makes the compiler spill, so it is there for Hopper's tile alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from verify_attn.kernels.triton_common import (
    INTERPRETED,
    LOG2_E,
    Tile,
    architecture,
    capabilities,
    load_rows,
    padded,
    pick,
    refuses,
    softmax_step,
    token_offsets,
    tree_visible,
)
from verify_attn.problem import VerifyBatch

# Numbers that a kernel compiled for one value would not be faster with.
UNSPECIALIZED = (
    "heads",
    "splits",
    "rows_total",
    "stride_table",
    "stride_mask",
    "stride_ln",
    "stride_lh",
)

# (0, 0) is the interpreter.  sm_120 has 101,376 bytes of shared memory a block: the query tile and
# one KV tile of 32 rows fill 76,032 of them.
TILES = {
    (0, 0): Tile(128, 64, 4, 1, branch=True),
    (8, 0): Tile(32, 32, 4, 2),
    (8, 6): Tile(32, 32, 8, 2),
    (9, 0): Tile(64, 64, 8, 3, branch=True),
    (10, 0): Tile(64, 64, 8, 2),
    (12, 0): Tile(32, 32, 8, 2),
}


@dataclass(frozen=True)
class MergeTile:
    """Rows, ranges (at most) and output dims that one step of the merge holds."""

    rows: int
    ranges: int
    dims: int
    warps: int


# In the interpreter a program costs milliseconds whatever its size, so there it takes many rows.
MERGE = MergeTile(1, 64, 128, 4)
INTERPRETER_MERGE = MergeTile(128, 4, 128, 4)

# The fewest tiles worth a range.
LEAST_TILES = 2
# Ranges in the interpreter, where nothing runs in parallel: enough to test the merge.
INTERPRETER_SPLITS = 3


@triton.jit(do_not_specialize=UNSPECIALIZED)
def split_kernel(
    q, pool, node_kv, table, prefix_lens, node_offsets, tree_mask,
    out, lse, part_out, part_lse,
    scale, heads, page_size, splits, rows_total,
    stride_qn, stride_qh, stride_page, stride_row, stride_node, stride_table, stride_mask,
    stride_on, stride_oh, stride_ln, stride_lh,
    LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    OWN_ROWS: tl.constexpr, SPLIT: tl.constexpr, BRANCH: tl.constexpr,
):  # fmt: skip
    """One (row block, range, request).  ``scale`` is softmax_scale * log2(e)."""
    split, request = tl.program_id(1), tl.program_id(2)
    prefix = tl.load(prefix_lens + request)
    first = tl.load(node_offsets + request)
    nodes = tl.load(node_offsets + request + 1) - first
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.program_id(0) * BLOCK_M >= nodes * heads:
        return
    live = row < nodes * heads
    node = tl.minimum(row // heads, nodes - 1)  # rows past the end repeat the last node
    head = row % heads
    table += request.to(tl.int64) * stride_table

    # This program's tiles [low, high), of the prefix's first and then the tree's.
    prefix_tiles = tl.cdiv(prefix, BLOCK_N)
    tiles = prefix_tiles + tl.cdiv(nodes, BLOCK_N)
    share = tl.cdiv(tiles, splits)
    low = split * share
    high = tl.minimum(low + share, tiles)

    c = tl.arange(0, BLOCK_C)
    d = tl.arange(0, BLOCK_R)
    q_row = (first + node).to(tl.int64) * stride_qn + head.to(tl.int64) * stride_qh
    q_c = load_rows(q, q_row, c, LATENT, BLOCK_C)  # [BLOCK_M, BLOCK_C]
    q_r = load_rows(q + LATENT, q_row, d, ROPE, BLOCK_R)  # [BLOCK_M, BLOCK_R]
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)

    n = tl.arange(0, BLOCK_N)
    last = prefix - 1
    for tile in range(low, tl.minimum(high, prefix_tiles)):
        # Past the end, the last token is loaded again and its score dropped: no wild address.
        position = tl.minimum(tile * BLOCK_N + n, last)
        where = token_offsets(table, position, page_size, stride_page, stride_row)
        k_c = load_rows(pool, where, c, LATENT, BLOCK_C)  # [BLOCK_N, BLOCK_C]
        k_r = load_rows(pool + LATENT, where, d, ROPE, BLOCK_R)  # [BLOCK_N, BLOCK_R]
        # The branch is always taken (see above).  The small dot comes first, since it is the one
        # whose result still reaches another dot.
        if not BRANCH or tile < high:
            scores = tl.dot(q_r, tl.trans(k_r), input_precision="ieee")
            scores = tl.dot(q_c, tl.trans(k_c), scores, input_precision="ieee") * scale
            scores = tl.where((tile * BLOCK_N + n < prefix)[None, :], scores, float("-inf"))
            weights, fade, highest, total = softmax_step(scores, highest, total)
            p = weights.to(k_c.dtype)
        else:
            fade = total
            p = (total[:, None] + n[None, :]).to(k_c.dtype)
        acc = tl.dot(p, k_c, acc * fade[:, None], input_precision="ieee")

    mask_row = (first + node).to(tl.int64) * stride_mask
    # Two stages whatever the tile has: one would hold the keys twice, more need too much memory.
    for tile in tl.range(tl.maximum(low, prefix_tiles), high, num_stages=2):
        start = (tile - prefix_tiles) * BLOCK_N
        other = tl.minimum(start + n, nodes - 1)
        if OWN_ROWS:
            where = (first + other).to(tl.int64) * stride_node
            source = node_kv
        else:
            where = token_offsets(table, prefix + other, page_size, stride_page, stride_row)
            source = pool
        k_c = load_rows(source, where, c, LATENT, BLOCK_C)
        k_r = load_rows(source + LATENT, where, d, ROPE, BLOCK_R)
        scores = tl.dot(q_c, tl.trans(k_c), input_precision="ieee")
        scores = tl.dot(q_r, tl.trans(k_r), scores, input_precision="ieee") * scale
        seen = tree_visible(tree_mask, mask_row, start, n) & (start + n < nodes)[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        weights, fade, highest, total = softmax_step(scores, highest, total)
        acc = tl.dot(weights.to(k_c.dtype), k_c, acc * fade[:, None], input_precision="ieee")

    some = total != 0.0  # a NaN is not nothing: it must come out
    acc = tl.where(some[:, None], acc / tl.where(some, total, 1.0)[:, None], 0.0)
    log_sum = tl.where(some, highest + tl.log2(tl.where(some, total, 1.0)), float("-inf"))  # base 2
    keep = live[:, None] & (c < LATENT)[None, :]
    if SPLIT:
        slot = split.to(tl.int64) * rows_total + first * heads + row
        tl.store(part_lse + slot, log_sum, mask=live)
        tl.store(part_out + slot[:, None] * LATENT + c[None, :], acc, mask=keep)
    else:
        to = (first + node).to(tl.int64) * stride_on + head.to(tl.int64) * stride_oh
        tl.store(out + to[:, None] + c[None, :], acc.to(out.dtype.element_ty), mask=keep)
        to = (first + node).to(tl.int64) * stride_ln + head.to(tl.int64) * stride_lh
        tl.store(lse + to, log_sum / 1.4426950408889634, mask=live)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def merge_kernel(
    prefix_lens, node_offsets, out, lse, part_out, part_lse,
    heads, splits, rows_total, stride_on, stride_oh, stride_ln, stride_lh,
    LATENT: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, RANGES: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One (row block of one request, DIMS of its output): the ranges' sum, each by its exp(lse).

    SPLITS is a power of two of at least ``splits``; RANGES of them are loaded at a time.
    """
    request = tl.program_id(2)
    prefix = tl.load(prefix_lens + request)
    first = tl.load(node_offsets + request)
    nodes = tl.load(node_offsets + request + 1) - first
    if tl.program_id(0) * ROWS >= nodes * heads:
        return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < nodes * heads
    tiles = tl.cdiv(prefix, BLOCK_N) + tl.cdiv(nodes, BLOCK_N)
    used = tl.cdiv(tiles, tl.cdiv(tiles, splits))  # the ranges with a tile; other parts are unset
    slot = first.to(tl.int64) * heads + tl.minimum(row, nodes * heads - 1)  # [ROWS]

    # NOTE: names of their own: the loop's have another shape, and Triton wants one type a name.
    every = tl.arange(0, SPLITS)
    where = every.to(tl.int64)[None, :] * rows_total + slot[:, None]
    parts = tl.load(part_lse + where, mask=(every < used)[None, :], other=float("-inf"))
    peak = tl.max(parts, 1)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    whole = tl.sum(tl.exp2(parts - base[:, None]), 1)
    some = whole != 0.0
    whole = tl.where(some, whole, 1.0)

    c = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    for start in range(0, used, RANGES):
        split = start + tl.arange(0, RANGES)
        inside = (split < used)[None, :]
        at = split.to(tl.int64)[None, :] * rows_total + slot[:, None]  # [ROWS, RANGES]
        part = tl.load(part_lse + at, mask=inside, other=float("-inf"))
        values = tl.load(
            part_out + at[:, :, None] * LATENT + c[None, None, :],
            mask=inside[:, :, None] & (c < LATENT)[None, None, :],
            other=0.0,
        )
        acc += tl.sum(tl.exp2(part - base[:, None])[:, :, None] * values, 1)
    acc = acc / whole[:, None]

    node, head = (first + row // heads).to(tl.int64), (row % heads).to(tl.int64)
    to = out + (node * stride_on + head * stride_oh)[:, None] + c[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=live[:, None] & (c < LATENT)[None, :])
    if tl.program_id(1) == 0:
        log_sum = tl.where(some, peak + tl.log2(whole), float("-inf")) / 1.4426950408889634
        tl.store(lse + node * stride_ln + head * stride_lh, log_sum, mask=live)


@dataclass(eq=False)
class SplitPlan:
    """Grid and workspace: ``part_out`` [S, N * H, D_c] and ``part_lse`` [S, N * H] float32."""

    tile: Tile
    splits: int
    row_blocks: int
    part_out: torch.Tensor
    part_lse: torch.Tensor


class TritonSplit:
    """See the module's first lines."""

    def __init__(self) -> None:
        self.capabilities = capabilities()

    def unsupported(self, batch: VerifyBatch) -> str | None:
        return refuses(self.capabilities, batch)

    def plan(self, batch: VerifyBatch) -> SplitPlan:
        heads = batch.geometry.heads
        tile = pick(TILES, architecture(batch.device))
        row_blocks = max(1, triton.cdiv(batch.max_nodes * heads, tile.block_m))
        tiles = triton.cdiv(batch.max_prefix_len, tile.block_n)
        tiles += triton.cdiv(batch.max_nodes, tile.block_n)
        splits = max(1, min(_most_splits(batch, row_blocks), tiles // LEAST_TILES))
        slots = splits * batch.rows * heads if splits > 1 else 1
        single: Any = {"dtype": torch.float32, "device": batch.device}
        return SplitPlan(
            tile,
            splits,
            row_blocks,
            torch.empty(slots, batch.geometry.latent_dim, **single),
            torch.empty(slots, **single),
        )

    def run(
        self, batch: VerifyBatch, plan: SplitPlan, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        geometry, tile = batch.geometry, plan.tile
        own_rows = batch.node_kv is not None
        node_kv: Any = batch.node_kv if own_rows else batch.q
        rows_total = batch.rows * geometry.heads
        split_kernel[(plan.row_blocks, plan.splits, batch.requests)](
            batch.q, batch.kv_pool, node_kv, batch.page_table, batch.prefix_lens,
            batch.node_offsets, batch.tree_mask, out, lse, plan.part_out, plan.part_lse,
            batch.softmax_scale * LOG2_E, geometry.heads, batch.page_size, plan.splits, rows_total,
            batch.q.stride(0), batch.q.stride(1), batch.kv_pool.stride(0), batch.kv_pool.stride(1),
            node_kv.stride(0), batch.page_table.stride(0), batch.tree_mask.stride(0),
            out.stride(0), out.stride(1), lse.stride(0), lse.stride(1),
            LATENT=geometry.latent_dim, ROPE=geometry.rope_dim,
            BLOCK_C=padded(geometry.latent_dim), BLOCK_R=padded(geometry.rope_dim),
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            OWN_ROWS=own_rows, SPLIT=plan.splits > 1, BRANCH=tile.branch,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if plan.splits > 1:
            merge = INTERPRETER_MERGE if INTERPRETED else MERGE
            ranges = max(16, triton.next_power_of_2(plan.splits))
            grid = (
                max(1, triton.cdiv(batch.max_nodes * geometry.heads, merge.rows)),
                triton.cdiv(geometry.latent_dim, merge.dims),
                batch.requests,
            )
            merge_kernel[grid](
                batch.prefix_lens, batch.node_offsets, out, lse, plan.part_out, plan.part_lse,
                geometry.heads, plan.splits, rows_total,
                out.stride(0), out.stride(1), lse.stride(0), lse.stride(1),
                LATENT=geometry.latent_dim, BLOCK_N=tile.block_n,
                SPLITS=ranges, ROWS=merge.rows, RANGES=min(ranges, merge.ranges),
                DIMS=merge.dims, num_warps=merge.warps,
            )  # fmt: skip


def _most_splits(batch: VerifyBatch, row_blocks: int) -> int:
    """Ranges that fill the GPU: one program a multiprocessor, since a tile takes its memory."""
    if batch.device.type != "cuda":
        return INTERPRETER_SPLITS
    at_once = torch.cuda.get_device_properties(batch.device).multi_processor_count
    return at_once // (row_blocks * batch.requests)
