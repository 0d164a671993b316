"""Kernels that are wrong only where a case is unusual: at one size, one stride, one kind of value.

The mistakes are those of real kernels; what they have in common is that most cases pass them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.kernels.hostile import Part, attend, mistaken, mistaken_answer, parts, right, store
from verify_attn.kernels.base import Capabilities, declare
from verify_attn.problem import VerifyBatch


def _bits(words: torch.Tensor, nodes: int) -> torch.Tensor:
    number = torch.arange(nodes, device=words.device)
    return ((words[:, number // 64] >> (number % 64)) & 1).bool()


# -- sizes ---------------------------------------------------------------------------------------


def _nodes_up_to(limit: int) -> Callable[[Part], None]:
    def change(part: Part) -> None:
        number = torch.arange(len(part.visible), device=part.visible.device)
        part.visible = part.visible & (number < limit)

    return change


def _prefix_up_to_2048(part: Part) -> None:
    part.prefix = part.prefix[:2048]


def _full_last_page(part: Part) -> None:
    """The rows of the last page are prefix_len % page_size: none where it is full."""
    batch, p = part.batch, len(part.prefix)
    if batch.page_size >= 16 and p and p % batch.page_size == 0:
        part.prefix = part.prefix[: p - batch.page_size]


def _tree_ends_with_page(part: Part) -> None:
    batch = part.batch
    ends = len(part.keys) % batch.page_size == 0
    if batch.page_size >= 16 and batch.node_kv is None and ends:
        part.prefix = part.prefix[1:]


def _late_requests(part: Part) -> None:
    if part.request >= 8:
        part.prefix = part.prefix[1:]


def _eight_heads(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    return torch.cat([out[:, :8], torch.zeros_like(out[:, 8:])], 1), lse


def _shared_means_all(part: Part) -> None:
    """Requests whose first page is the same are taken to share as much as both have."""
    table, first = part.batch.page_table, parts(part.batch)[0].prefix
    if len(part.prefix) and len(first) and table[part.request, 0] == table[0, 0]:
        n = min(len(first), len(part.prefix))
        part.prefix = torch.cat([first[:n], part.prefix[n:]])


def _padding_in_tree(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    padding = ~part.visible.any(1)
    nan = padding & ~padding.all()
    return torch.where(nan[:, None, None], torch.nan, out), lse


# -- strides and bounds --------------------------------------------------------------------------


def _mask_stride(part: Part) -> None:
    """Rows of the mask are taken to be as wide as the tree needs."""
    mask, nodes = part.batch.tree_mask, len(part.visible)
    words = -(-part.batch.max_nodes // 64)
    start = mask.storage_offset() + part.batch.offset_list[part.request] * words
    part.visible = _bits(mask.as_strided((nodes, words), (words, 1), start), nodes)


def _table_stride(part: Part) -> None:
    """Rows of the page table are taken to follow each other."""
    batch, wide = part.batch, part.batch.page_table.shape[1]
    start = batch.page_table.storage_offset() + part.request * wide
    table = batch.page_table.as_strided((wide,), (1,), start)
    position = torch.arange(len(part.prefix), device=batch.device)
    page = table[position // batch.page_size].long().clamp(0, len(batch.kv_pool) - 1)
    part.prefix = batch.kv_pool[page, position % batch.page_size].float()


def _node_kv_stride(part: Part) -> None:
    given, wide = part.batch.node_kv, part.batch.geometry.qk_dim
    if given is not None:
        start = given.storage_offset() + part.batch.offset_list[part.request] * wide
        part.nodes = given.as_strided((len(part.nodes), wide), (wide, 1), start).float()


def _q_stride(part: Part) -> None:
    q, wide = part.batch.q, part.batch.geometry.qk_dim
    row = part.batch.geometry.heads * wide
    start = q.storage_offset() + part.batch.offset_list[part.request] * row
    part.q = q.as_strided(part.q.shape, (row, wide, 1), start).float()


def _tight_max_nodes(part: Part) -> None:
    """max_nodes is taken to be what the largest request has."""
    batch = part.batch
    if batch.max_nodes > max(batch.nodes(r) for r in range(batch.requests)):
        part.prefix = part.prefix[1:]


@declare(deterministic=True)
def needs_host_copies(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    assert batch.prefix_lens_host is not None
    right(batch, out, lse)


@declare(deterministic=True)
def writes_past_out(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Stores a whole tile where the last is not full."""
    right(batch, out, lse)
    out.as_strided((64,), (1,), out.storage_offset() + out.numel()).zero_()


# -- values and state ----------------------------------------------------------------------------


def _max_from_zero(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    """The running maximum starts at 0 instead of -inf."""
    if not len(part.keys):
        return out, lse
    scores = part.scale * torch.einsum("nhd,td->nht", part.q, part.keys)
    scores = scores.masked_fill(~part.seen[:, None], -torch.inf)
    peak = scores.amax(-1, keepdim=True).clamp(min=0)
    p = torch.exp(scores - peak)
    total = p.sum(-1, keepdim=True)
    values = torch.einsum("nht,td->nhd", p, part.keys[:, : part.batch.geometry.latent_dim])
    return torch.where(total > 0, values / total, 0.0), (total.log() + peak)[..., 0]


class StaleMask:
    """Takes the masks once, when it plans, where there is one request."""

    capabilities = Capabilities(deterministic=True)

    def plan(self, batch: VerifyBatch) -> list[torch.Tensor]:
        return [part.visible for part in parts(batch)]

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        for part in parts(batch):
            n = len(part.visible)
            if batch.requests == 1 and len(plan[0]) >= n:
                part.visible = plan[0][:n, :n]
            store(part, attend(part), out, lse)


class OncePerPlan:
    """Answers a second run of a plan with what the first one gave."""

    capabilities = Capabilities(deterministic=True)

    def plan(self, batch: VerifyBatch) -> list[Any]:
        return []

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        right(batch, out, lse)
        plan.append((out.clone(), lse.clone()))
        out.copy_(plan[0][0])
        lse.copy_(plan[0][1])


# name: (kernel, the check that must catch it, words of its likely reason)
RARE: dict[str, tuple[Any, str, str]] = {
    "nodes from 128 on unseen": (mistaken(_nodes_up_to(128)), "oracle", ""),
    "nodes from 256 on unseen": (mistaken(_nodes_up_to(256)), "oracle", ""),
    "prefix cut at 2048": (mistaken(_prefix_up_to_2048), "oracle", ""),
    "full last page lost": (mistaken(_full_last_page), "oracle", ""),
    "tree ends with a page": (mistaken(_tree_ends_with_page), "oracle", ""),
    "requests from 8 on": (mistaken(_late_requests), "oracle", "first token|prefix|split"),
    "heads from 8 on": (mistaken_answer(_eight_heads), "oracle", ""),
    "one shared page means all": (mistaken(_shared_means_all), "oracle", ""),
    "padding row within a tree": (mistaken_answer(_padding_in_tree), "oracle", "NaN"),
    "mask stride": (mistaken(_mask_stride), "oracle", "strides of tree_mask"),
    "page table stride": (mistaken(_table_stride), "oracle", ""),
    "node_kv stride": (mistaken(_node_kv_stride), "oracle", "strides of node_kv"),
    "q stride": (mistaken(_q_stride), "oracle", "strides of q"),
    "max_nodes taken as tight": (mistaken(_tight_max_nodes), "oracle", ""),
    "host copies needed": (needs_host_copies, "oracle", "AssertionError"),
    "writes past the end of out": (writes_past_out, "oracle", "past the end"),
    "maximum starts at 0": (mistaken_answer(_max_from_zero), "oracle", ""),
    "stale mask of one request": (StaleMask(), "plan-reuse", "earlier run"),
    "one answer a plan": (OncePerPlan(), "plan-reuse", "earlier run"),
}
