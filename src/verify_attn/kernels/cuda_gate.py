"""Compile the CUDA kernel `sm120` for an architecture, and hold it to its limits.

Its shared memory is sm_120's everywhere: what runs on the card at hand is then what runs there.
It may not spill, nor use local memory otherwise, nor instructions that one of its architectures
lacks.  Nothing here needs a GPU or a driver.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verify_attn.kernels import sass
from verify_attn.kernels.nvrtc import BuildError, Built, ToolchainError, Unit, build, nvrtc
from verify_attn.kernels.nvrtc_cache import Cache
from verify_attn.kernels.resources import (
    Limits,
    Occupancy,
    Resources,
    broken_limits,
    limits_of,
    occupancy,
)

KERNEL = "sm120"
ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
SHARED_LIMIT = limits_of("sm_120").shared_per_block


@dataclass(frozen=True)
class Gated:
    """One kernel of one build.

    ``function``, ``label``  the kernel, and it with its settings
    ``resources``, ``occupancy``, ``sass``   None if it does not compile; ``sass`` too if no
                  disassembler reads it: instruction -> how often
    ``problems``  what it breaks, as sentences; empty if it may be launched
    ``notes``     what was not looked at, and why
    """

    arch: str
    function: str
    label: str
    resources: Resources | None
    occupancy: Occupancy | None
    sass: dict[str, int] | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    compiler: str


Progress = Callable[[int, int, Gated], None]


def units_of(arch: str) -> list[Unit]:
    """The builds of `sm120` for ``arch``; empty for an architecture that it is not for."""
    import verify_attn.kernels.sm120 as sm120

    return list(sm120.builds(arch)) if arch in ARCHITECTURES else []


def gate(
    units: Iterable[Unit],
    arch: str,
    *,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> list[Gated]:
    """Compile each unit and judge each of its kernels.

    ``cache``: another than the user's.  Raises `ToolchainError` where nothing can be compiled for
    ``arch``; a unit that does not compile is in the list, with its ``problems``.
    """
    limits, compiler = limits_of(arch), str(nvrtc())
    chosen = list(units)
    total, found = sum(len(unit.functions) for unit in chosen), []
    for unit in chosen:
        started = time.perf_counter()
        try:
            judged = _judge(unit, _built(unit, arch, cache), limits)
        except ToolchainError:
            raise
        except BuildError as wrong:
            judged = {name: (None, None, (str(wrong),), ()) for name in unit.functions}
        seconds = time.perf_counter() - started
        for name, (resources, counts, problems, notes) in judged.items():
            fits = occupancy(resources, limits) if resources else None
            label = f"{name} {unit.label}"
            found.append(Gated(
                arch, name, label, resources, fits, counts, problems, notes, seconds, compiler
            ))  # fmt: skip
            if progress is not None:
                progress(len(found), total, found[-1])
    return found


def _built(unit: Unit, arch: str, cache: Cache | None) -> Built:
    return build(unit.source, unit.name, arch, unit.defines, unit.options, cache=cache)


_Judged = tuple[Resources | None, dict[str, int] | None, tuple[str, ...], tuple[str, ...]]


def _judge(unit: Unit, built: Built, limits: Limits) -> dict[str, _Judged]:
    counts: dict[str, Counter[str]] = {}
    notes: tuple[str, ...] = ()
    try:
        counts = sass.instructions(built.cubin)
    except sass.SassError as unread:
        notes = (f"instructions not looked at: {unread}",)
    judged: dict[str, _Judged] = {}
    for name, resources in built.resources(unit.functions).items():
        code = counts.get(name)
        problems = [*own_limits(resources, limits), *forbidden(code or {})]
        judged[name] = (resources, dict(code) if code else None, tuple(problems), notes)
    return judged


def own_limits(resources: Resources, limits: Limits) -> tuple[str, ...]:
    """The limits of the architecture and of this kernel that it breaks, as sentences."""
    broken = list(broken_limits(resources, limits, max_spill_bytes=0))
    if SHARED_LIMIT < resources.shared <= limits.shared_per_block:
        broken.append(
            f"shared memory {resources.shared:,} bytes is over the {SHARED_LIMIT:,} that this "
            f"kernel may take on every architecture, the most of a block on sm_120: a smaller tile "
            f"or fewer stages"
        )
    if resources.stack and not resources.spills:
        broken.append(
            f"a stack of {resources.stack:,} bytes a thread is local memory, of which this kernel "
            f"may have none: an array that is indexed by what is not a constant, or a call"
        )
    return tuple(broken)


def forbidden(counts: dict[str, int] | Counter[str]) -> list[str]:
    """Instructions in the machine code that this kernel may not use, as sentences."""
    problems = []
    if there := sass.matching(counts, *sass.NOT_PORTABLE):
        problems.append(
            f"instructions that not every one of {', '.join(ARCHITECTURES)} has: {', '.join(there)}"
        )
    if there := sass.matching(counts, *sass.LOCAL_MEMORY):
        problems.append(f"instructions that use local memory: {', '.join(there)}")
    return problems
