"""Ways to spoil a CUDA source by a substitution of its text, for the gate to refuse.

Each takes a unit whose kernels are all fine and gives one that is not.
"""

import re
from dataclasses import replace

from verify_attn.kernels.nvrtc import Unit

_BODY = re.compile(r'extern\s+"C"\s+__global__[^{;]*\b(\w+)\s*\([^{;]*\)\s*\{')


def too_large(unit: Unit, kernel: str, extra: int = 101_376) -> Unit:
    """A tile of so many bytes more than the kernel asks for."""
    warps, shared = unit.functions[kernel]
    return replace(unit, functions={**unit.functions, kernel: (warps, shared + extra)})


def too_large_static(unit: Unit, kernel: str, size: int) -> Unit:
    """The same in the source: an array of its own in shared memory."""
    return _begin(
        unit, kernel,
        f"__shared__ int spoil[{size // 4}]; "
        "spoil[clock() % 32] = 1; __syncthreads(); if (spoil[clock() % 32] == 7) return; ",
    )  # fmt: skip


def spilling(unit: Unit, kernel: str) -> Unit:
    """More values alive at a time than a thread may have registers."""
    live = "".join(f"int v{i} = clock(); " for i in range(600))
    used = "".join(f"sum = sum * 3 ^ v{i}; " for i in reversed(range(600)))
    return _begin(unit, kernel, f"{live} int sum = 0; {used} if (sum == 12345) return; ")


def local_array(unit: Unit, kernel: str) -> Unit:
    """An array that is indexed by what nobody knows before it runs: local memory, no spill."""
    return _begin(
        unit, kernel,
        "volatile int spoil[64]; spoil[clock() % 64] = 1; if (spoil[clock() % 64] == 7) return; ",
    )  # fmt: skip


def instruction(unit: Unit, kernel: str, text: str) -> Unit:
    """An instruction of PTX at the kernel's beginning."""
    return _begin(unit, kernel, f'asm volatile("{text}" ::: "memory"); ')


def _begin(unit: Unit, kernel: str, code: str) -> Unit:
    for found in _BODY.finditer(unit.source):
        if found.group(1) == kernel:
            at = found.end()
            return replace(unit, source=unit.source[:at] + code + unit.source[at:])
    raise AssertionError(f"no kernel {kernel} in the source")
