"""PyTorch's own attention over gathered KV, any tree: what one writes with no kernel at hand.

`Sdpa`   ``scaled_dot_product_attention`` with the mask of prefix and tree
`Flex`   FlexAttention with a mask function; compiled on a GPU, as plain PyTorch on a CPU

Rows are gathered out of the pages in ``run``, since that is part of the price; then every request
is one call.  Both allocate their outputs.  Neither is captured: lengths are in the shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo as dynamo
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)
from torch.nn.functional import scaled_dot_product_attention

from verify_attn.kernels import adapters
from verify_attn.kernels.base import Capabilities
from verify_attn.problem import VerifyBatch

# Rows of 576 numbers are padded to 1,024 on chip; FlexAttention's own tiles for such widths ask
# for more shared memory than a GPU has.  Its kernel for short queries holds all heads' nodes at
# once, which does not fit either.
TILES = {
    "BLOCK_M": 32,
    "BLOCK_N": 32,
    "num_stages": 1,
    "num_warps": 8,
    "FORCE_USE_FLEX_ATTENTION": True,
}
RECOMPILE_LIMIT = 64
TREE_SIDE = 512  # trees come in squares of multiples of it, so that their shape compiles once


@dataclass
class Planned:
    """``slots`` [R * (max_prefix_len + max_nodes)] int64 and ``rows`` [same, D], filled in place;
    ``ends`` [R + 1] where each request's begin, and ``masks``, one a request, of this step."""

    slots: torch.Tensor
    rows: torch.Tensor
    ends: list[int] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)


class Gathered(ABC):
    """The gathering; a subclass makes a request's mask and calls the attention."""

    capabilities: Capabilities

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Pools without a view by slots, from which rows are gathered."""
        try:
            adapters.slot_view(batch)
        except adapters.LayoutError as error:
            return str(error)
        return None

    def plan(self, batch: VerifyBatch) -> Planned:
        tokens = batch.requests * (batch.max_prefix_len + batch.max_nodes)
        slots = torch.zeros(tokens, dtype=torch.int64, device=batch.device)
        return Planned(slots, batch.q.new_empty(tokens, batch.geometry.qk_dim))

    def prepare(self, batch: VerifyBatch, plan: Planned) -> None:
        prefix = torch.split(adapters.kv_indices(batch)[1], batch.prefix_list)
        counts = [batch.nodes(r) for r in range(batch.requests)]
        if batch.node_kv is None:
            nodes = torch.split(adapters.node_slots(batch), counts)
        else:  # any slot: `gather` puts other rows over these
            nodes = tuple(prefix[r].new_zeros(count) for r, count in enumerate(counts))
        slots = torch.cat([part for pair in zip(prefix, nodes, strict=True) for part in pair])
        plan.slots[: len(slots)].copy_(slots)
        lengths = (p + n for p, n in zip(batch.prefix_list, counts, strict=True))
        plan.ends = [0, *accumulate(lengths)]
        plan.masks = self.masks(batch)

    @abstractmethod
    def masks(self, batch: VerifyBatch) -> list[Any]:
        """Of each request, as `attend` takes it."""

    def gather(self, batch: VerifyBatch, plan: Planned) -> torch.Tensor:
        """[tokens of all requests, D], nodes after their prefix."""
        used = plan.ends[-1]
        rows = plan.rows[:used]
        torch.index_select(adapters.slot_view(batch), 0, plan.slots[:used], out=rows)
        if batch.node_kv is not None:
            for (first, last), end in zip(pairwise(batch.offset_list), plan.ends[1:], strict=True):
                rows[end - (last - first) : end] = batch.node_kv[first:last]
        return rows

    def run(self, batch: VerifyBatch, plan: Planned, out: torch.Tensor, lse: torch.Tensor) -> None:
        rows, latent = self.gather(batch, plan), batch.geometry.latent_dim
        for r, (first, last) in enumerate(pairwise(batch.offset_list)):
            if first == last:
                continue
            k = rows[plan.ends[r] : plan.ends[r + 1]][None, None]  # [1, 1, tokens, D]
            q = batch.q[first:last].transpose(0, 1)[None]  # [1, H, n, D]
            o, log_sums = self.attend(q, k, k[..., :latent], plan.masks[r], batch.softmax_scale)
            out[first:last] = o[0].transpose(0, 1)
            if log_sums is not None:
                lse[first:last] = log_sums[0].transpose(0, 1)

    @abstractmethod
    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Out [1, H, n, D_c] and, where it has one, the LSE [1, H, n]."""


class Sdpa(Gathered):
    """`scaled_dot_product_attention`, whichever backend PyTorch picks."""

    capabilities = Capabilities(
        dtypes=(torch.float16, torch.bfloat16, torch.float32), lse=False, deterministic=False
    )

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Float32 on a GPU: with 33 and 65 nodes and a mask its last row was wrong on an H200."""
        if batch.device.type == "cuda" and batch.q.dtype == torch.float32:
            return "float32 with a mask goes wrong in PyTorch's fused kernels on a GPU"
        return super().unsupported(batch)

    def masks(self, batch: VerifyBatch) -> list[torch.Tensor]:
        flat, ends = adapters.full_mask(batch)
        blocks = [flat[a:b] for a, b in pairwise(ends.tolist())]
        return [b.view(batch.nodes(r), -1) if len(b) else b for r, b in enumerate(blocks)]

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float
    ) -> tuple[torch.Tensor, None]:
        heads, nodes = q.shape[1:3]
        if alone := q.device.type == "cuda" and nodes % 32 == 1:
            # PyTorch's fused kernel with a mask computes a last row that is alone in its tile of 32
            # wrongly (2.11 on an H200, bf16 too): so it gets company.
            q = torch.cat((q, q[:, :, -1:]), dim=2)
            mask = torch.cat((mask, mask[-1:]))
        out = scaled_dot_product_attention(
            q, k.expand(-1, heads, -1, -1), v.expand(-1, heads, -1, -1), attn_mask=mask, scale=scale
        )
        return out[:, :, :nodes] if alone else out, None


class Flex(Gathered):
    """`flex_attention`; the KV head is shared by all query heads."""

    capabilities = Capabilities(dtypes=(torch.float16, torch.bfloat16, torch.float32))

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Float32 on a GPU: its tiles would be twice as large."""
        if batch.device.type == "cuda" and batch.q.dtype == torch.float32:
            return "float32 rows of 576 do not fit into shared memory"
        return super().unsupported(batch)

    def masks(self, batch: VerifyBatch) -> list[BlockMask | None]:
        flat, ends = adapters.tree_only_mask(batch)
        made: list[BlockMask | None] = []
        for r, (begin, end) in enumerate(pairwise(ends.tolist())):
            n, prefix = batch.nodes(r), batch.prefix_list[r]
            if n == 0:
                made.append(None)
                continue
            side = -(-n // TREE_SIDE) * TREE_SIDE
            tree = flat.new_zeros(side, side)
            tree[:n, :n] = flat[begin:end].view(n, n)
            rule = _rule(tree, prefix)
            made.append(create_block_mask(rule, None, None, n, prefix + n, device=batch.device))
        return made

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        options: dict[str, Any] = {
            "block_mask": mask, "scale": scale, "enable_gqa": True,
            "return_aux": AuxRequest(lse=True),
        }  # fmt: skip
        if q.device.type == "cuda":
            # Lengths are dynamic, but not whether there is one node or one block of tokens: some
            # shapes are compiled anew, and at the limit of those, 8, it would raise.
            with dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
                out, more = _compiled()(q, k, v, kernel_options=dict(TILES), **options)
        else:  # even uncompiled it would be traced, which takes a second a shape
            with patch.object(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True):
                out, more = flex_attention(q, k, v, **options)
        return out, more.lse


@cache
def _compiled() -> Callable[..., Any]:
    """As one graph or not at all: it must not fall back to plain PyTorch in silence."""
    return torch.compile(flex_attention, fullgraph=True)


def _rule(tree: torch.Tensor, prefix_len: int) -> Callable[..., torch.Tensor]:
    """FlexAttention's mask function: the whole prefix, and of the tree what the mask shows.

    The length is a tensor, so that another one compiles nothing anew.
    """
    prefix = torch.tensor(prefix_len, device=tree.device)

    def sees(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (kv < prefix) | tree[q, (kv - prefix).clamp(min=0)]

    return sees
