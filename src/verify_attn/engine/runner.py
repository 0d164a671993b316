"""A model with its KV pool on one device: what carries out a forward pass, a move, a fill."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from verify_attn.engine.graphs import REQUESTS, Buckets, why_no_graphs
from verify_attn.engine.inputs import Shape, pages_of
from verify_attn.engine.memory import GIB, row_bytes, tokens_that_fit
from verify_attn.engine.model import Model
from verify_attn.engine.static_step import Machine, StaticStep
from verify_attn.engine.step import Moves, Output, Part
from verify_attn.kernels.base import UnsupportedError, VerifyKernel
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.registry import load
from verify_attn.tree import MAX_NODES

MOST_PARTS = REQUESTS[-1]
KEPT_STEPS = 8  # shapes of eager passes whose buffers and plan are kept
FILL_ROWS = 16_384  # made at once; a seed's rows depend on it


class RunnerError(ValueError):
    """A runner that cannot be, or a pass it cannot do; the message has value, rule and remedy."""


class LocalRunner:
    """A `Runner` (`verify_attn.engine.step`) on one device.

    The pool is [layers, pages + 1, page_size, D_c + D_r] of the model's dtype, zero at first: a
    kernel may read rows that nobody wrote, under a mask.  Its last page is not the caller's.

    ``mode`` says how verify passes run: in CUDA graphs, or eagerly and why.
    """

    def __init__(
        self,
        model: Model,
        *,
        pages: int,
        page_size: int,
        kernel: VerifyKernel,
        taps: Sequence[int] = (),
        graphs: bool,
        tree_nodes: int | None = None,
        max_nodes: int = MAX_NODES,
        trees: bool = True,
        reserve_bytes: int | None = None,
    ) -> None:
        """Raises `RunnerError` for a pool that does not fit and for a kernel that cannot do it.

        ``graphs``         capture verify passes where that is possible; ``mode`` says
        ``tree_nodes``     the most nodes of a verify tree (budget + 1): what graphs are made for
        ``max_nodes``      the most nodes of one request in any pass, prefill chunks included
        ``trees``          False: only chains will come, so a kernel without tree mask will do
        ``reserve_bytes``  memory left free, see `verify_attn.engine.memory.tokens_that_fit`
        """
        if pages < 1 or page_size < 1:
            raise RunnerError(f"pages is {pages} and page_size {page_size}; both are at least 1")
        if not 1 <= max_nodes <= MAX_NODES:
            raise RunnerError(f"max_nodes is {max_nodes}; it lies in 1..{MAX_NODES}")
        if graphs and (tree_nodes is None or not 1 <= tree_nodes <= max_nodes):
            raise RunnerError(
                f"tree_nodes is {tree_nodes}; graphs are made for trees of up to that many nodes: "
                f"give the node budget + 1, at most max_nodes, {max_nodes}"
            )
        wrong = [tap for tap in taps if not 0 <= tap < model.config.layers]
        if wrong:
            raise RunnerError(f"taps has {wrong[0]}; layers are 0..{model.config.layers - 1}")
        self.config = model.config
        self.pages, self.page_size, self.max_nodes = pages, page_size, max_nodes
        self.context = min(model.config.max_positions, pages * page_size)
        self._require_kernel(model, kernel, trees)
        pool = _pool(model, pages, page_size, reserve_bytes)
        self.machine = Machine(model, kernel, pool, tuple(taps))
        self._steps: OrderedDict[Shape, StaticStep] = OrderedDict()
        self._buckets: Buckets | None = None
        reason = why_no_graphs(self.machine) if graphs else "graphs are off"
        self.mode = f"eager: {reason}"
        if reason is None and tree_nodes is not None:
            self._buckets = Buckets(self.machine, tree_nodes, self.context, captured=True)
            self.mode = (
                f"CUDA graphs for 1 to {MOST_PARTS} requests of up to {tree_nodes} nodes; "
                "prefill eager"
            )

    @property
    def device(self) -> torch.device:
        """Where the pool and the outputs are."""
        return self.machine.model.device

    @torch.no_grad()
    def forward(self, parts: Sequence[Part], *, every: bool) -> Output:
        """Write the nodes' rows into the pool and attend; see `Runner`.

        Raises `RunnerError` for parts that do not fit, before anything is written.
        """
        self.check(parts)
        if every and self._buckets is not None and self.captures(parts):
            return self._buckets.forward(parts)
        return self.loaded(parts, every=every).run()

    def captures(self, parts: Sequence[Part]) -> bool:
        """Does a verify pass of these parts run in a CUDA graph?"""
        return self._buckets is not None and self._buckets.bucket(parts) is not None

    def loaded(self, parts: Sequence[Part], *, every: bool) -> StaticStep:
        """A step of just the parts' shape, or of their bucket, loaded with them."""
        if every and self._buckets is not None and self.captures(parts):
            return self._buckets.load(parts)
        # The bound on prefixes is a power of two, so that a growing prefix keeps its plan.
        longest = max(part.prefix_len for part in parts)
        bound = min(self.context, max(256, 1 << (longest - 1).bit_length() if longest else 0))
        nodes = [len(part.tree) for part in parts]
        shape = Shape(len(parts), sum(nodes), max(nodes), bound, every)
        step = self._steps.pop(shape, None) or StaticStep(self.machine, shape)
        self._steps[shape] = step
        if len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)
        step.load(parts)
        return step

    def check(self, parts: Sequence[Part]) -> None:
        """Raise `RunnerError` for parts that `forward` does not take."""
        if not 1 <= len(parts) <= MOST_PARTS:
            raise RunnerError(f"there are {len(parts)} parts; a pass takes 1 to {MOST_PARTS}")
        for r, part in enumerate(parts):
            nodes, end = len(part.tree), part.prefix_len + len(part.tree)
            if len(part.tokens) != nodes:
                raise RunnerError(f"part {r} has {len(part.tokens)} tokens for {nodes} nodes")
            if nodes > self.max_nodes:
                raise RunnerError(
                    f"part {r} has {nodes} nodes; this runner takes up to {self.max_nodes}"
                )
            if part.prefix_len < 0 or end > self.context:
                raise RunnerError(
                    f"part {r} has positions {part.prefix_len}..{end - 1}; "
                    f"the context has 0..{self.context - 1}"
                )
            tokens = np.asarray(part.tokens)
            if tokens.min() < 0 or tokens.max() >= self.config.vocabulary:
                raise RunnerError(
                    f"part {r} has tokens {tokens.min()}..{tokens.max()}; "
                    f"the vocabulary has 0..{self.config.vocabulary - 1}"
                )
            self._check_table(part.table, pages_of(part, self.page_size), f"part {r}")

    def check_fill(self, table: npt.NDArray[np.int32], tokens: int) -> None:
        """Raise `RunnerError` for what `fill` does not take."""
        if not 0 <= tokens <= self.context:
            raise RunnerError(f"tokens is {tokens}; the context has {self.context}")
        self._check_table(table, -(-tokens // self.page_size), "fill")

    def move(self, moves: Moves) -> None:
        """Copy rows within the pool, in all layers; see `Moves`."""
        from verify_attn.engine.rows import move_rows

        if len(moves):
            move_rows(self.machine.pool, moves)

    @torch.no_grad()
    def fill(self, table: npt.NDArray[np.int32], tokens: int, seed: int) -> None:
        """Random rows for token positions 0..tokens, the same for the same seed and length.

        The latent part is a layer's latent norm applied to standard normal numbers, as a real
        row's is; the rope part is standard normal.  Equal on one kind of device, not across kinds.
        """
        self.check_fill(table, tokens)
        position = np.arange(tokens)
        slots = table[position // self.page_size].astype(np.int64) * self.page_size
        slots_there = torch.from_numpy(slots + position % self.page_size).to(self.device)
        generator = torch.Generator(self.device).manual_seed(seed)
        model, pool = self.machine.model, self.machine.pool
        for layer, weights in enumerate(model.layers):
            rows = pool[layer].flatten(0, 1)
            for start in range(0, tokens, FILL_ROWS):
                where = slots_there[start : start + FILL_ROWS]
                new = torch.randn(
                    len(where), rows.shape[1], generator=generator, device=self.device,
                    dtype=torch.float32,
                ).to(model.dtype)  # fmt: skip
                new[:, : self.config.latent_dim] *= weights.latent_norm
                rows.index_copy_(0, where, new)

    def warm(self) -> None:
        """Capture all graphs now; nothing to do where passes run eagerly."""
        if self._buckets is not None:
            with torch.no_grad():
                self._buckets.warm()

    def close(self) -> None:
        """Free the pool, the buffers and the graphs; the runner is of no use afterwards."""
        self._steps.clear()
        self._buckets = None
        del self.machine

    def _check_table(self, table: npt.NDArray[np.int32], pages: int, what: str) -> None:
        if len(table) < pages:
            raise RunnerError(
                f"{what}: the table has {len(table)} pages, {pages} are needed: allocate them first"
            )
        own = table[:pages]
        if pages and (own.min() < 0 or own.max() >= self.pages):
            raise RunnerError(
                f"{what}: the table has pages {own.min()}..{own.max()}; "
                f"the pool has 0..{self.pages - 1}"
            )

    def _require_kernel(self, model: Model, kernel: VerifyKernel, trees: bool) -> None:
        """Try the kernel on a batch of this shape over a pool of one page."""
        reason = self._refusal(model, kernel, trees)
        if reason is None:
            return
        fit = [name for name in BUILTIN if self._refusal(model, load(name), trees) is None]
        raise RunnerError(
            f"kernel {kernel.name} cannot run {self.config.name} here: {reason}; "
            f"built-in kernels that can: {', '.join(fit) or 'none'}"
        )

    def _refusal(self, model: Model, kernel: VerifyKernel, trees: bool) -> str | None:
        if trees and not kernel.capabilities.tree_mask:
            return "it takes chains only, and draft trees need a tree mask"
        if kernel.capabilities.split_pool:
            return "it wants latent and rope rows stored apart, and this pool has them side by side"
        width = model.config.latent_dim + model.config.rope_dim
        page = torch.zeros(1, 1, self.page_size, width, dtype=model.dtype, device=model.device)
        shape = Shape(1, self.max_nodes, self.max_nodes, self.context, every=True)
        batch = StaticStep(Machine(model, kernel, page), shape, planned=False).batch
        reason = kernel.unsupported(batch)
        if reason is None:
            try:
                kernel.plan(batch)
            except UnsupportedError as error:
                return str(error)
        return reason


def _pool(model: Model, pages: int, page_size: int, reserve_bytes: int | None) -> torch.Tensor:
    config = model.config
    fit = tokens_that_fit(config, model.dtype, model.device, page_size, reserve_bytes)
    need = pages * page_size * row_bytes(config, model.dtype)
    problem = RunnerError(
        f"{pages * page_size} tokens of KV take {need / GIB:.2f} GiB on {model.device}; "
        f"{fit} tokens fit: ask for at most that many, or free memory"
    )
    if pages * page_size > fit:
        raise problem
    width = config.latent_dim + config.rope_dim
    try:
        return torch.zeros(
            config.layers, pages + 1, page_size, width, dtype=model.dtype, device=model.device
        )
    except torch.OutOfMemoryError:
        raise problem from None
