"""sm120's CUDA source, run on a CPU thread by thread in random orders: see cuda_on_cpu/machine.h.

What it answers, that it answers the same in whatever order warps run and copies land, and that each
wait in it is needed.  Needs a C++ compiler, g++.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.cuda_on_cpu.kernel import OnCpu, machine_code
from tests.kernels.cuda_on_cpu.translate import translated
from tests.kernels.mutants_sm120 import STUCK, WRONG
from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.trial import CheckFailed, NotApplicable, Output, Trial, is_poison
from verify_attn.generate import Case
from verify_attn.kernels import sm120
from verify_attn.kernels.base import ObjectKernel
from verify_attn.perf.projection_work import DESIGNS
from verify_attn.record import read_record

if shutil.which("g++") is None:
    if os.environ.get("VERIFY_ATTN_REQUIRE_CXX"):
        raise RuntimeError("VERIFY_ATTN_REQUIRE_CXX is set and there is no g++; install one")
    pytest.skip("there is no C++ compiler (g++) to run it with", allow_module_level=True)

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
K26 = Case(((3, "chain:1"),), geometry="kimi-k2.6-tp8", dtype="bfloat16", layout="shuffled")
TWO_HEADS = K26.changed(geometry="kimi-k2.6-tp8/2")
# Of some 50 tiles each: one takes 2 ms here.
CASES = {
    "one node": K26.changed(requests=((40, "chain:1"),)),
    "short": K26.changed(
        requests=((40, "random:9:1"), (3, "star:3"), (200, "chain:17")), page_size=3
    ),
    "long": TWO_HEADS.changed(requests=((600, "random:33:1"),), page_size=64, values="large"),
    "none": TWO_HEADS.changed(
        requests=((0, "chain:8"), (60, "random:130:2"), (0, "padding:2")), node_kv=True
    ),
    "many": TWO_HEADS.changed(
        requests=tuple((30 + 37 * i, f"random:{1 + i}:{i}") for i in range(7)), values="low",
        node_kv=True, tail_rows=1, slack=1,
    ),
    "wide": K26.changed(
        requests=((150, "ddtree:16:3"),), geometry="kimi-k2.6-tp8/17", values="dominant"
    ),
}  # fmt: skip


def on_cpu(blocks: int = 5, arch: int = 900, source: str | None = None) -> ObjectKernel:
    kernel = OnCpu(blocks, arch, source)
    return ObjectKernel("sm120 on a CPU", kernel, kernel.capabilities)


@pytest.mark.parametrize(
    ("name", "arch", "blocks"),
    [(name, 800, 3) for name in CASES] + [(name, 900, 16) for name in ("short", "long", "none")],
)
def test_every_check(name: str, arch: int, blocks: int) -> None:
    """With few blocks, whose tiles end anywhere, and with more blocks than there are tiles."""
    ran = set()
    for check in CHECKS.values():
        with contextlib.suppress(NotApplicable):
            check.run(Trial(on_cpu(blocks, arch), CASES[name], CPU))
            ran.add(check.name)
    assert len(ran) >= 13, ran


def answer(kernel: ObjectKernel, case: Case) -> Output:
    trial = Trial(kernel, case, CPU)
    output = trial.output
    trial.compare(output, trial.reference, trial.batch, "it differs from the reference")
    trial.compare_lse(output, trial.reference, trial.batch)
    return output


@pytest.mark.parametrize("arch", [800, 900])
@pytest.mark.parametrize("name", ["short", "long", "none"])
def test_in_whatever_order_the_answer_is_the_same(name: str, arch: int) -> None:
    kernel = on_cpu(4, arch)  # every run has another seed
    first, *others = [answer(kernel, CASES[name]) for _ in range(6)]
    for other in others:
        assert torch.equal(first.out, other.out)
        assert torch.equal(first.lse, other.lse)


@pytest.mark.parametrize("token", [0, 150, 299])
def test_a_nan_comes_out(token: int) -> None:
    case = K26.changed(requests=((300, "random:5:1"), (90, "star:3")), page_size=16)
    trial = Trial(on_cpu(), case, CPU)
    batch = trial.batch
    page = int(batch.page_table[0, token // 16])
    batch.kv_pool[page, token % 16, 7] = torch.nan
    output = trial.run(batch)
    for each in (output.out, output.lse):
        assert not is_poison(each).any()
        assert each[:5].isnan().all()
        assert each[5:].isfinite().all()


@pytest.mark.parametrize("name", WRONG)
def test_what_is_left_out_is_noticed(name: str) -> None:
    with pytest.raises(CheckFailed):
        answer_often(spoiled(*WRONG[name]))


@pytest.mark.parametrize("told", STUCK)
def test_the_machine_says_what_went_wrong(told: str) -> None:
    with pytest.raises(CheckFailed, match=told):
        answer_often(spoiled(*STUCK[told]))


def spoiled(there: str, instead: str) -> str:
    """The source, which still compiles: that it does not would be noticed by anybody."""
    assert sm120.source().count(there) == 1
    source = sm120.source().replace(there, instead)
    machine_code(512, 64, 900, source)
    return source


def answer_often(source: str) -> None:
    """With few blocks, and with so many that merge blocks share a row's parts."""
    for _ in range(6):
        for case in ("short", "long", "none", "many"):
            for blocks in (5, 40):
                answer(on_cpu(blocks, source=source), CASES[case])


def test_random_cases(tmp_path: Path) -> None:
    module = "tests.kernels.cuda_on_cpu.fuzz"
    command = [sys.executable, "-m", module, "--examples", "4", "--json", str(tmp_path / "r.json")]
    done = subprocess.run(command, check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    record = read_record(tmp_path / "r.json")
    ran = {case["id"]: case["metrics"]["executed"] for case in record["cases"]}
    assert set(ran) == set(CHECKS)
    assert sum(ran.values()) >= 4


def test_pages_past_the_reach_of_32_bits() -> None:
    CHECKS["high-slots"].run(Trial(on_cpu(), CASES["one node"], CPU))
    # One that cuts addresses off reads where there is nothing, and ends the process.
    there = "asked.page * p.page_stride + asked.row * p.row_stride"
    script = (
        "from tests.kernels.test_sm120_on_cpu import *\n"
        f"kernel = on_cpu(source=spoiled({there!r}, {f'int({there})'!r}))\n"
        "print('compiled', flush=True)\n"
        "CHECKS['high-slots'].run(Trial(kernel, CASES['one node'], CPU))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert (done.stdout, done.returncode) == ("compiled\n", -signal.SIGSEGV)


@pytest.mark.parametrize("arch", [800, 900])
def test_what_a_tile_costs_is_what_the_projection_counts_with(arch: int) -> None:
    """Products, bytes of shared memory and of KV; and no two lanes ask one bank for two words."""
    case, design, rows = K26.changed(requests=((500, "random:16:1"),)), DESIGNS["sm120"], 64
    kernel = on_cpu(3, arch)
    answer(kernel, case)
    counts, width, latent, units = kernel.target.counts, 576, 512, 2
    tiles = units * -(-516 // design.tokens)
    assert (design.rows, design.tokens) == (rows, 16)
    assert counts.products * 16 * 8 * 16 == tiles * rows * 16 * (width + latent)
    keys, values, weights = 16 * width * 2, 16 * latent * 2, rows * 16 * 2
    assert counts.matrix_bytes == tiles * (
        design.key_reads * keys + design.value_reads * values + design.weight_reads * weights
    )
    assert counts.matrix_wavefronts * 128 == counts.matrix_bytes
    assert counts.vector_bytes == tiles * design.query_pieces * 512
    assert counts.copied_bytes == units * 516 * width * 2


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("constexpr int PITCH = WIDTH * 2 + 16;", "constexpr int PITCH = WIDTH * 2;"),
        ("(lane / 16 ^ lane / 4 % 2) * 16", "lane / 16 * 16"),
    ],
)
def test_rows_that_lie_in_the_same_banks_are_noticed(there: str, instead: str) -> None:
    kernel = on_cpu(source=spoiled(there, instead))
    trial = Trial(kernel, CASES["one node"], CPU)
    trial.run(trial.batch)
    counts = kernel.target.counts
    assert counts.matrix_wavefronts * 128 > counts.matrix_bytes


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("ex2.approx.ftz.f32", "tanh.approx.f32"),
        ("f32.bf16.bf16.f32", "f32.f16.f16.f32"),
        ("cvt.rn.bf16x2.f32 %0, %1, %2;", "cvt.rn.bf16x2.f32 %0, %2, %1;"),
        ("[%0], [%1], 16, %2;", "[%0], [%1], 16;"),
        ("x4.shared.b16 {%0,%1,%2,%3}", "x4.shared.b16 {%0,%2,%1,%3}"),
        ("@!done bra again", "@done bra again"),
        ("mbarrier.test_wait.parity.shared.b64", "mbarrier.test_wait.shared.b64"),
    ],
)
def test_an_instruction_that_the_machine_lacks_is_named(there: str, instead: str) -> None:
    assert there in sm120.source()
    with pytest.raises(ValueError, match="the machine has no such instruction: "):
        translated(sm120.source().replace(there, instead))
