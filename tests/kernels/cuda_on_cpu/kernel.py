"""`sm120` as a kernel that runs where there is no GPU: the same plan and parameters, and the same
source, on the machine of ``machine.h``."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from tests.kernels.cuda_on_cpu.translate import translated
from verify_attn.kernels import sm120
from verify_attn.problem import VerifyBatch

HERE = Path(__file__).parent
FLAGS = (
    "-std=c++17", "-O1", "-march=native", "-shared", "-fPIC", "-fno-strict-aliasing",
    "-U_FORTIFY_SOURCE", "-w",
)  # fmt: skip


class Counts(ctypes.Structure):
    """What a grid did: see machine.h."""

    _fields_ = (
        ("products", ctypes.c_longlong), ("matrix_bytes", ctypes.c_longlong),
        ("matrix_wavefronts", ctypes.c_longlong), ("vector_bytes", ctypes.c_longlong),
        ("copied_bytes", ctypes.c_longlong),
    )  # fmt: skip


@cache
def machine_code(latent: int, rope: int, arch: int, source: str) -> ctypes.CDLL:
    """Compiled by the host's C++ compiler."""
    unit = sm120.unit(latent, rope)
    defines = [f"-D{name}={value}" for name, value in unit.defines.items()]
    with tempfile.TemporaryDirectory() as folder:
        path, built = Path(folder) / "sm120.cpp", Path(folder) / "sm120.so"
        path.write_text(
            f'#include "{HERE / "machine.h"}"\n#include "{HERE / "instructions.h"}"\n'
            f"{translated(source)}\n"
            f'#include "{HERE / "after.h"}"\n'
        )
        command = ["g++", *FLAGS, *defines, f"-D__CUDA_ARCH__={arch}", str(path), "-o", str(built)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"g++ failed:\n{done.stderr[:4000]}")
        code = ctypes.CDLL(str(built))
    for function in (code.run_split, code.run_merge):
        function.restype = ctypes.c_char_p
    code.counted.restype = ctypes.POINTER(Counts)
    return code


class OnCpu(sm120.Sm120):
    """``blocks``: multiprocessors that there are said to be."""

    def __init__(self, blocks: int = 5, arch: int = 900, source: str | None = None) -> None:
        super().__init__()
        self.missing = None
        self.blocks, self.arch, self.source = blocks, arch, source or sm120.source()
        self.capabilities = replace(self.capabilities, architectures=None, capture=False)
        self._seeds = itertools.count(1)
        self.counts = Counts()  # of the last run's verify_split

    def plan(self, batch: VerifyBatch) -> sm120.Workspace:
        """All that a plan has on a GPU but the handles."""
        return sm120.Workspace.of(batch, self.blocks)

    def run(
        self, batch: VerifyBatch, plan: sm120.Workspace, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """Both kernels, one after the other; raises what the machine found."""
        geometry = batch.geometry
        code = machine_code(geometry.latent_dim, geometry.rope_dim, self.arch, self.source)
        params = ctypes.create_string_buffer(sm120.PARAMS.size)
        sm120.pack(params, batch, plan, out, lse)
        for function, grid in ((code.run_split, (plan.blocks,)), (code.run_merge, plan.merge_grid)):
            if found := function(params, *grid, next(self._seeds)):
                raise RuntimeError(found.decode())
            if function is code.run_split:
                self.counts = Counts.from_buffer_copy(code.counted().contents)
