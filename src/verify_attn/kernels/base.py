"""The contract of a verify kernel, and what a kernel may declare about itself.

A kernel is an object with ``run`` (and ``plan``, ``prepare``, ``capabilities`` as it needs them),
or a plain function ``f(batch, out, lse)`` that may carry the same declarations as attributes::

    plan(batch) -> plan            once per shape and bounds; allocates; reads no device value; its
                                   workspace is of one stream at a time
    prepare(batch, plan)           optional, once per step, outside a graph: may read host copies
    run(batch, plan, out, lse)     no allocation, no synchronisation, on the current stream

``out`` is [N, H, D_c] of q's dtype, ``lse`` [N, H] float32, natural log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch

from verify_attn.problem import VerifyBatch

_F = TypeVar("_F", bound=Callable[..., object])


class KernelError(RuntimeError):
    """A kernel that cannot be loaded or used; the message says what was given and the rule."""


class UnsupportedError(KernelError):
    """A case outside what a kernel declares; the message is the reason."""


@dataclass(frozen=True)
class Capabilities:
    """What a kernel declares.  None means no restriction.

    ``architectures``  compute capabilities such as (9, 0); None: any device, the CPU too
    ``dtypes``         of q and the pool (``float16``, ``bfloat16``, ``float32``)
    ``kv_dtypes``      of the pool where they differ from q's
    ``page_sizes``     token rows a page
    ``max_nodes``      of one request
    ``tree_mask``      False: chains only
    ``lse``            writes the log-sum-exp
    ``capture``        ``run`` may be captured in a CUDA graph and replayed after ``prepare``
    ``deterministic``  equal inputs give equal bits
    ``split_pool``     wants latent and rope rows in separate storage
    ``products``       the narrowest dtype that its products are made in, where that is not q's:
                       its answers are held to a tolerance of that dtype
    """

    architectures: tuple[tuple[int, int], ...] | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    kv_dtypes: tuple[torch.dtype, ...] | None = None
    page_sizes: tuple[int, ...] | None = None
    max_nodes: int | None = None
    tree_mask: bool = True
    lse: bool = True
    capture: bool = False
    deterministic: bool = False
    split_pool: bool = False
    products: torch.dtype | None = None

    def refuses(self, batch: VerifyBatch) -> str | None:
        """Why a batch lies outside these capabilities, or None if it does not."""
        if self.architectures is not None:
            if batch.device.type != "cuda":
                return f"needs a GPU, the batch is on {batch.device}"
            here = torch.cuda.get_device_capability(batch.device)
            if here not in self.architectures:
                return f"declares architectures {self.architectures}, this GPU is {here}"
        if self.dtypes is not None and batch.q.dtype not in self.dtypes:
            return f"declares dtypes {_names(self.dtypes)}, q is {_names((batch.q.dtype,))}"
        kv_dtypes = self.kv_dtypes or (batch.q.dtype,)
        if batch.kv_pool.dtype not in kv_dtypes:
            return f"declares KV dtypes {_names(kv_dtypes)}, the pool is {batch.kv_pool.dtype}"
        if self.page_sizes is not None and batch.page_size not in self.page_sizes:
            return f"declares page sizes {self.page_sizes}, the pool has {batch.page_size}"
        if self.max_nodes is not None and batch.max_nodes > self.max_nodes:
            return f"declares max_nodes {self.max_nodes}, a request has up to {batch.max_nodes}"
        return None


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


class VerifyKernel(Protocol):
    """What the harness calls: see the module's first lines."""

    name: str
    capabilities: Capabilities
    plain_function: bool

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Why this batch cannot be run, or None."""

    def plan(self, batch: VerifyBatch) -> Any:
        """Workspace and schedule for this shape and these bounds."""

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        """Once per step, outside a graph."""

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Compute ``out`` and ``lse`` on the current stream."""


@dataclass(eq=False)
class FunctionKernel:
    """A plain function ``f(batch, out, lse)`` as a kernel; its attributes are its declarations."""

    name: str
    function: Callable[[VerifyBatch, torch.Tensor, torch.Tensor], object]
    capabilities: Capabilities
    plain_function: bool = True

    def unsupported(self, batch: VerifyBatch) -> str | None:
        return self.capabilities.refuses(batch)

    def plan(self, batch: VerifyBatch) -> None:
        """Functions have no plan."""

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        """Functions have nothing to prepare."""

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.function(batch, out, lse)


@dataclass(eq=False)
class ObjectKernel:
    """A user's object with ``run`` and, where it has them, ``plan`` and ``prepare``."""

    name: str
    target: Any
    capabilities: Capabilities
    plain_function: bool = False

    def unsupported(self, batch: VerifyBatch) -> str | None:
        reason = self.capabilities.refuses(batch)
        ask = getattr(self.target, "unsupported", None)
        return reason if reason or ask is None else ask(batch)

    def plan(self, batch: VerifyBatch) -> Any:
        plan = getattr(self.target, "plan", None)
        return None if plan is None else plan(batch)

    def prepare(self, batch: VerifyBatch, plan: Any) -> None:
        prepare = getattr(self.target, "prepare", None)
        if prepare is not None:
            prepare(batch, plan)

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.target.run(batch, plan, out, lse)


def declare(**declarations: Any) -> Callable[[_F], _F]:
    """Decorator: give a plain function its `Capabilities`."""

    def mark(function: _F) -> _F:
        function.__dict__["capabilities"] = Capabilities(**declarations)
        return function

    return mark


def declared(target: object) -> Capabilities:
    """Read a target's declarations: ``capabilities``, or attributes of the same names."""
    given = getattr(target, "capabilities", None)
    if isinstance(given, Capabilities):
        return given
    if given is not None and not isinstance(given, dict):
        raise KernelError(
            f"capabilities is a {type(given).__name__}; it must be a Capabilities or a dict"
        )
    names = {field.name for field in fields(Capabilities)}
    if given is not None:
        unknown = set(given) - names
        if unknown:
            raise KernelError(
                f"capabilities names {sorted(unknown)}; there are: {', '.join(sorted(names))}"
            )
        return Capabilities(**given)
    return Capabilities(**{n: getattr(target, n) for n in names if hasattr(target, n)})
