"""Other projects' kernels themselves: those that are installed, in the interpreter or on a GPU."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
from pathlib import Path

import pytest
import torch

from tests.kernels import stand_ins
from tests.kernels.test_peers import ASKED, asked
from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.support import INPUTS
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Output,
    Trial,
    poisoned_outputs,
)
from verify_attn.generate import Case, contents
from verify_attn.kernels.base import KernelError
from verify_attn.kernels.peers import PEERS, available, sglang_file
from verify_attn.kernels.registry import load

TREES = Case(((70, "random:33:1"), (0, "star:3"), (200, "comb:7+1")), page_size=3,
             layout="shuffled")  # fmt: skip


@pytest.mark.parametrize("name", ["sdpa", "flex"])
@pytest.mark.parametrize(
    "case",
    [
        TREES,
        TREES.changed(dtype="bfloat16", node_kv=True),
        TREES.changed(pool="row-stride", slack=9),
    ],
)
def test_pytorchs_own(name: str, case: Case) -> None:
    made = asked(load(name).target, case, (*ASKED, "empty", "padding", "non-ancestor"))
    assert made >= {"oracle", "written", "empty", "padding", "plan-reuse", "non-ancestor"}
    assert ("lse" in made) == (name == "flex")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is compiled: see below")
def test_sglangs_own_in_the_interpreter() -> None:
    if why := available()["sglang-extend"]:
        pytest.skip(why)
    adapter = load("sglang-extend").target
    case = Case(((37, "random:9:1"), (0, "star:3")), page_size=3)
    made = asked(adapter, case, ("oracle", "lse", "plan-reuse"))
    assert made >= {"oracle", "plan-reuse"}
    assert ("lse" in made) == adapter.capabilities.lse


@pytest.mark.parametrize("name", PEERS)
def test_listed_and_loaded_or_refused_for_the_same_reason(name: str) -> None:
    why = available()[name]
    if why is None:
        assert load(name).name == name
        return
    with pytest.raises(KernelError) as raised:
        load(name)
    assert str(raised.value) == f"{name} cannot be used here: {why}"


def parameters(source: str, function: str) -> list[str]:
    """Of the last function of that name in a file (an overload's comes before)."""
    found = [
        node for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]  # fmt: skip
    arguments = max(found, key=lambda node: node.lineno).args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args)]


@pytest.mark.parametrize(
    ("module", "file", "stand_in", "functions"),
    [
        ("flashinfer", "mla.py", stand_ins.BatchMLAPagedAttentionWrapper, ("plan", "run")),
        ("flash_mla", "flash_mla_interface.py", stand_ins.FlashMla,
         ("get_mla_decoding_metadata", "flash_mla_with_kvcache")),
    ],
)  # fmt: skip
def test_signatures_are_the_packages(
    module: str, file: str, stand_in: type, functions: tuple[str, ...]
) -> None:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{module} is not installed")
    source = Path(spec.submodule_search_locations[0], file).read_text()
    for function in functions:
        expected = list(inspect.signature(getattr(stand_in, function)).parameters)
        assert [p for p in parameters(source, function) if p != "self"] == [
            p for p in expected if p != "self"
        ]


def test_sglangs_signature_is_one_of_the_three() -> None:
    found = sglang_file("extend_attention")
    if found is None:
        pytest.skip("sglang is not installed")
    package, root = found
    source = root.joinpath(*package.split("."), "extend_attention.py").read_text()
    known = [
        list(inspect.signature(kind.extend_attention_fwd).parameters)[1:]
        for kind in (stand_ins.SGLang0510, stand_ins.SGLang0516, stand_ins.SGLang0523)
    ]
    assert parameters(source, "extend_attention_fwd") in known


GPU_CASES = {
    "chain": Case(((1500, "chain:8"),), geometry="kimi-k2.6-tp8", dtype="bfloat16"),
    "chain-64": Case(((1500, "chain:33"), (70, "chain:33")), page_size=64, layout="shuffled",
                     geometry="kimi-k2.6-tp8", dtype="bfloat16"),
    "no-prefix": Case(((0, "chain:8"), (300, "chain:8")), page_size=64, layout="shuffled",
                      geometry="kimi-k2.6-tp8", dtype="bfloat16"),
    "unequal": Case(((900, "chain:17"), (31, "chain:3")), page_size=1, layout="shuffled",
                    geometry="kimi-k2.6-tp8", dtype="bfloat16"),
    "tree": Case(((1500, "ddtree:32:1"), (40, "star:5")), page_size=16, layout="churned",
                 geometry="kimi-k2.6-tp8", dtype="bfloat16"),
    "tree-64": Case(((700, "random:65:1"),), page_size=64, geometry="kimi-k2.6-tp8",
                    dtype="bfloat16"),
    "fp8": Case(((1500, "chain:8"), (70, "chain:8")), page_size=64, layout="shuffled",
                geometry="kimi-k2.6-tp8", dtype="bfloat16", kv_dtype="float8_e4m3fn"),
}  # fmt: skip


# Found by test_known_defects.py: the rows of a request without prefix are NaN.
KNOWN_WRONG = {("sglang-verify-mla", "no-prefix")}


@pytest.mark.gpu
# torch.compile imports a part of torch that uses another, deprecated, one.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("name", PEERS)
def test_on_the_gpu(name: str, case: str) -> None:
    if why := available()[name]:
        pytest.skip(why)
    kernel, device = load(name), torch.device("cuda")
    try:
        _ = Trial(kernel, GPU_CASES[case], device).batch
    except NotApplicable as reason:
        pytest.skip(f"{name}: {reason}")
    if (name, case) in KNOWN_WRONG:
        with pytest.raises(CheckFailed, match="out differs"):
            CHECKS["oracle"].run(Trial(kernel, GPU_CASES[case], device))
        return
    for check in ("oracle", "lse", "written", "batch-alone", "plan-reuse"):
        trial = Trial(kernel, GPU_CASES[case], device)
        try:
            CHECKS[check].run(trial)
        except NotApplicable:
            continue
        assert math.isfinite(trial.worst)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["chain-64", "fp8", "tree"])
@pytest.mark.parametrize("name", PEERS)
def test_a_replayed_graph_is_right_for_other_lengths(name: str, case: str) -> None:
    """With as many nodes: what the check `capture` draws has fewer, which some do not take."""
    if why := available()[name]:
        pytest.skip(why)
    kernel, given, device = load(name), GPU_CASES[case], torch.device("cuda")
    if not kernel.capabilities.capture:
        pytest.skip(f"{name} does not declare capture")
    trial = Trial(kernel, given, device)
    shorter = given.changed(requests=tuple((p // 3, tree) for p, tree in given.requests), seed=1)
    try:
        batch = trial.batch
        other = trial.arrange(contents(shorter, device), given.arrangement, like=batch)
    except NotApplicable as reason:
        pytest.skip(f"{name}: {reason}")
    plan = trial.plan(batch)
    trial.prepare(batch, plan)
    out, lse = batch.outputs()
    trial.launch(batch, plan, *poisoned_outputs(batch))  # compiles outside the graph
    graph = trial.capture(lambda: kernel.run(batch, plan, out, lse))
    for name_of in INPUTS:
        if getattr(batch, name_of) is not None:
            getattr(batch, name_of).copy_(getattr(other, name_of))
    now = batch.with_fields()  # the lengths on the host are read anew
    trial.prepare(now, plan)
    graph.replay()
    torch.cuda.synchronize()
    live = now.offset_list[-1]
    trial.compare(Output(out[:live], lse[:live]), trial.judge(other), other, "replayed")
