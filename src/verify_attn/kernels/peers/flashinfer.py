"""FlashInfer's paged MLA attention (``flashinfer-python`` 0.5.3), backends fa2 and fa3.

It knows no tree mask: chains alone, as causal attention.  Requests may have different node counts
and pages any size; the latent and rope parts come as two views of the pool.  It compiles itself
with nvcc at the first ``prepare``, once per backend and dtype.

A captured run is not right once the node counts change: the size of its grid follows from the mean
of them (64 rows of heads x nodes), and only from there on may it be replayed.
"""

from __future__ import annotations

import importlib
import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from verify_attn.kernels.base import Capabilities
from verify_attn.kernels.peers.limits import LATENT, ROPE, outside_limits
from verify_attn.problem import VerifyBatch

WORKSPACE_BYTES = 128 << 20  # as its documentation recommends
# Its plan holds this many pieces of work and checks no bound; a few hundred are for the splits.
MOST_TILES = 16_384 - 512
FROM_AMPERE = ((8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))


@dataclass(frozen=True)
class Planned:
    """FlashInfer's wrapper, which owns the schedule and these buffers."""

    wrapper: Any
    kv_indices: torch.Tensor  # [R * pages of the longest request] int32


class FlashInfer:
    """`BatchMLAPagedAttentionWrapper` of one backend; ``module`` stands in for `flashinfer.mla`."""

    def __init__(
        self, backend: str, architectures: tuple[tuple[int, int], ...], module: Any = None
    ) -> None:
        self.backend = backend
        module = module or importlib.import_module("flashinfer.mla")
        self.wrapper = module.BatchMLAPagedAttentionWrapper
        # Its LSE is base 2; newer versions give the natural one if asked.
        self.natural = "return_lse_base_on_e" in inspect.signature(self.wrapper.run).parameters
        self.capabilities = Capabilities(
            architectures=architectures, dtypes=(torch.float16, torch.bfloat16), tree_mask=False
        )

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Other widths, nodes outside the pool, unaligned rows, more work than its plan holds."""
        if reason := outside_limits(batch):
            return reason
        tiles = self._tiles(batch)
        if tiles > MOST_TILES:
            return f"the batch has {tiles} tiles of rows; its plan has room for {MOST_TILES}"
        return None

    @staticmethod
    def _tiles(batch: VerifyBatch) -> int:
        rows = [batch.nodes(r) * batch.geometry.heads for r in range(batch.requests)]
        tile = 128 if sum(rows) // batch.requests > 64 else 64
        return sum(-(-r // tile) for r in rows)

    def plan(self, batch: VerifyBatch) -> Planned:
        requests, page = batch.requests, batch.page_size
        pages = -(-(batch.max_prefix_len + batch.max_nodes) // page)

        def ints(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=batch.device)

        indices = ints(requests * pages)
        wrapper = self.wrapper(
            torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=batch.device),
            use_cuda_graph=True,  # keeps to the buffers given here
            qo_indptr=ints(requests + 1),
            kv_indptr=ints(requests + 1),
            kv_indices=indices,
            kv_len_arr=ints(requests),
            backend=self.backend,
        )
        return Planned(wrapper, indices)

    def prepare(self, batch: VerifyBatch, plan: Planned) -> None:
        lengths = [p + batch.nodes(r) for r, p in enumerate(batch.prefix_list)]
        pages = [-(-length // batch.page_size) for length in lengths]
        used = [batch.page_table[r, :count] for r, count in enumerate(pages)]
        plan.wrapper.plan(
            _host(batch.offset_list),
            _host([sum(pages[:r]) for r in range(len(pages) + 1)]),
            torch.cat(used),
            _host(lengths),
            batch.geometry.heads,
            LATENT,
            ROPE,
            batch.page_size,
            True,  # causal, from the bottom right: node i sees the prefix and nodes 0 to i
            batch.softmax_scale,
            batch.q.dtype,
            batch.kv_pool.dtype,
        )

    def run(self, batch: VerifyBatch, plan: Planned, out: torch.Tensor, lse: torch.Tensor) -> None:
        more = {"return_lse_base_on_e": True} if self.natural else {}
        plan.wrapper.run(
            batch.q[..., :LATENT],
            batch.q[..., LATENT:],
            batch.latent_pool,
            batch.rope_pool,
            out=out,
            lse=lse,
            return_lse=True,
            **more,
        )
        if not self.natural:
            lse.mul_(math.log(2.0))


class Fa2(FlashInfer):
    """The backend for every GPU since Ampere."""

    def __init__(self, module: Any = None) -> None:
        super().__init__("fa2", FROM_AMPERE, module)
        # It sums weights rounded to q's dtype, so its LSE is good to some thousandths only.
        self.capabilities = replace(self.capabilities, lse=False)


class Fa3(FlashInfer):
    """The backend for Hopper."""

    def __init__(self, module: Any = None) -> None:
        super().__init__("fa3", ((9, 0),), module)


def _host(values: list[int]) -> torch.Tensor:
    """On the CPU, where its planner reads them; a device tensor would make it wait."""
    return torch.tensor(values, dtype=torch.int32)
