"""CUDA graphs of the whole verify pass, one for each bucket of (requests, nodes a request).

A step is padded up to its bucket: further requests own no rows, further rows are written to the
scratch page, and all buffers are written in place.  The mask is rows of tree bits, so its size
hangs on the bucket's nodes alone and on no context length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from verify_attn.cuda_graph import no_collection
from verify_attn.engine.inputs import Shape
from verify_attn.engine.static_step import Machine, StaticStep
from verify_attn.engine.step import Output, Part
from verify_attn.tree import DraftTree

T = TypeVar("T")

REQUESTS = (1, 2, 4, 8, 16)


def why_no_graphs(machine: Machine) -> str | None:
    """What stands against capturing this machine's pass, or None."""
    model, kernel = machine.model, machine.kernel
    if model.device.type != "cuda":
        return f"CUDA graphs need a GPU, the model is on {model.device}"
    if not kernel.capabilities.capture:
        return f"kernel {kernel.name} does not declare capture"
    if model.config.experts is not None:
        return "the choice of experts synchronises"
    if model.reduce is not None:
        return "tensor parallel runs are not captured"
    return None


def capture(run: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph of a call and what the call returned, which each replay overwrites.

    ``run`` is called twice before, so that kernels are compiled and libraries have their workspace.
    """
    for _ in range(2):
        run()
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, pool=pool):
        result = run()
    return graph, result


class Buckets:
    """Static steps by bucket, made (and captured) when first used.

    ``nodes``          the most nodes of one request; a step of roots alone has buckets of its own
    ``context``        the most tokens of one request, nodes included
    ``captured``       False: run the same buffers and padding without a graph, on any device
    """

    def __init__(self, machine: Machine, nodes: int, context: int, *, captured: bool) -> None:
        self.machine = machine
        self.nodes = nodes
        self.context = context
        self.captured = captured
        self.steps: dict[tuple[int, int], StaticStep] = {}
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Output]] = {}
        # One memory pool for all graphs: only one runs at a time, and outputs live till the next.
        self._memory: Any = None

    def bucket(self, parts: Sequence[Part]) -> tuple[int, int] | None:
        """(requests, nodes a request) of the smallest bucket that takes the parts, or None."""
        most = max(len(part.tree) for part in parts)
        requests = next((r for r in REQUESTS if r >= len(parts)), None)
        if requests is None or most > self.nodes:
            return None
        return requests, 1 if most == 1 else self.nodes

    def load(self, parts: Sequence[Part]) -> StaticStep:
        """The step of the parts' bucket, loaded with them; `bucket` must know one."""
        key = self.bucket(parts)
        assert key is not None
        step = self.steps.get(key)
        if step is None:
            requests, nodes = key
            shape = Shape(requests, requests * nodes, nodes, self.context, every=True)
            step = self.steps[key] = StaticStep(self.machine, shape)
        step.load(parts)
        return step

    def forward(self, parts: Sequence[Part]) -> Output:
        """One verify pass; the padding is cut off the output."""
        key = self.bucket(parts)
        step = self.load(parts)
        output = self._replay(key, step) if self.captured and key is not None else step.run()
        rows = sum(len(part.tree) for part in parts)
        return Output(output.logits[:rows], output.features[:rows])

    def warm(self) -> None:
        """Make every bucket now, so that no request waits for a capture."""
        for requests in reversed(REQUESTS):  # the largest first: the others fit into its memory
            for nodes in sorted({1, self.nodes}, reverse=True):
                table = np.full(nodes, self.machine.scratch_page, dtype=np.int32)
                part = Part([0] * nodes, DraftTree.chain(nodes), table, 0)
                self.forward([part] * requests)

    def _replay(self, key: tuple[int, int], step: StaticStep) -> Output:
        if key not in self._graphs:
            if self._memory is None:
                self._memory = torch.cuda.graph_pool_handle()
            self._graphs[key] = capture(step.run, self._memory)
        graph, output = self._graphs[key]
        graph.replay()
        return output
