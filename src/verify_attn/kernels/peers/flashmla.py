"""FlashMLA's dense decoding on Hopper, out of the package ``sgl-flash-mla`` (1.0.0).

`FlashMla`      16-bit rows
`FlashMlaFp8`   fp8 rows; q is rounded to fp8 too, without a scale, and products are taken in fp8

It knows no tree mask: chains alone, and every request has as many nodes as the bound says, since
q is one dense tensor.  Its outputs are its own, so ``run`` allocates, and copies them.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch

from verify_attn.kernels.base import Capabilities, KernelError
from verify_attn.kernels.peers.limits import LATENT, outside_limits
from verify_attn.problem import VerifyBatch

PAGE = 64
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Planned:
    """Filled in place by ``prepare``; the schedule's tensors are made by the first one."""

    schedule: Any  # FlashMLASchedMeta
    lengths: torch.Tensor  # [R] int32, prefix and nodes
    q_fp8: torch.Tensor | None  # [R, n, H, D]
    descale_q: torch.Tensor  # [1] float32
    descale_k: torch.Tensor  # [1] float32


class FlashMla:
    """``flash_mla_with_kvcache`` without indices; ``module`` stands in for `flash_mla`."""

    fp8 = False

    def __init__(self, module: Any = None) -> None:
        self.module = module or importlib.import_module("flash_mla")
        if "use_legacy" not in inspect.signature(self.module.flash_mla_with_kvcache).parameters:
            raise KernelError(
                "this flash_mla has no use_legacy, through which sgl-flash-mla reaches its dense "
                "kernels: pip install --no-deps sgl-flash-mla==1.0.0"
            )
        self.capabilities = Capabilities(
            architectures=((9, 0),),
            dtypes=(torch.bfloat16,) if self.fp8 else (torch.float16, torch.bfloat16),
            kv_dtypes=(FP8,) if self.fp8 else None,
            page_sizes=(PAGE,),
            tree_mask=False,
            capture=True,
            products=FP8 if self.fp8 else None,
        )

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Other widths, nodes outside the pool, unequal requests, unaligned rows."""
        # An fp8 q is a copy of its own.
        if reason := outside_limits(batch, ("kv_pool",) if self.fp8 else ("q", "kv_pool")):
            return reason
        nodes = [batch.nodes(r) for r in range(batch.requests)]
        if set(nodes) != {batch.max_nodes}:
            return (
                f"takes requests of as many nodes as max_nodes, here {batch.max_nodes}, and no "
                f"others; the requests have {min(nodes)} to {max(nodes)}"
            )
        return None

    def plan(self, batch: VerifyBatch) -> Planned:
        device, requests = batch.device, batch.requests
        shape = (requests, batch.max_nodes, batch.geometry.heads, batch.geometry.qk_dim)
        return Planned(
            schedule=self.module.get_mla_metadata()[0],
            lengths=torch.zeros(requests, dtype=torch.int32, device=device),
            q_fp8=torch.empty(shape, dtype=FP8, device=device) if self.fp8 else None,
            descale_q=torch.ones(1, device=device),
            descale_k=torch.ones(1, device=device),
        )

    def prepare(self, batch: VerifyBatch, plan: Planned) -> None:
        torch.add(batch.prefix_lens, batch.max_nodes, out=plan.lengths)
        plan.descale_k.fill_(batch.kv_scale)
        tiles, splits = self.module.get_mla_decoding_metadata(
            plan.lengths,
            batch.max_nodes * batch.geometry.heads,
            1,  # KV heads
            batch.geometry.heads,
            is_fp8_kvcache=self.fp8,
            use_legacy=True,
        )
        schedule = plan.schedule
        if schedule.tile_scheduler_metadata is None:
            schedule.tile_scheduler_metadata, schedule.num_splits = tiles, splits
        else:  # in place: a captured run reads the first ones
            schedule.tile_scheduler_metadata.copy_(tiles)
            schedule.num_splits.copy_(splits)

    def run(self, batch: VerifyBatch, plan: Planned, out: torch.Tensor, lse: torch.Tensor) -> None:
        shape = (batch.requests, batch.max_nodes, batch.geometry.heads)
        live = batch.requests * batch.max_nodes
        q = batch.q[:live].view(*shape, -1)
        if plan.q_fp8 is not None:
            q = plan.q_fp8.copy_(q)
        o, log_sums = self.module.flash_mla_with_kvcache(
            q,
            batch.kv_pool[:, :, None],  # one KV head
            batch.page_table,
            plan.lengths,
            LATENT,
            plan.schedule,
            softmax_scale=batch.softmax_scale,
            causal=True,  # from the bottom right: node i sees the prefix and nodes 0 to i
            is_fp8_kvcache=self.fp8,
            use_legacy=True,
            descale_q=plan.descale_q if self.fp8 else None,
            descale_k=plan.descale_k if self.fp8 else None,
        )
        out[:live].view(*shape, -1).copy_(o)
        # [R, H, n], natural log; +inf for a row that sees nothing, but a chain's see themselves.
        lse[:live].view(shape).copy_(log_sums.transpose(1, 2))


class FlashMlaFp8(FlashMla):
    """The same with an fp8 pool."""

    fp8 = True
