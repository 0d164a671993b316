"""One forward pass of a fixed shape: load the parts in place, then run.

``run`` alone is what a CUDA graph captures; everywhere else the same code runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verify_attn.engine.inputs import Inputs, Shape
from verify_attn.engine.model import Model
from verify_attn.engine.step import Output, Part
from verify_attn.kernels.base import VerifyKernel
from verify_attn.problem import VerifyBatch


@dataclass(frozen=True)
class Machine:
    """What a pass runs on.

    ``pool``   [layers, pages + 1, page_size, D_c + D_r]; the last page is scratch: padding rows
               are written there, and no page table names it
    ``taps``   layers whose hidden states a drafter gets
    """

    model: Model
    kernel: VerifyKernel
    pool: torch.Tensor
    taps: tuple[int, ...] = ()

    @property
    def page_size(self) -> int:
        """Rows a page."""
        return int(self.pool.shape[2])

    @property
    def scratch_page(self) -> int:
        """The last."""
        return int(self.pool.shape[1]) - 1


class StaticStep:
    """Buffers, a kernel's plan and the pass over them.

    Every layer shares all of a `VerifyBatch` but the pool and the queries, and so the plan, which
    is for shape and bounds; ``prepare`` runs once a load.  Rows do not mix anywhere in the model,
    so what padding rows compute stays in their own (and in the scratch page).
    """

    def __init__(self, machine: Machine, shape: Shape, *, planned: bool = True) -> None:
        self.machine = machine
        self.shape = shape
        model, pool = machine.model, machine.pool
        geometry = model.config.geometry
        scratch = machine.scratch_page * machine.page_size
        self.inputs = Inputs(shape, machine.page_size, scratch, model.device)
        q = torch.zeros(
            shape.rows, geometry.heads, geometry.qk_dim, dtype=model.dtype, device=model.device
        )
        self.batch = VerifyBatch(
            geometry=geometry, q=q, kv_pool=pool[0], page_table=self.inputs.page_table,
            prefix_lens=self.inputs.prefix_lens, node_offsets=self.inputs.node_offsets,
            tree_mask=self.inputs.tree_mask, softmax_scale=geometry.softmax_scale,
            max_prefix_len=shape.max_prefix_len, max_nodes=shape.max_nodes,
            prefix_lens_host=self.inputs.prefix_lens_host,
            node_offsets_host=self.inputs.node_offsets_host,
        )  # fmt: skip
        out, lse = self.batch.outputs()
        self._out, self._lse = out.zero_(), lse.zero_()  # padding rows stay finite
        self._plan = machine.kernel.plan(self.batch) if planned else None

    def load(self, parts: Sequence[Part]) -> None:
        """Write the parts into the buffers and let the kernel prepare; outside any graph."""
        self.inputs.load(parts)
        # A new value each time: a batch reads its host copies once.
        self.batch = self.batch.with_fields(
            prefix_lens_host=self.inputs.prefix_lens_host,
            node_offsets_host=self.inputs.node_offsets_host,
        )
        self.machine.kernel.prepare(self.batch, self._plan)

    def run(self) -> Output:
        """The model over what was loaded, padding rows included; see `Output`."""
        model, inputs = self.machine.model, self.inputs
        hidden, features = model.forward(
            inputs.tokens, inputs.depths, self._attend, self.machine.taps
        )
        if not self.shape.every:
            hidden = hidden[inputs.node_offsets[1:].long() - 1]
        return Output(model.logits(hidden), features)

    def attend_all(self) -> None:
        """The kernel's calls of all layers and nothing else, on the queries in ``batch.q``."""
        for layer in range(self.machine.model.config.layers):
            self._kernel(layer, self.batch.q)

    def _attend(self, layer: int, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.machine.pool[layer].flatten(0, 1).index_copy_(0, self.inputs.slots, rows)
        return self._kernel(layer, q)

    def _kernel(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        batch = self.batch.with_fields(q=q, kv_pool=self.machine.pool[layer])
        self.machine.kernel.run(batch, self._plan, self._out, self._lse)
        return self._out
