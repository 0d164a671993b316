"""What the gate of sm120 refuses, and in which words: limits by literals, mutants by compiling."""

import io
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.kernels import mutants_cuda as mutants
from tests.kernels.small_cuda import SMALL, small
from verify_attn.cli import main
from verify_attn.kernels import cuda_gate, sass
from verify_attn.kernels.cuda_gate import ARCHITECTURES, forbidden, gate, own_limits
from verify_attn.kernels.nvrtc import ToolchainError
from verify_attn.kernels.nvrtc_cache import Cache
from verify_attn.kernels.resources import Resources, limits_of

NONE = Cache(None)


def judged(unit, arch="sm_120"):
    """Kernel -> what the gate says about it."""
    return {result.function: result for result in gate([unit], arch, cache=NONE)}


# -- a source that is fine -------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_source_within_its_limits(arch):
    seen = []
    results = gate([small()], arch, cache=NONE, progress=lambda *step: seen.append(step[:2]))
    assert seen == [(1, 2), (2, 2)]
    multiply, merge = results
    assert (multiply.problems, multiply.notes, merge.problems) == ((), (), ())
    assert (multiply.arch, multiply.label) == (arch, "multiply steps=4")
    assert multiply.resources.shared == 4_096
    # 4 warps each: 16 blocks and 12 are what the multiprocessors' 64 and 48 warps make room for.
    assert multiply.occupancy.blocks == (12 if arch == "sm_120" else 16)
    assert merge.occupancy.blocks == (24 if arch == "sm_120" else 32)
    assert sass.count(multiply.sass, "HMMA.16816.F32.BF16*") == 4
    assert sass.count(multiply.sass, "LDGSTS.*.128*") == 1
    assert multiply.compiler.startswith("NVRTC 1")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sm120_is_within_its_limits_and_made_of_what_was_meant(arch):
    found = judged(cuda_gate.units_of(arch)[0], arch)
    split, merge = found["verify_split"], found["verify_merge"]
    assert (split.problems, split.notes, merge.problems) == ((), (), ())
    assert split.resources.shared <= 101_376
    assert split.resources.registers <= 168
    assert split.resources.spills == split.resources.stack == merge.resources.spills == 0
    assert (split.occupancy.blocks, split.occupancy.warps) == (1, 12)
    # Products of bf16 with float32 sums: 72 of a score warp, 32 of a value warp; nothing else.
    assert sass.count(split.sass, "HMMA.16816.F32.BF16*") == sass.count(split.sass, "HMMA*") == 104
    # Rows come by bulk copies where there are such, else by copies of 16 bytes and no fewer.
    rows, pieces = sass.count(split.sass, "UBLKCP*"), sass.count(split.sass, "LDGSTS*")
    assert sass.count(split.sass, "LDGSTS.*.128*") == pieces
    assert (rows > 0, pieces > 0) == ((False, True) if arch == "sm_80" else (True, False))
    assert sass.count(split.sass, *sass.LOCAL_MEMORY) == 0
    assert sass.count(merge.sass, *sass.LOCAL_MEMORY) == 0


# -- limits ----------------------------------------------------------------------------------------


def block(shared=0, *, warps=12, registers=168, stack=0, spills=0):
    return Resources(warps, registers, 0, shared, stack, spills, spills)


def test_the_largest_block_may_be_launched_and_a_byte_more_may_not():
    for arch in ARCHITECTURES:
        assert own_limits(block(101_376), limits_of(arch)) == ()
        (sentence,) = own_limits(block(101_377), limits_of(arch))
        assert "101,377 bytes is over the 101,376" in sentence
    assert "on every architecture" in own_limits(block(101_377), limits_of("sm_90"))[0]


def test_registers_spills_and_stack():
    limits = limits_of("sm_120")
    assert own_limits(block(registers=169), limits) == (
        "169 registers a thread in 12 warps are over the 65,536 of sm_120",
    )
    assert own_limits(block(spills=4, stack=8), limits) == (
        "spills 8 bytes (4 stored, 4 loaded) are over the limit of 0",
    )
    (sentence,) = own_limits(block(stack=400), limits)
    assert sentence.startswith("a stack of 400 bytes a thread is local memory")


def test_instructions_that_are_forbidden_are_named():
    assert forbidden({"HMMA.16816.F32.BF16": 4, "LDGSTS.E.BYPASS.128": 2, "LDS": 1}) == []
    assert forbidden({"HGMMA.64x64x16.F32": 1, "UTMALDG.2D": 1, "STL": 3, "LDL.64": 1}) == [
        "instructions that not every one of sm_80, sm_90, sm_120 has: HGMMA.64x64x16.F32, "
        "UTMALDG.2D",
        "instructions that use local memory: LDL.64, STL",
    ]


# -- mutants ---------------------------------------------------------------------------------------

MUTANTS = {
    "a tile too large": (
        lambda unit, kernel: mutants.too_large(unit, kernel),
        r"shared memory \d{3},\d{3} bytes is over the 101,376 .*sm_120",
    ),
    "a static tile too large": (
        lambda unit, kernel: mutants.too_large_static(unit, kernel, 48_000),
        r"shared memory 1\d\d,\d{3} bytes is over the 101,376 .*sm_120",
    ),
    "a spill": (
        lambda unit, kernel: mutants.spilling(unit, kernel),
        r"spills [\d,]+ bytes \([\d,]+ stored, [\d,]+ loaded\) are over the limit of 0",
    ),
    "an array in local memory": (
        lambda unit, kernel: mutants.local_array(unit, kernel),
        r"a stack of [\d,]+ bytes a thread is local memory",
    ),
    "an instruction of sm_90": (
        lambda unit, kernel: mutants.instruction(unit, kernel, "wgmma.fence.sync.aligned;"),
        r"does not compile for sm_\d+ (.|\n)*'wgmma.fence' not supported on .target 'sm_\d+'",
    ),
    "registers handed over as on sm_90": (
        lambda unit, kernel: mutants.instruction(
            unit, kernel, "setmaxnreg.dec.sync.aligned.u32 40;"
        ),
        r"does not compile for sm_\d+ (.|\n)*'setmaxnreg.dec' not supported on .target 'sm_\d+'",
    ),
}


def sources():
    """A unit and its kernel that is to be spoiled: of the small source, and of the real one."""
    from verify_attn.kernels.cuda_gate import units_of

    return {
        "small": (replace(small(), functions={"multiply": (4, 60_000)}), "multiply"),
        "sm120": (units_of("sm_120")[0], "verify_split"),
    }


# Of the real source the three that matter; the small one compiles at once.
REAL = ("a tile too large", "a spill", "an instruction of sm_90")


@pytest.mark.parametrize(
    ("which", "name"), [("sm120", name) for name in REAL] + [("small", name) for name in MUTANTS]
)
def test_mutants_are_refused_with_the_reason(monkeypatch, tmp_path, which, name):
    unit, kernel = sources()[which]
    spoil, sentence = MUTANTS[name]
    monkeypatch.setattr(cuda_gate, "units_of", lambda arch: [spoil(unit, kernel)])
    monkeypatch.setenv("VERIFY_ATTN_CACHE", str(tmp_path))
    done = CliRunner().invoke(main, ["compile", "--kernel", "sm120", "--arch", "sm_120"])
    assert done.exit_code == 1, done.output
    line = next(line for line in done.output.splitlines() if line.startswith("over"))
    assert line.startswith(f"over sm_120 {kernel} {unit.label}: ")
    assert re.search(sentence, done.output)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["a tile too large", "an instruction of sm_90"])
def test_they_are_refused_where_the_hardware_would_allow_them_too(arch, name):
    spoil, sentence = MUTANTS[name]
    unit = replace(small(), functions={"multiply": (4, 50_000)})
    (problem,) = judged(spoil(unit, "multiply"), arch)["multiply"].problems
    assert re.search(sentence, problem)


def test_an_instruction_for_one_architecture_alone_is_seen_in_its_machine_code():
    """Clusters compile for sm_90 and sm_120; behind an #if they would not stop sm_80."""
    code = (
        "\\n#if __CUDA_ARCH__ >= 900\\n"
        'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;");'
        "\\n#endif\\nfloat c[4]"
    ).replace("\\n", "\n")
    unit = small(SMALL.replace("float c[4]", code, 1))
    assert judged(unit, "sm_80")["multiply"].problems == ()
    (problem,) = judged(unit, "sm_120")["multiply"].problems
    assert re.search(r"not every one of sm_80, sm_90, sm_120 has: .*UCGABAR", problem)


class Full(io.StringIO):
    """A stdout with no room, or that nobody reads any more."""

    def write(self, text):
        raise OSError(28, "No space left on device")


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, tmp_path):
    def invoke(*arguments, units=None):
        monkeypatch.setenv("VERIFY_ATTN_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(
            cuda_gate, "units_of", lambda arch: units or [small()] if arch in ARCHITECTURES else []
        )
        return CliRunner().invoke(main, ["compile", *arguments])

    return invoke


def test_every_architecture_is_in_the_table_and_in_the_record(run, tmp_path):
    record = tmp_path / "compile.json"
    archs = [word for arch in (*ARCHITECTURES, "sm_86") for word in ("--arch", arch)]
    done = run("--kernel", "sm120", *archs, "--json", str(record))
    assert done.exit_code == 0, done.output
    assert len(re.findall(r"^sm_\d+ +multiply steps=4 +4,096 ", done.output, re.M)) == 3
    assert "skipped sm_86/sm120: written for sm_80, sm_90, sm_120 only" in done.output
    assert re.search(r"compiled by NVRTC \d+\.\d+; static figures, nothing was run", done.output)
    cases = {case["id"]: case for case in json.loads(record.read_text())["cases"]}
    assert len(cases) == 7
    assert cases["sm_86/sm120"]["status"] == "skipped"
    assert cases["sm_86/sm120"]["metrics"] == {}
    found = cases["sm_120/multiply steps=4"]
    assert (found["status"], found["reason"]) == ("pass", None)
    assert found["metrics"]["shared_dynamic"] == 4_096
    assert found["metrics"]["occupancy"]["blocks"] == 12
    assert found["metrics"]["sass"]["LDGSTS.E.BYPASS.128"] == 1


def test_what_is_over_a_limit_is_failed_in_the_record(run, tmp_path):
    record = tmp_path / "compile.json"
    done = run("--kernel", "sm120", "--json", str(record), units=[small(shared=200_000)])
    assert done.exit_code == 1
    by_status = {case["status"]: case for case in json.loads(record.read_text())["cases"]}
    assert "200,000 bytes is over the 101,376" in by_status["fail"]["reason"]
    assert by_status["pass"]["parameters"]["function"] == "merge"


def test_the_record_is_there_when_nothing_can_be_shown(run, tmp_path, monkeypatch):
    from verify_attn import compile_command

    monkeypatch.setattr(compile_command, "output", lambda: Console(file=Full()))
    record = tmp_path / "compile.json"
    done = run("--kernel", "sm120", "--arch", "sm_80", "--json", str(record))
    assert isinstance(done.exception, OSError)
    assert len(json.loads(record.read_text())["cases"]) == 2


def test_an_architecture_given_twice_counts_once(run, tmp_path):
    record = tmp_path / "compile.json"
    run("--kernel", "sm120", "--arch", "sm_80", "--arch", "sm_80", "--json", str(record))
    assert len(json.loads(record.read_text())["cases"]) == 2


def test_nothing_to_compile_is_no_pass(run):
    done = run("--kernel", "sm120", "--arch", "sm_86")
    assert done.exit_code == 3
    assert "skipped sm_86/sm120" in done.output


def test_without_nvrtc_it_is_skipped_unless_it_was_asked_for(run, monkeypatch):
    from verify_attn import compile_command

    def missing():
        raise ToolchainError("no NVRTC is found; pip install 'verify-attn[cuda]'")

    monkeypatch.setattr(cuda_gate, "nvrtc", missing)
    asked = run("--kernel", "sm120", "--arch", "sm_120")
    assert asked.exit_code == 2
    assert "error: no NVRTC is found; pip install 'verify-attn[cuda]'" in asked.output
    monkeypatch.setattr(compile_command, "compile_kernels", lambda *_, **__: list(
        gate_like_triton()
    ))  # fmt: skip
    left_out = run("--arch", "sm_120")
    assert left_out.exit_code == 0
    assert "skipped sm_120/sm120: no NVRTC is found" in left_out.output


def gate_like_triton():
    from verify_attn.kernels.compiled import Compiled, Setting
    from verify_attn.kernels.resources import occupancy

    taken = block(4_096, warps=4, registers=40)
    yield Compiled(
        "sm_120", "split_kernel", "split_kernel bfloat16", Setting("triton-split"), {}, taken,
        occupancy(taken, limits_of("sm_120")), (), 0.1, "triton 3.9.0",
    )  # fmt: skip


def test_only_the_kernels_that_are_asked_for_are_compiled(run, monkeypatch):
    from verify_attn import compile_command

    settings = []
    monkeypatch.setattr(
        compile_command, "compile_kernels",
        lambda arch, chosen, **_: settings.extend(chosen) or list(gate_like_triton()),
    )  # fmt: skip
    done = run("--kernel", "triton-split", "--arch", "sm_120")
    assert done.exit_code == 0
    assert {setting.kernel for setting in settings} == {"triton-split"}
    assert "multiply" not in done.output


def test_an_unknown_architecture_and_an_unknown_kernel(run):
    done = run("--arch", "sm_75")
    assert done.exit_code == 2
    assert "no architecture 'sm_75'; there are: sm_80" in done.output
    assert run("--kernel", "mine").exit_code == 2


def test_a_record_that_cannot_be_written_is_said_before_anything_is_compiled(run, tmp_path):
    done = run("--kernel", "sm120", "--json", str(tmp_path))
    assert done.exit_code == 2
    assert "multiply" not in done.output


def test_without_a_disassembler_it_is_said_that_nothing_was_looked_at(run, monkeypatch):
    def none():
        raise sass.SassError("no nvdisasm in Triton's package or on PATH; pip install triton")

    monkeypatch.setattr(sass, "disassembler", none)
    done = run("--kernel", "sm120", "--arch", "sm_120")
    assert done.exit_code == 0
    assert done.output.count("instructions not looked at: no nvdisasm in Triton's package") == 1
    assert judged(small())["multiply"].sass is None
