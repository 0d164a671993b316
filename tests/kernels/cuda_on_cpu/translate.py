"""From sm120's CUDA source to C++ for the machine in ``machine.h``.

C++ compilers take the source as it is but for two things: PTX in ``asm`` statements, each of which
becomes a call of a function of the machine, and the dynamic shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# By what stands in the statement, the first that fits.
CALLS = {
    "fence.": "nothing",
    "griddepcontrol.": "nothing",
    "MBARRIER_WAIT": "mbarrier_wait",
    "mbarrier.init": "mbarrier_init",
    "mbarrier.arrive.expect_tx": "mbarrier_expect",
    "cp.async.mbarrier.arrive.noinc": "copy_async_arrive",
    "cp.async.bulk": "copy_bulk",
    "cp.async.cg": "copy_async",
    "mbarrier.arrive": "mbarrier_arrive",
    "barrier.cta.arrive %0, 64;": "named_arrive",
    "barrier.cta.sync %0, 64;": "named_sync",
    "x4.trans": "load_matrix_transposed",
    "ldmatrix": "load_matrix",
    "ld.shared.v4": "load_shared",
    "st.shared.v4": "store_shared",
    "mma.sync.aligned.m16n8k16": "matrix_multiply",
    "ex2.approx": "power_of_two",
    "cvt.rn.bf16x2": "to_bf16_pair",
}
SHARED = "extern __shared__ __align__(128) unsigned char memory[];"


def translated(source: str) -> str:
    """The source as C++; raises ValueError at an instruction that the machine does not have."""
    if source.count(SHARED) != 1:
        raise ValueError(f"not one line {SHARED!r}")
    source = source.replace(SHARED, "unsigned char* memory = machine::shared.data();")
    parts, at = [], 0
    for found in re.finditer(r"\basm( volatile)?\s*\(", source):
        end = _closing(source, found.end() - 1)
        parts += [source[at : found.start()], _call(source[found.end() : end])]
        at = end + 1
    return "".join([*parts, source[at:]])


def _call(statement: str) -> str:
    name = next((call for sign, call in CALLS.items() if sign in statement), None)
    if name is None:
        raise ValueError(f"the machine has no such instruction: {statement}")
    return f"{name}({', '.join(_operands(statement))})" if name != "nothing" else "nothing()"


def _operands(statement: str) -> Iterator[str]:
    """Outputs, then inputs: what stands in parentheses behind a constraint."""
    for found in re.finditer(r'"([+=]?)[rlf]"\s*\(', statement):
        if found[1] == "+":
            yield f"({statement[found.end() : _closing(statement, found.end() - 1)]})"
    for found in re.finditer(r'"(=?)[rlf]"\s*\(', statement):
        yield f"({statement[found.end() : _closing(statement, found.end() - 1)]})"


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis closes; strings may hold any."""
    depth, quoted = 0, False
    for at in range(opening, len(text)):
        if text[at] == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            if depth == 0:
                return at
    raise ValueError(f"no closing parenthesis: {text[opening : opening + 80]}")
