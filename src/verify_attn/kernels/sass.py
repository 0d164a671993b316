"""The machine code of a cubin: which instructions, how often.

    counts = instructions(cubin)["verify_split"]
    count(counts, "HMMA.*"), count(counts, "LDGSTS.*.128*")

nvdisasm reads it; Triton's wheels for Linux bring one along.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from verify_attn.kernels.base import KernelError

# What sm_90 has and sm_120 lacks, or has only with other sizes: warpgroup products, register
# hand-over, tensor-map copies, tensor memory, clusters.  Bulk copies (UBLKCP) both have; for sm_80,
# which lacks them, a source that uses them does not compile.
NOT_PORTABLE = (
    "?GMMA*", "WARPGROUP*", "USETMAXREG*", "UTMA*", "UTC*", "LDTM*", "STTM*", "*CGA*",
)  # fmt: skip
LOCAL_MEMORY = ("LDL*", "STL*")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_ANY_SECTION = re.compile(r"^\s*\.section\s")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)")


class SassError(KernelError):
    """The code cannot be read; the message says why."""


def disassembler() -> Path:
    """nvdisasm, of Triton's wheel or on PATH."""
    spec = importlib.util.find_spec("triton")
    places = spec.submodule_search_locations if spec is not None else None
    for place in places or ():
        path = Path(place) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if os.access(path, os.X_OK):
            return path
    if found := shutil.which("nvdisasm"):
        return Path(found)
    raise SassError("no nvdisasm in Triton's package or on PATH; pip install triton has one")


def disassemble(cubin: bytes) -> str:
    """The code as nvdisasm prints it; `SassError` with its words if it cannot."""
    tool = disassembler()
    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            done = subprocess.run(
                [tool, "--print-code", file.name], capture_output=True, text=True, check=False
            )
    except OSError as error:  # no room, or a tool for another machine
        raise SassError(f"{tool} cannot be started on a file of code: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).replace(file.name, "the cubin").strip()
        raise SassError(
            f"{tool} does not read this cubin: {said or f'exit status {done.returncode}'}; it may "
            f"be older than the compiler"
        )
    return done.stdout


def instructions(cubin: bytes) -> dict[str, Counter[str]]:
    """Kernel -> instruction with its suffixes (``LDGSTS.E.BYPASS.128``) -> how often it stands."""
    return parse(disassemble(cubin))


def parse(text: str) -> dict[str, Counter[str]]:
    """The same of nvdisasm's text."""
    found: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in text.splitlines():
        if section := _SECTION.match(line):
            current = found.setdefault(section.group(1), Counter())
        elif _ANY_SECTION.match(line):
            current = None
        elif current is not None and (instruction := _INSTRUCTION.match(line)):
            current[instruction.group(1)] += 1
    if not any(found.values()):
        raise SassError(f"no instructions in what nvdisasm says: {text.strip()[:200] or 'nothing'}")
    return found


def count(counts: Mapping[str, int], *patterns: str) -> int:
    """How many instructions fit one of these shell patterns."""
    return sum(
        times for name, times in counts.items() if any(fnmatchcase(name, p) for p in patterns)
    )


def matching(counts: Mapping[str, int], *patterns: str) -> list[str]:
    """Which instructions fit one of these, sorted."""
    return sorted(name for name in counts if any(fnmatchcase(name, p) for p in patterns))
