"""From sm120's CUDA source to C++ for the machine in ``machine.h``.

C++ compilers take the source as it is but for two things: PTX in ``asm`` statements, each of which
becomes a call of a function of the machine, and the dynamic shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# By the whole text of the instruction: another one, or other operands, has no place here.
CALLS = {
    "fence.mbarrier_init.release.cluster;": "nothing",
    "fence.proxy.async.shared::cta;": "nothing",
    "griddepcontrol.launch_dependents;": "nothing",
    "griddepcontrol.wait;": "nothing",
    "mbarrier.init.shared.b64 [%0], %1;": "mbarrier_init",
    "{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }": "mbarrier_arrive",
    "{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }": "mbarrier_expect",
    "{ .reg .pred done; again: MBARRIER_WAIT done, [%0], %1; @!done bra again; }": "mbarrier_wait",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];": "copy_async_arrive",
    "cp.async.cg.shared.global [%0], [%1], 16, %2;": "copy_async",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];":
        "copy_bulk",
    "barrier.cta.arrive %0, 64;": "named_arrive",
    "barrier.cta.sync %0, 64;": "named_sync",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];": "load_matrix",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];":
        "load_matrix_transposed",
    "ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];": "load_shared",
    "st.shared.v4.b32 [%0], {%1,%2,%3,%4};": "store_shared",
    "st.shared.v4.b32 [%0], {%1,%1,%1,%1};": "store_shared",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
    "{%0,%1,%2,%3};": "matrix_multiply",
    "ex2.approx.ftz.f32 %0, %1;": "power_of_two",
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "to_bf16_pair",
}  # fmt: skip
WAITS = {"mbarrier.try_wait.parity.shared.b64", "mbarrier.test_wait.parity.shared.b64"}
SHARED = "extern __shared__ __align__(128) unsigned char memory[];"


def translated(source: str) -> str:
    """The source as C++; raises ValueError at an instruction that the machine does not have."""
    if source.count(SHARED) != 1:
        raise ValueError(f"not one line {SHARED!r}")
    if waits := set(re.findall(r'#define MBARRIER_WAIT "(.*)"', source)) - WAITS:
        raise ValueError(f"the machine has no such instruction: {waits}")
    source = source.replace(SHARED, "unsigned char* memory = machine::shared.data();")
    parts, at = [], 0
    for found in re.finditer(r"\basm( volatile)?\s*\(", source):
        end = _closing(source, found.end() - 1)
        parts += [source[at : found.start()], _call(source[found.end() : end])]
        at = end + 1
    return "".join([*parts, source[at:]])


def _call(statement: str) -> str:
    template = _template(statement)
    name = CALLS.get(template)
    if name is None:
        raise ValueError(f"the machine has no such instruction: {template}")
    return f"{name}({', '.join(_operands(statement))})" if name != "nothing" else "nothing()"


def _template(statement: str) -> str:
    """The instruction's text: all before the first colon outside strings, in single spaces."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([A-Z_]+)|(:)', statement)
    text = ""
    for quoted, macro, colon in parts:
        if colon:
            break
        text += quoted.replace("\\n", " ") if quoted else f" {macro} "
    return " ".join(text.split())


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
