"""Does a call allocate?  On a GPU the allocator counts; on the CPU every new storage is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def allocations(device: torch.device, call: Callable[[], object]) -> int:
    """How often ``call`` allocates tensor memory on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats(device)["allocation.all.allocated"]
        call()
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats(device)["allocation.all.allocated"]
        return int(after - before)
    seen = _NewStorages()
    with seen:
        call()
    return seen.count


class _NewStorages(TorchDispatchMode):
    """Counts results whose memory is none of the arguments'."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_memory(t) for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                self.count += _memory(tensor) not in given and not _from_interpreter()
        return result


def _from_interpreter() -> bool:
    """Triton's interpreter makes host copies of its own; the compiled kernel would not."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("triton.runtime"):
            return True
        frame = frame.f_back
    return False


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
