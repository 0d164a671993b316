"""Other people's kernels by name, each usable where its package is: listing them needs no torch.

``registry.load(name)`` loads one as it loads a built-in.  They bend to the contract of a kernel as
far as their own interface lets them; docs/wrap-a-kernel.md says what each can do.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from verify_attn.environment import gpus

# Where SGLang keeps its Triton kernels: since 0.5.16, and before.
SGLANG_PACKAGES = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")


@dataclass(frozen=True)
class Peer:
    """``path`` as of a user's kernel; ``missing`` says why it cannot be used here, or None."""

    path: str
    missing: Callable[[], str | None]


def available() -> dict[str, str | None]:
    """Every peer's name, with the reason why it cannot be used here, or None."""
    return {name: peer.missing() for name, peer in PEERS.items()}


def sglang_file(name: str) -> tuple[str, Path] | None:
    """(package, directory above ``sglang``) of the installed wheel's kernel file, if it has it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(spec.submodule_search_locations[0]).parent
    for package in SGLANG_PACKAGES:
        if root.joinpath(*package.split("."), f"{name}.py").exists():
            return package, root
    return None


def _package(distribution: str, module: str, pip: str) -> str | None:
    try:
        version(distribution)
    except PackageNotFoundError:
        return f"{distribution} is not installed: pip install {pip}"
    if importlib.util.find_spec(module) is None:
        return f"{distribution} is installed, but its module {module} is not on the path"
    return None


def _gpu(*capabilities: str) -> str | None:
    here = sorted({gpu.compute_capability for gpu in gpus()})
    if not here:
        return "needs a GPU, and none is visible"
    if capabilities and not set(capabilities) & set(here):
        return f"needs compute capability {' or '.join(capabilities)}, here is {', '.join(here)}"
    return None


def _sglang(name: str, since: str) -> str | None:
    if missing := _package("sglang", "sglang", f"--no-deps sglang=={since}"):
        return missing
    if sglang_file(name) is None:
        return f"sglang {version('sglang')} has no {name}.py where it is looked for; {since} has"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


def _flashinfer(*capabilities: str) -> str | None:
    pip = "flashinfer-python==0.5.3"
    if missing := _package("flashinfer-python", "flashinfer", pip) or _gpu(*capabilities):
        return missing
    if importlib.util.find_spec("flashinfer_jit_cache"):
        return None
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if not (home or shutil.which("nvcc") or Path("/usr/local/cuda").exists()):
        return "it compiles with nvcc, which is not found: set CUDA_HOME"
    if shutil.which("ninja") is None:
        return "it compiles with ninja, which is not on PATH: pip install ninja"
    return None


def _flashmla() -> str | None:
    pip = "--no-deps sgl-flash-mla==1.0.0"
    return _package("sgl-flash-mla", "flash_mla", pip) or _gpu("9.0")


def _torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


_HERE = "verify_attn.kernels.peers"

PEERS = {
    "sglang-extend": Peer(f"{_HERE}.sglang:Extend", partial(_sglang, "extend_attention", "0.5.23")),
    "sglang-verify-mla": Peer(
        f"{_HERE}.sglang:VerifyMla", partial(_sglang, "verify_mla", "0.5.23")
    ),
    "flashinfer-fa2": Peer(f"{_HERE}.flashinfer:Fa2", _flashinfer),
    "flashinfer-fa3": Peer(f"{_HERE}.flashinfer:Fa3", partial(_flashinfer, "9.0")),
    "flashmla": Peer(f"{_HERE}.flashmla:FlashMla", _flashmla),
    "flashmla-fp8": Peer(f"{_HERE}.flashmla:FlashMlaFp8", _flashmla),
    "sdpa": Peer(f"{_HERE}.pytorch:Sdpa", _torch),
    "flex": Peer(f"{_HERE}.pytorch:Flex", _torch),
}
