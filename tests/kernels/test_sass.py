"""Machine code: read by kernel, and called what the compiler calls it."""

import pytest

from tests.kernels.small_cuda import SMALL
from verify_attn.kernels import sass
from verify_attn.kernels.nvrtc import build
from verify_attn.kernels.nvrtc_cache import Cache


def test_a_cubin_that_is_none():
    with pytest.raises(sass.SassError, match=r"nvdisasm does not read this cubin: .*the cubin"):
        sass.disassemble(b"no cubin")
    with pytest.raises(sass.SassError, match="no instructions in what nvdisasm says: hello"):
        sass.parse("hello")


def test_no_disassembler(monkeypatch):
    monkeypatch.setattr(sass.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    with pytest.raises(sass.SassError, match="pip install triton"):
        sass.disassembler()
    monkeypatch.setattr(sass.shutil, "which", lambda name: f"/opt/cuda/bin/{name}")
    assert str(sass.disassembler()) == "/opt/cuda/bin/nvdisasm"


TEXT = """
\t.section\t.text.first,"ax",@progbits
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128 [R5], [R2.64] ;
        /*0020*/        @UP0       UMOV UR4, 0x1 ;
.L_x_1:
        /*0030*/              @P1  STL [R1], R2 ;
\t.section\t.nv.constant0.first,"a",@progbits
        /*0000*/                   .byte 0x00
        /*0000*/                   FAKE R1 ;
\t.section\t.text.second,"ax",@progbits
        /*0000*/                   EXIT ;
"""


def test_the_disassemblers_text_is_read_by_kernel():
    found = sass.parse(TEXT)
    assert found == {
        "first": {"MOV": 1, "LDGSTS.E.BYPASS.128": 1, "UMOV": 1, "STL": 1},
        "second": {"EXIT": 1},
    }
    assert sass.count(found["first"], "LDGSTS.*.128*", "MOV") == 2


HOPPER = {
    "wgmma.fence.sync.aligned;": "WARPGROUP*",
    "setmaxnreg.inc.sync.aligned.u32 240;": "USETMAXREG*",
    "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%0, {%1}];": "UTMAPF*",
}


@pytest.mark.parametrize(("text", "pattern"), HOPPER.items(), ids=lambda value: value.split(".")[0])
def test_the_names_of_forbidden_instructions_are_those_of_real_code(text, pattern):
    given = ' :: "l"(in), "r"(0)' if "%0" in text else ""
    source = SMALL.replace("float c[4]", f'asm volatile("{text}"{given}); float c[4]', 1).replace(
        "__launch_bounds__(128)", "__launch_bounds__(128, 1)"
    )
    built = build(source, "small.cu", "sm_90a", {"STEPS": 4}, cache=Cache(None))
    counts = sass.instructions(built.cubin)["multiply"]
    assert sass.count(counts, pattern) >= 1
    assert sass.matching(counts, *sass.NOT_PORTABLE)


def test_a_disassembler_that_cannot_be_started_is_told(monkeypatch, tmp_path):
    tool = tmp_path / "nvdisasm"
    tool.write_bytes(b"\x7fELF of another machine")
    tool.chmod(0o755)
    monkeypatch.setattr(sass, "disassembler", lambda: tool)
    with pytest.raises(sass.SassError, match=r"nvdisasm cannot be started on a file of code: "):
        sass.instructions(b"")
