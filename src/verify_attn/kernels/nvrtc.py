"""Compile a CUDA source for an architecture: no host compiler, no driver and no GPU.

    built = build(source, "verify_sm120.cu", "sm_120", {"LATENT": 512, "ROPE": 64})
    built.cubin, built.log, built.resources({"verify_split": (12, 98_304)})

NVRTC does it, through cuda.core's `Program`.  Builds are kept on disk (`nvrtc_cache`).  cuda is
imported when something is built, never before.
"""

from __future__ import annotations

import functools
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verify_attn.kernels.base import KernelError
from verify_attn.kernels.nvrtc_cache import Cache, entry_key, user_cache
from verify_attn.kernels.resources import Resources, by_kernel, parse_ptxas

INSTALL = "pip install 'verify-attn[cuda]'"
# The first CUDA whose NVRTC knows the architecture.  Source: the release notes of CUDA.
FIRST_CUDA = {
    80: (11, 0), 86: (11, 1), 89: (11, 8), 90: (11, 8), 100: (12, 8), 103: (12, 9),
    120: (12, 8), 121: (12, 9),
}  # fmt: skip
_ARCH = re.compile(r"sm_(\d+)[af]?")


class BuildError(KernelError):
    """A source that does not compile, or code that does not load."""


class ToolchainError(BuildError):
    """Nothing is known to be wrong with the source: NVRTC is not here, or cannot do this."""


@dataclass(frozen=True)
class Unit:
    """One compilation, and how what it makes is launched.

    ``label``      of these settings, in tables
    ``name``       of the file, in the compiler's messages
    ``defines``    macros
    ``functions``  kernel -> (warps of a block, dynamic shared memory of a block in bytes)
    ``options``    further fields of cuda.core's `ProgramOptions`
    """

    label: str
    source: str
    defines: Mapping[str, int]
    functions: Mapping[str, tuple[int, int]]
    name: str = "kernel.cu"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """A compiled source.  ``log`` is ptxas's; ``nvrtc`` the version; ``cached``: read from disk."""

    cubin: bytes
    log: str
    arch: str
    nvrtc: tuple[int, int]
    cached: bool

    def resources(self, functions: Mapping[str, tuple[int, int]]) -> dict[str, Resources]:
        """What each kernel takes, by ptxas; ``functions`` as in `Unit`: what a launch adds."""
        logs = by_kernel(self.log)
        missing = sorted(set(functions) - set(logs))
        if missing:
            raise BuildError(
                f"the source has no kernel {missing[0]!r}; it has: {', '.join(logs) or 'none'}"
            )
        return {
            name: parse_ptxas(logs[name], warps, shared)
            for name, (warps, shared) in functions.items()
        }


@dataclass(frozen=True)
class Nvrtc:
    """The NVRTC here.  ``size_bytes``: releases of one version differ, and so does their
    code."""

    version: tuple[int, int]
    architectures: tuple[int, ...]
    path: str
    size_bytes: int

    def __str__(self) -> str:
        return "NVRTC {}.{}".format(*self.version)


@functools.cache
def nvrtc() -> Nvrtc:
    """The NVRTC that cuda.core would use; raises `ToolchainError` without one."""
    try:
        from cuda import core
        from cuda.bindings import nvrtc as bindings
        from cuda.pathfinder import load_nvidia_dynamic_lib

        for name in ("Device", "ObjectCode", "Program", "ProgramOptions"):  # old ones lack some
            if not hasattr(core, name):
                raise ImportError(f"cuda.core {core.__version__} has no {name}: too old")
    except ImportError as error:
        raise ToolchainError(
            f"CUDA kernels are compiled by cuda.core, which cannot be imported ({error}); {INSTALL}"
        ) from None
    try:
        library = str(load_nvidia_dynamic_lib("nvrtc").abs_path)
        version = _value(bindings.nvrtcVersion())
        architectures = _value(bindings.nvrtcGetSupportedArchs())[0]
        size = os.stat(library).st_size
    except (RuntimeError, OSError) as error:
        raise ToolchainError(
            f"no NVRTC (libnvrtc) is found in Python's packages, CUDA_HOME or the system: "
            f"{' '.join(str(error).split())}; {INSTALL}, or install a CUDA toolkit"
        ) from None
    return Nvrtc((version[0], version[1]), tuple(architectures), library, size)


def _value(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"it answers {status!r}")
    return tuple(values)


def check_architecture(arch: str, compiler: Nvrtc) -> None:
    """Raise `BuildError` or `ToolchainError` where this NVRTC has no such architecture."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise BuildError(f"the architecture is {arch!r}; it is written like sm_120 or sm_90a")
    number = int(found.group(1))
    if number in compiler.architectures:
        return
    first = FIRST_CUDA.get(number)
    if first is not None and compiler.version < first:
        why = "is too old for {}: that needs {}.{} or newer; {}".format(arch, *first, INSTALL)
    else:
        why = f"does not compile for {arch}"
    known = ", ".join(f"sm_{known}" for known in compiler.architectures)
    raise ToolchainError(f"{compiler} ({compiler.path}) {why}. It knows {known}")


def build(
    source: str,
    name: str,
    arch: str,
    defines: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    cache: Cache | None = None,
) -> Built:
    """Compile, or find what was compiled before.

    ``name``, ``defines``, ``options``: as in `Unit`.  ``cache``: another than the user's.  Raises
    `ToolchainError` where nothing can be compiled, and `BuildError` with the compiler's log.
    """
    compiler = nvrtc()
    check_architecture(arch, compiler)
    macros, fields = dict(defines or {}), dict(options or {})
    cache = user_cache() if cache is None else cache
    key = entry_key(
        source=source, name=name, arch=arch, defines=macros, options=fields,
        nvrtc=[*compiler.version, compiler.size_bytes],
    )  # fmt: skip
    if found := cache.get(key):
        head, cubin = found
        return Built(cubin, head["log"], arch, compiler.version, cached=True)
    cubin, log = _compile(source, name, arch, macros, fields, compiler)
    cache.put(key, {"log": log}, cubin)
    return Built(cubin, log, arch, compiler.version, cached=False)


def _compile(
    source: str,
    name: str,
    arch: str,
    macros: dict[str, int],
    fields: dict[str, Any],
    compiler: Nvrtc,
) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    try:
        options = ProgramOptions(
            name=name, arch=arch, ptxas_options=["-v"],
            define_macro=[(macro, str(value)) for macro, value in macros.items()] or None, **fields,
        )  # fmt: skip
        cubin = bytes(Program(source, "c++", options).compile("cubin", logs=log).code)
    except Exception as error:  # cuda.core's errors have no public base
        settings = " ".join(f"-D{macro}={value}" for macro, value in macros.items())
        raise BuildError(
            f"{name} does not compile for {arch} with {compiler}"
            f"{f' and {settings}' if settings else ''}:\n{_printable(str(error))}"
        ) from error
    return cubin, _printable(log.getvalue())


def _printable(log: str) -> str:
    """NVRTC ends its logs with the zeros of its buffer."""
    return log.replace("\0", "").strip()
