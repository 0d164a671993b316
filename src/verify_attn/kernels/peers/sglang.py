"""SGLang's Triton verify attention, out of the installed wheel: 0.5.10, 0.5.16 and 0.5.23.

`Extend`      ``extend_attention_fwd``, where SGLang's Triton backend verifies a tree
`VerifyMla`   its split-KV kernel for chains, since 0.5.23; SGLang itself runs it on AMD only

Of the wheel only the kernels' own files are loaded, so its many requirements may be missing: the
packages above them are stood in for by empty ones, and the two modules that ask after the device
by the functions below.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from verify_attn.kernels import adapters
from verify_attn.kernels.base import Capabilities, KernelError
from verify_attn.kernels.peers import SGLANG_PACKAGES, sglang_file
from verify_attn.kernels.triton_common import DTYPES, INTERPRETED, INTERPRETER_DTYPES, refuses
from verify_attn.problem import VerifyBatch

# Triton's interpreter is NumPy, which warns of the 0 / 0 in rows of a tile that nobody stores.
quiet = np.errstate(divide="ignore", invalid="ignore")


def wheel_module(name: str) -> ModuleType:
    """The wheel's module of that name; raises `KernelError` where this version has none."""
    found = sglang_file(name)
    if found is None:
        raise KernelError(f"sglang is not installed here, or its version has no {name}.py")
    package, root = found
    if "sglang.srt.utils" in sys.modules:  # the program runs SGLang itself
        return importlib.import_module(f"{package}.{name}")
    with _stand_ins(root):
        return importlib.import_module(f"{package}.{name}")


@contextmanager
def _stand_ins(root: Path) -> Iterator[None]:
    """In ``sys.modules`` while a kernel's file is imported, and gone afterwards."""
    before = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == "sglang"}
    for package in ("sglang.srt", *SGLANG_PACKAGES):
        parts = package.split(".")
        for depth in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:depth]))
            module.__path__ = [str(root.joinpath(*parts[:depth]))]
            sys.modules[module.__name__] = module
    utils, environ = ModuleType("sglang.srt.utils"), ModuleType("sglang.srt.environ")
    cuda, hip = torch.cuda.is_available(), torch.version.hip is not None
    utils.__dict__.update(
        is_cuda=lambda: cuda and not hip,
        is_hip=lambda: hip,
        is_gfx95_supported=lambda: False,
        is_gfx1250_supported=lambda: False,
        get_device_core_count=lambda d=0: torch.cuda.get_device_properties(d).multi_processor_count,
    )
    environ.__dict__["envs"] = _Unset()
    sys.modules.update({utils.__name__: utils, environ.__name__: environ})
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "sglang"]:
            del sys.modules[name]
        sys.modules.update(before)


class _Unset:
    """Every one of SGLang's settings, off."""

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(get=lambda: False)


@dataclass(frozen=True)
class Inputs:
    """What the kernels want beside q and the pool; allocated once, filled in place every step."""

    qo_indptr: torch.Tensor  # [R + 1] int64: with int32, row offsets wrap at 2^31 elements
    kv_indptr: torch.Tensor  # [R + 1] int32
    kv_indices: torch.Tensor  # [R * max_prefix_len] int64
    mask: torch.Tensor  # [N * (max_prefix_len + max_nodes)] bool
    mask_indptr: torch.Tensor  # [R + 1] int64
    node_slots: torch.Tensor  # [N] int64
    node_rows: torch.Tensor  # [N, D_c + D_r]


class SGLangKernel(ABC):
    """What both have in common; a subclass calls its kernel in ``run``."""

    def __init__(self, module: ModuleType | Any, **capabilities: Any) -> None:
        self.module = module
        dtypes = INTERPRETER_DTYPES if INTERPRETED else DTYPES
        self.capabilities = Capabilities(dtypes=dtypes, deterministic=True, **capabilities)

    def unsupported(self, batch: VerifyBatch) -> str | None:
        """Pools without a view by slots: the kernels address by slot alone."""
        try:
            adapters.slot_view(batch)
        except adapters.LayoutError as error:
            return str(error)
        return refuses(self.capabilities, batch)

    def plan(self, batch: VerifyBatch) -> Inputs:
        rows, requests, wide = batch.rows, batch.requests, batch.max_prefix_len + batch.max_nodes

        def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=batch.device)

        return Inputs(
            qo_indptr=zeros(requests + 1, torch.int64),
            kv_indptr=zeros(requests + 1, torch.int32),
            kv_indices=zeros(requests * batch.max_prefix_len, torch.int64),
            mask=zeros(rows * wide, torch.bool),
            mask_indptr=zeros(requests + 1, torch.int64),
            node_slots=zeros(rows, torch.int64),
            node_rows=torch.zeros_like(batch.q[:, 0], memory_format=torch.contiguous_format),
        )

    def prepare(self, batch: VerifyBatch, plan: Inputs) -> None:
        _fill(plan.qo_indptr, batch.node_offsets)
        for buffers, values in (
            ((plan.kv_indptr, plan.kv_indices), adapters.kv_indices(batch)),
            ((plan.mask, plan.mask_indptr), adapters.full_mask(batch)),
        ):
            _fill(buffers[0], values[0])
            _fill(buffers[1], values[1])
        if batch.node_kv is None:
            plan.node_slots.zero_()  # a slot that every pool has, for rows past the last node
            _fill(plan.node_slots, adapters.node_slots(batch))

    def arguments(self, batch: VerifyBatch, plan: Inputs, out: torch.Tensor) -> tuple[Any, ...]:
        """The fifteen that both functions begin with, in every version.  Allocates nothing."""
        latent, pool = batch.geometry.latent_dim, adapters.slot_view(batch)
        own = batch.node_kv
        if own is None:
            own = torch.index_select(pool, 0, plan.node_slots, out=plan.node_rows)
        k, pool = own[:, None], pool[:, None]  # one KV head
        return (
            batch.q, k, k[..., :latent], out, pool, pool[..., :latent],
            plan.qo_indptr, plan.kv_indptr, plan.kv_indices,
            plan.mask, True, plan.mask_indptr,  # is_causal=True, as SGLang says with a mask too
            batch.max_nodes, 1.0, 1.0,
        )  # fmt: skip

    @abstractmethod
    def run(self, batch: VerifyBatch, plan: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Call the function of ``module`` with `arguments` and what is its own."""


class Extend(SGLangKernel):
    """`extend_attention_fwd`: any tree.  Its LSE, since 0.5.16, is the natural log."""

    def __init__(self, module: ModuleType | Any | None = None) -> None:
        module = module or wheel_module("extend_attention")
        self.function = module.extend_attention_fwd
        lse = "lse_extend" in inspect.signature(self.function).parameters
        super().__init__(module, lse=lse, capture=True)

    @quiet
    def run(self, batch: VerifyBatch, plan: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        more = {"lse_extend": lse} if self.capabilities.lse else {}
        arguments = self.arguments(batch, plan, out)
        self.function(*arguments, sm_scale=batch.softmax_scale, **more)


class VerifyMla(SGLangKernel):
    """`verify_mla.verify_shared_kv_fwd`: equal chains only.

    It keeps partial results in bfloat16 whatever q is, so a float32 or float16 check fails on
    rounding alone (some 2e-3); it is meant for bfloat16, on a GPU.
    """

    def __init__(self, module: ModuleType | Any | None = None) -> None:
        # Its merge holds [n, n, D] in registers; beyond 8 nodes nobody is known to have run it.
        super().__init__(
            module or wheel_module("verify_mla"), tree_mask=False, lse=False, max_nodes=8
        )

    def unsupported(self, batch: VerifyBatch) -> str | None:
        if reason := super().unsupported(batch):
            return reason
        chain = [(2 << node) - 1 for node in range(batch.max_nodes)]
        if batch.tree_mask[:, 0].tolist() != chain * batch.requests:
            return "reads no mask: takes chains of max_nodes nodes alone, and no padding rows"
        if not any(batch.prefix_list):
            return "takes no batch without any prefix"
        return None

    @quiet
    def run(self, batch: VerifyBatch, plan: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
        arguments = self.arguments(batch, plan, out)
        if not self.module.verify_shared_kv_fwd(*arguments, sm_scale=batch.softmax_scale):
            raise KernelError(
                f"verify_shared_kv_fwd of sglang {version('sglang')} declined the batch; "
                "unsupported() should have"
            )


def _fill(buffer: torch.Tensor, values: torch.Tensor) -> None:
    buffer[: len(values)].copy_(values)
