"""What this machine has, and what can run on it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess

from verify_attn.environment import Gpu, gpus, interpreted, summary, versions
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.peers import available


def findings() -> list[tuple[str, str]]:
    """(name, what was found) pairs, in reading order."""
    found = gpus()
    lines = [("mode", summary(found))]
    lines += [(f"GPU {gpu.index}", _gpu_line(gpu)) for gpu in found]
    lines += [("CUDA", _cuda(found)), ("Triton", _triton(found)), ("nvcc", _nvcc())]
    lines += [(name, version) for name, version in versions().items()]
    lines += [(f"kernel {name}", text) for name, text in _kernels()]
    lines += [(f"peer {name}", why or "usable") for name, why in available().items()]
    return lines


def _gpu_line(gpu: Gpu) -> str:
    clock = "unknown" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz} MHz now"
    return (
        f"{gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}, "
        f"{gpu.memory_bytes / 2**30:.0f} GiB, SM clock {clock}"
    )


def _cuda(found: list[Gpu]) -> str:
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            build = "torch is a CPU build" + (", though there is a GPU" if found else "")
        else:
            build = f"torch is built for CUDA {torch.version.cuda} but reaches no GPU"
        return f"not usable: {build}"
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    return (
        f"torch reaches {torch.cuda.device_count()} GPU(s), {capability}, CUDA {torch.version.cuda}"
    )


def _triton(found: list[Gpu]) -> str:
    if importlib.util.find_spec("triton") is None:
        return "not installed: the triton kernels cannot run"
    if interpreted(found):
        setting = os.environ.get("TRITON_INTERPRET")
        why = "no GPU" if setting is None else f"TRITON_INTERPRET={setting}"
        return f"interpreter ({why}): float32 and float16; bfloat16 is refused there"
    if not found:
        return "cannot run: no GPU, and TRITON_INTERPRET turns its interpreter off"
    return "compiled: float16 and bfloat16"


def _nvcc() -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return "not found (nothing here needs it)"
    result = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    lines = result.stdout.strip().splitlines()
    return lines[-1] if lines else f"{nvcc} says nothing"


def _interpreter_fault(name: str) -> str | None:
    if not name.startswith("triton-"):
        return None
    from verify_attn.kernels.triton_common import interpreter_fault

    return interpreter_fault()


def _kernels() -> list[tuple[str, str]]:
    from verify_attn.kernels.base import KernelError
    from verify_attn.kernels.registry import lacking, load

    lines = []
    for name in BUILTIN:
        try:
            kernel = load(name)
        except KernelError as error:
            lines.append((name, f"cannot run: {str(error).splitlines()[0]}"))
            continue
        fault = _interpreter_fault(name)
        if fault:
            lines.append((name, f"cannot run: {fault}"))
            continue
        if lack := lacking(kernel):
            lines.append((name, f"cannot run: {lack}"))
            continue
        dtypes = kernel.capabilities.dtypes
        names = [str(d).removeprefix("torch.") for d in dtypes] if dtypes else ["any dtype"]
        lines.append((name, f"runs with {', '.join(names)}"))
    return lines
