"""Compiling without a GPU: arithmetic by literals, real compilations, a compiler that breaks."""

import importlib.util
import sys
import textwrap

import pytest

from verify_attn.kernels import compiled
from verify_attn.kernels.compiled import CompilerError, Setting, compile_kernels, default_settings
from verify_attn.kernels.resources import (
    ARCHITECTURES,
    ArchitectureError,
    Resources,
    broken_limits,
    limits_of,
    occupancy,
    parse_ptxas,
)

TWO_FUNCTIONS = """\
ptxas-blackwell info    : 11 bytes gmem
ptxas-blackwell info    : Compiling entry function 'split_kernel' for 'sm_90a'
ptxas-blackwell info    : Function properties for split_kernel
    504 bytes stack frame, 580 bytes spill stores, 756 bytes spill loads
ptxas-blackwell info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas-blackwell info    : Used 255 registers, used 1 barriers, 504 bytes cumulative stack size
ptxas-blackwell info    : Compile time = 1300.673 ms
"""
STATIC = """\
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 4160+16 bytes smem, 400 bytes cmem[0]
"""


def block(warps=8, registers=128, shared=0, *, static=0, spills=0, columns=0):
    return Resources(warps, registers, static, shared, 0, spills, spills, columns)


def test_ptxas_log_is_read():
    assert parse_ptxas(TWO_FUNCTIONS, 8, 253_952) == Resources(
        warps=8, registers=255, shared_static=0, shared_dynamic=253_952,
        stack=512, spill_stores=584, spill_loads=768,
    )  # fmt: skip
    found = parse_ptxas(STATIC, 4, 2_048, 64)
    assert (found.shared_static, found.shared, found.tensor_columns) == (4_160, 6_208, 64)


@pytest.mark.parametrize("log", ["", "ptxas info : 11 bytes gmem", STATIC + STATIC])
def test_a_log_of_something_else_is_refused(log):
    with pytest.raises(ValueError, match="one kernel was expected"):
        parse_ptxas(log, 4, 0)


# Worked by hand from cuda_occupancy.h.  168 and 200 registers: the example of the sub-partitions,
# where a division of the multiprocessor's registers would say 5 for both.
@pytest.mark.parametrize(
    ("arch", "taken", "blocks", "limited_by"),
    [
        ("sm_120", block(8, 208, 73_728), 1, ("registers", "shared memory")),
        ("sm_120", block(4, 40, 2_048), 12, ("registers", "warps")),
        ("sm_120", block(1, 16), 24, ("blocks",)),
        ("sm_90", block(4, 40, 2_048), 12, ("registers",)),
        ("sm_90", block(8, 128, 110_592), 2, ("registers", "shared memory")),
        ("sm_90", block(8, 128, 116_700), 1, ("shared memory",)),
        ("sm_80", block(1, 24), 32, ("blocks",)),
        ("sm_86", block(1, 24), 16, ("blocks",)),
        ("sm_89", block(2, 168, static=16_888), 5, ("shared memory",)),
        ("sm_89", block(2, 200, static=16_888), 4, ("registers",)),
        ("sm_100", block(4, 64, 1_000, columns=256), 2, ("tensor memory",)),
        ("sm_90", block(32, 72), 0, ("registers",)),
        ("sm_120", block(8, 64, 102_400), 0, ("shared memory",)),
    ],
)
def test_occupancy(arch, taken, blocks, limited_by):
    found = occupancy(taken, limits_of(arch))
    assert (found.blocks, found.warps, found.limited_by) == (
        blocks, blocks * taken.warps, limited_by,
    )  # fmt: skip


@pytest.mark.parametrize("limits", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_the_largest_block_fits_alone_and_a_byte_more_is_refused(limits):
    largest = block(shared=limits.shared_per_block)
    assert occupancy(largest, limits).blocks == 1
    assert broken_limits(largest, limits) == ()
    (sentence,) = broken_limits(block(shared=limits.shared_per_block + 1), limits)
    assert f"{limits.shared_per_block:,}" in sentence
    assert f"{limits.shared_per_block + 1:,} bytes" in sentence


def test_other_limits():
    limits = limits_of("sm_100")
    assert "72 registers a thread in 32 warps" in broken_limits(block(32, 72), limits)[0]
    assert "64 warps are over the 32" in broken_limits(block(64, 16), limits)[0]
    assert "1024 columns" in broken_limits(block(columns=1_024), limits)[0]


def test_spills_are_an_error_only_over_a_limit():
    spilling = block(spills=40)
    assert broken_limits(spilling, limits_of("sm_90")) == ()
    assert broken_limits(spilling, limits_of("sm_90"), max_spill_bytes=80) == ()
    (sentence,) = broken_limits(spilling, limits_of("sm_90"), max_spill_bytes=79)
    assert sentence == "spills 80 bytes (40 stored, 40 loaded) are over the limit of 79"


def test_unknown_architecture_lists_what_there_is():
    with pytest.raises(ArchitectureError, match=r"'sm_75'; there are: sm_80, .*sm_120"):
        compile_kernels("sm_75")


def test_no_triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompilerError, match="pip install triton"):
        compile_kernels("sm_90")


def test_default_settings():
    settings = default_settings()
    assert len(set(settings)) == len(settings)
    assert {s.page_size for s in settings} == {1, 64, 24}
    assert {s.dtype for s in settings} == {"bfloat16", "float16"}


# Real compilations.  The parent interprets, as it does wherever there is no GPU.


@pytest.fixture
def interpreting(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.usefixtures("interpreting")
def test_launches_are_specialised_like_real_ones():
    from verify_attn.kernels.triton_split import TILES

    seen = []
    results = compile_kernels(
        "sm_90",
        [
            Setting("triton-split", page_size=1),
            Setting("triton-split", page_size=24, ranges=132),
        ],
        progress=lambda done, total, result: seen.append((done, total, result.label)),
    )
    one, merge, odd, _ = results
    assert [r.label for r in results] == [
        "split_kernel bfloat16 kimi-k2.6-tp8 nodes=60 page=1 split",
        "merge_kernel bfloat16 kimi-k2.6-tp8 nodes=60 ranges<=16",
        "split_kernel bfloat16 kimi-k2.6-tp8 nodes=60 page=24 split",
        "merge_kernel bfloat16 kimi-k2.6-tp8 nodes=60 ranges<=256",
    ]
    assert [s[:2] for s in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {s[2] for s in seen} == {r.label for r in results}

    assert one.constants["page_size"] == 1
    assert "page_size" not in odd.constants
    assert (one.constants["LATENT"], one.constants["SPLIT"]) == (512, True)
    tile = TILES[(9, 0)]
    assert (one.constants["BLOCK_M"], one.constants["BLOCK_N"]) == (tile.block_m, tile.block_n)
    assert (one.constants["num_warps"], one.constants["num_stages"]) == (tile.warps, tile.stages)

    for result in results:
        assert result.problems == ()
        assert 16 <= result.resources.registers <= 255
        assert result.occupancy.blocks >= 1
        assert result.compiler.startswith("triton 3.")
    assert merge.resources.spills == 0


@pytest.mark.usefixtures("interpreting")
def test_a_tile_too_large_is_refused_and_its_spills_are_seen():
    too_large = {"block_m": 64, "block_n": 64, "warps": 4, "stages": 2}
    whole = Setting("triton-split", prefix=0, nodes=8)
    (result,) = compile_kernels("sm_120", [whole], tile=too_large, max_spill_bytes=0)
    assert result.label.endswith("nodes=8 page=64 whole")
    assert result.resources.shared > 101_376
    assert result.resources.spill_stores > 0
    assert result.resources.spill_loads > 0
    assert result.occupancy.blocks == 0
    shared, spills = result.problems
    assert f"{result.resources.shared:,} bytes is over the 101,376" in shared
    assert "over the limit of 0" in spills


@pytest.mark.usefixtures("interpreting")
def test_what_does_not_compile_is_a_problem():
    (result,) = compile_kernels("sm_120", [Setting("triton-unsplit")], tile={"block_n": 24})
    assert result.resources is None
    assert result.occupancy is None
    assert "does not compile" in result.problems[0]
    assert "power of 2" in result.problems[0]


# A compiler that breaks, played by a script.

BROKEN = """
import json, os, sys
request = json.load(sys.stdin)
def say(**answer):
    print(json.dumps(answer), flush=True)
def start(index):
    say(start=index, setting=request["settings"][index], function=f"f{index}", arguments=[],
        constants={})
"""
SECOND = "dict(warps=4, registers=40, shared_static=0, shared_dynamic=0, stack=0, spill_stores=0,\
 spill_loads=0)"


@pytest.fixture
def worker(monkeypatch, tmp_path):
    def play(script):
        path = tmp_path / "worker.py"
        path.write_text(BROKEN + textwrap.dedent(script))
        monkeypatch.setattr(compiled, "WORKER", (sys.executable, str(path)))
        settings = [Setting("triton-split"), Setting("triton-unsplit")]
        return compile_kernels("sm_90", settings, processes=1)

    return play


def test_a_crash_costs_one_configuration(worker):
    first, second = worker(f"""
        say(total=2)
        if request["after"] < 0:
            start(0)
            print("LLVM ERROR: no such thing", file=sys.stderr, flush=True)
            os.abort()
        start(1)
        say(done=1, seconds=0.5, resources={SECOND}, error=None)
        say(end=True)
    """)
    assert "ended with -6" in first.problems[0]
    assert "LLVM ERROR: no such thing" in first.problems[0]
    assert second.problems == ()
    assert second.occupancy.blocks == 12


def test_a_compiler_that_never_starts(worker):
    with pytest.raises(CompilerError, match=r"(?s)ended with 1: .*No module named 'nothing'"):
        worker("import nothing")


def test_a_fatal_answer_is_the_error(worker):
    with pytest.raises(CompilerError, match="without its ptxas"):
        worker('say(fatal="Triton 3.9.0 is here without its ptxas"); import time; time.sleep(60)')


def test_an_answer_that_is_none(worker):
    with pytest.raises(CompilerError, match="JSONDecodeError"):
        worker('print("hello", flush=True)')
