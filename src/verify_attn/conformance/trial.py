"""One kernel on one case: the batch, the reference, and runs with poisoned outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from verify_attn.assemble import Arrangement, Content, assemble
from verify_attn.conformance.compare import Mismatch, within
from verify_attn.conformance.tolerance import lse_bound, out_bound
from verify_attn.cuda_graph import CaptureError, capture
from verify_attn.generate import Case, contents
from verify_attn.kernels.base import UnsupportedError, VerifyKernel
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference, fast_reference, oracle
from verify_attn.tracebacks import user_traceback

# A NaN that no arithmetic makes, per element size: what stands in outputs before a run.
POISON = {2: 0x7FA5, 4: 0x7FA5A5A5}
# Elements before and after each output that no kernel may write.
GUARD = 1 << 14
_INTS = {2: torch.int16, 4: torch.int32}
# On a GPU the float64 loops would take seconds; past this many products the twin judges.
ORACLE_PRODUCTS = 1 << 19


class CheckFailed(AssertionError):
    """A check that failed, with what is needed to say exactly how."""

    def __init__(
        self,
        summary: str,
        mismatch: Mismatch | None = None,
        batch: VerifyBatch | None = None,
        reason: str | None = None,
        output: Output | None = None,
        reference: Reference | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.mismatch = mismatch
        self.batch = batch
        self.reason = reason
        self.output = output
        self.reference = reference


class KernelRaised(CheckFailed):
    """The kernel raised; the summary holds the traceback of the user's own code."""


class NotApplicable(Exception):
    """A check that cannot be made on this case, kernel or machine, with the reason."""


@dataclass(frozen=True, eq=False)
class Output:
    """What one run wrote, rows of no request left out."""

    out: torch.Tensor
    lse: torch.Tensor


def judge_dtype(dtype: torch.dtype) -> torch.dtype:
    """What to compute in, to judge an answer of that dtype: the bounds are for the kernel's
    roundings, and a float32 judge of a float32 kernel spends most of them on its own."""
    return torch.float64 if dtype == torch.float32 else torch.float32


class Trial:
    """A kernel and a case; everything is made once, when first asked for."""

    def __init__(self, kernel: VerifyKernel, case: Case, device: torch.device) -> None:
        self.kernel = kernel
        self.case = case
        self.device = device
        self.rng = np.random.default_rng([case.seed, 2])
        self.worst = 0.0  # the largest difference over its bound that passed

    @cached_property
    def contents(self) -> list[Content]:
        """The case's requests, free of any layout."""
        return contents(self.case, self.device)

    @cached_property
    def batch(self) -> VerifyBatch:
        """The case's batch."""
        return self.arrange(self.contents, self.case.arrangement)

    @cached_property
    def reference(self) -> Reference:
        """What is right for `batch`."""
        return self.judge(self.batch)

    @cached_property
    def output(self) -> Output:
        """The kernel's answer for `batch`."""
        return self.run(self.batch)

    def arrange(
        self, requests: list[Content], how: Arrangement, like: VerifyBatch | None = None
    ) -> VerifyBatch:
        """Requests as a batch; raises `NotApplicable` if the kernel declares otherwise."""
        try:
            batch = assemble(self.case.attention_geometry, requests, how, like)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, torch.AcceleratorError):
                raise  # an earlier launch's fault, not one of memory
            reason = str(error).strip().splitlines()[0]
            raise NotApplicable(f"the case does not fit into memory here: {reason}") from None
        reason = self.call(self.kernel.unsupported, batch)
        if reason:
            raise NotApplicable(reason)
        if not self.kernel.capabilities.tree_mask and not all(_is_chain(c) for c in requests):
            raise NotApplicable("declares chains only (tree_mask=False), the case has trees")
        return batch

    def judge(self, batch: VerifyBatch) -> Reference:
        """The oracle, or on a GPU its twin where the loops would take too long."""
        heads, wide = batch.geometry.heads, batch.geometry.qk_dim
        tokens = sum(
            batch.nodes(r) * (batch.prefix_list[r] + batch.nodes(r)) for r in range(batch.requests)
        )
        if batch.device.type == "cuda" and tokens * heads * wide > ORACLE_PRODUCTS:
            return fast_reference(batch, judge_dtype(batch.q.dtype))
        return oracle(batch).to(batch.device)

    def run(self, batch: VerifyBatch, plan: Any = None) -> Output:
        """Plan (unless given), prepare and run, with poisoned outputs; checks their shape after."""
        plan = self.plan(batch) if plan is None else plan
        self.prepare(batch, plan)
        out, lse = poisoned_outputs(batch)
        self.launch(batch, plan, out, lse)
        live = batch.offset_list[-1]
        return Output(out[:live], lse[:live])

    def plan(self, batch: VerifyBatch) -> Any:
        """The kernel's plan for a batch."""
        return self.call(self.kernel.plan, batch)

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        """The kernel's ``prepare``."""
        self.call(self.kernel.prepare, batch, plan)

    def call(self, part: Callable[..., Any], *arguments: Any) -> Any:
        """Call a part of the kernel; whatever it raises, ``sys.exit`` too, is its failure; but not
        Ctrl-C, which is most likely to come while a kernel runs."""
        try:
            return part(*arguments)
        except (NotApplicable, UnsupportedError, KeyboardInterrupt):
            raise
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise NotApplicable(f"out of GPU memory: {str(error).split('.')[0]}") from None
        except BaseException as error:
            raise KernelRaised(f"the kernel raised\n{user_traceback(error)}") from None

    def launch(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        """``run`` alone, then wait for it; a kernel that swaps its outputs is told so."""
        before = [(t.shape, t.dtype, t.data_ptr()) for t in (out, lse)]
        self.call(self.kernel.run, batch, plan, out, lse)
        if batch.device.type == "cuda":
            self.call(torch.cuda.synchronize)
        for name, tensor, (shape, dtype, pointer) in zip(
            ("out", "lse"), (out, lse), before, strict=True
        ):
            if (tensor.shape, tensor.dtype, tensor.data_ptr()) != (shape, dtype, pointer):
                raise CheckFailed(
                    f"the kernel changed {name} from {dtype} {tuple(shape)} to {tensor.dtype} "
                    f"{tuple(tensor.shape)} or gave it other storage; it must write in place"
                )
            side = guards_written(tensor)
            if side:
                raise CheckFailed(
                    f"the kernel wrote {side} of {name} {tuple(shape)}, into memory that is not "
                    "its own",
                    reason="a tile's rows or dims past the end are stored too",
                )

    def capture(self, launch: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """A graph of one launch, which has run before; a kernel that cannot be captured fails."""
        refused: list[CaptureError] = []

        def attempt() -> torch.cuda.CUDAGraph | None:
            try:
                return capture([launch], torch.cuda.current_device())
            except CaptureError as failure:
                refused.append(failure)
                return None

        graph: torch.cuda.CUDAGraph | None = self.call(attempt)  # what it raises is the kernel's
        if graph is not None:
            return graph
        raised = refused[0].raised
        if isinstance(raised, UnsupportedError):
            raise raised from None
        if isinstance(raised, torch.OutOfMemoryError):
            raise NotApplicable(f"out of GPU memory: {str(raised).split('.')[0]}") from None
        raise KernelRaised(
            f"the kernel declares capture, but {refused[0]}\n{user_traceback(raised)}"
        )

    def compare(
        self, output: Output, reference: Reference, batch: VerifyBatch, what: str, times: int = 1
    ) -> None:
        """Hold ``out`` to the tolerance of a reference; twice that of another kernel's run."""
        products = self.kernel.capabilities.products
        bound = times * out_bound(reference, output.out.dtype, products)
        mismatch, worst = within("out", output.out, reference.out, bound)
        if mismatch:
            raise CheckFailed(what, mismatch, batch, output=output, reference=reference)
        self.worst = max(self.worst, worst)

    def compare_lse(self, output: Output, reference: Reference, batch: VerifyBatch) -> None:
        """Hold ``lse`` to the tolerance of a reference."""
        bound = lse_bound(reference, self.kernel.capabilities.products)
        mismatch, worst = within("lse", output.lse, reference.lse, bound)
        if mismatch:
            what = "lse differs from the oracle's"
            raise CheckFailed(what, mismatch, batch, output=output, reference=reference)
        self.worst = max(self.worst, worst)


def poisoned_outputs(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """``out`` and ``lse``, and memory around them, filled with a NaN that no arithmetic makes."""

    def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        whole = torch.empty(math.prod(shape) + 2 * GUARD, dtype=dtype, device=batch.device)
        size = whole.element_size()
        whole.view(_INTS[size]).fill_(POISON[size])
        return whole[GUARD:-GUARD].view(shape)

    shape = (batch.rows, batch.geometry.heads)
    return (
        poisoned((*shape, batch.geometry.latent_dim), batch.q.dtype),
        poisoned(shape, torch.float32),
    )


def guards_written(tensor: torch.Tensor) -> str | None:
    """On which side of an output of `poisoned_outputs` memory was written."""
    whole = tensor.new_empty(0).set_(tensor.untyped_storage())
    for side, guard in (("before the start", whole[:GUARD]), ("past the end", whole[-GUARD:])):
        if not is_poison(guard).all():
            return side
    return None


def is_poison(tensor: torch.Tensor) -> torch.Tensor:
    """Where an output still holds what `poisoned_outputs` put there."""
    size = tensor.element_size()
    bits: torch.Tensor = tensor.view(_INTS[size]) == POISON[size]
    return bits


def _is_chain(content: Content) -> bool:
    n = len(content.visible)
    return bool((content.visible == np.tril(np.ones((n, n), dtype=np.bool_))).all())
