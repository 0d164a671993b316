"""Real compilations of a small source; what is missing, too old or wrong is said clearly."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.kernels.small_cuda import SHARED, SMALL, small
from verify_attn.kernels import nvrtc as module
from verify_attn.kernels import nvrtc_load
from verify_attn.kernels.base import KernelError
from verify_attn.kernels.nvrtc import BuildError, Built, Nvrtc, ToolchainError, build, nvrtc
from verify_attn.kernels.nvrtc_cache import Cache
from verify_attn.kernels.nvrtc_load import explain_load_failure

NONE = Cache(None)


def compiled(arch="sm_120", source=SMALL, **options):
    return build(source, "small.cu", arch, {"STEPS": 4}, options, cache=NONE)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_a_source_compiles_and_its_resources_are_told(arch):
    built = compiled(arch)
    assert built.cubin.startswith(b"\x7fELF")
    assert (built.arch, built.cached, built.nvrtc) == (arch, False, nvrtc().version)
    found = built.resources(small().functions)
    assert list(found) == ["multiply", "merge"]
    multiply, merge = found["multiply"], found["merge"]
    assert (multiply.warps, multiply.shared_static, multiply.shared_dynamic) == (4, 0, SHARED)
    assert (merge.warps, merge.shared_static, merge.shared_dynamic) == (1, 128, 0)
    assert 16 <= multiply.registers <= 64
    assert multiply.spills == multiply.stack == 0


def test_defines_and_options_reach_the_compiler():
    few = build(SMALL, "small.cu", "sm_90", {"STEPS": 1}, cache=NONE)
    assert few.cubin != compiled("sm_90").cubin
    assert "maxrregcount" not in few.log
    assert "with  32 of maxrregcount" in compiled("sm_90", max_register_count=32).log


def test_a_source_without_settings():
    assert build('extern "C" __global__ void k() {}', "k.cu", "sm_90").cubin


def test_a_kernel_that_the_source_lacks():
    with pytest.raises(BuildError, match=r"no kernel 'split'; it has: m\w+, m\w+"):
        compiled().resources({"split": (4, 0)})


def test_a_compile_error_shows_the_log_and_the_settings():
    with pytest.raises(BuildError) as caught:
        compiled(source=SMALL.replace("c[j];", "nothing[j];"))
    text = str(caught.value)
    assert text.startswith(f"small.cu does not compile for sm_120 with {nvrtc()} and -DSTEPS=4:")
    assert "small.cu(" in text
    assert 'identifier "nothing" is undefined' in text
    assert "\0" not in text
    assert not isinstance(caught.value, ToolchainError)


def test_an_option_that_is_none_is_an_error_of_the_build():
    with pytest.raises(BuildError, match="no_such_option"):
        compiled(no_such_option=1)


# -- what is missing or too old --------------------------------------------------------------------


@pytest.fixture
def fresh():
    nvrtc.cache_clear()
    yield
    nvrtc.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", ["cuda.core", "cuda.bindings", "cuda.pathfinder"])
def test_no_cuda_core(monkeypatch, name):
    for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    import cuda

    monkeypatch.delattr(cuda, name.partition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolchainError, match=r"compiled by cuda\.core.*pip install 'verify-attn\["):
        compiled()


@pytest.mark.usefixtures("fresh")
def test_no_nvrtc(monkeypatch):
    import cuda.core
    import cuda.pathfinder
    from cuda.bindings import nvrtc as bindings

    bindings.nvrtcVersion()  # or it would keep what stands in below, and so the tests after this

    def lacks(name):
        raise cuda.pathfinder.DynamicLibNotFoundError(f'Failure finding "lib{name}.so"\n  no such')

    monkeypatch.setattr(cuda.pathfinder, "load_nvidia_dynamic_lib", lacks)
    with pytest.raises(ToolchainError) as caught:
        compiled()
    text = str(caught.value)
    assert text.startswith("no NVRTC (libnvrtc) is found in")
    assert 'Failure finding "libnvrtc.so" no such; pip install' in text
    assert isinstance(caught.value, KernelError)


@pytest.mark.usefixtures("fresh")
def test_an_nvrtc_that_answers_with_an_error(monkeypatch):
    from cuda.bindings import nvrtc as bindings

    broken = bindings.nvrtcResult.NVRTC_ERROR_INTERNAL_ERROR
    monkeypatch.setattr(bindings, "nvrtcVersion", lambda: (broken, 0, 0))
    with pytest.raises(ToolchainError, match="NVRTC_ERROR_INTERNAL_ERROR"):
        compiled()


def test_an_nvrtc_too_old_for_the_architecture(monkeypatch):
    old = Nvrtc((12, 4), (50, 80, 86, 89, 90), "/lib/libnvrtc.so.12", 1)
    monkeypatch.setattr(module, "nvrtc", lambda: old)
    with pytest.raises(ToolchainError) as caught:
        compiled("sm_120")
    assert str(caught.value) == (
        "NVRTC 12.4 (/lib/libnvrtc.so.12) is too old for sm_120: that needs 12.8 or newer; "
        "pip install 'verify-attn[cuda]'. It knows sm_50, sm_80, sm_86, sm_89, sm_90"
    )


def test_an_architecture_that_is_gone_and_one_that_is_none():
    with pytest.raises(ToolchainError, match=r"does not compile for sm_70\. It knows sm_75, sm_80"):
        compiled("sm_70")
    with pytest.raises(BuildError, match=r"'12\.0'; it is written like sm_120"):
        compiled("12.0")


@pytest.mark.parametrize(
    ("imported", "never"),
    [
        ("verify_attn, verify_attn.cli, verify_attn.pytest_plugin", "cuda"),
        # torch imports cuda.bindings where it finds them.
        ("verify_attn.compile_command, verify_attn.kernels.nvrtc_load", "cuda.core"),
    ],
)
def test_cuda_is_not_imported_before_something_is_built(imported, never):
    code = f"import sys, {imported}; sys.exit({never!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- a driver that refuses -------------------------------------------------------------------------

BUILT = Built(b"", "", "sm_90", (13, 0), cached=False)


class CUDAError(Exception):
    """As cuda.core words it."""


def refused(name, driver, built=BUILT, **more):
    error = CUDAError(f"{name}: what the driver says")
    found = explain_load_failure(error, built, driver=driver, **more)
    assert isinstance(found, BuildError)
    return str(found)


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_ERROR_INVALID_IMAGE",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
    ],
)
def test_a_driver_older_than_the_compiler(name):
    assert refused(name, (12, 8)) == (
        f"the driver (for CUDA 12.8) does not load the kernel that NVRTC 13.0 built for sm_90: "
        f"{name}. The driver is older than the compiler: update it to one for CUDA 13.0 or newer, "
        f"or install an NVRTC of CUDA 12.8 or older "
        f"(pip install 'nvidia-cuda-nvrtc-cu12==12.8.*' 'cuda-bindings==12.*')"
    )


def test_a_driver_of_the_same_major_version():
    text = refused("CUDA_ERROR_INVALID_IMAGE", (13, 0), replace(BUILT, nvrtc=(13, 2)))
    assert "(pip install 'nvidia-cuda-nvrtc==13.0.*' 'cuda-bindings==13.*')" in text


def test_a_driver_that_is_new_enough_has_other_reasons():
    assert "older than the compiler" not in refused("CUDA_ERROR_INVALID_IMAGE", (13, 0))
    assert "empty the kernel cache" in refused("CUDA_ERROR_INVALID_IMAGE", (13, 1))
    assert "The device is not sm_90" in refused("CUDA_ERROR_NO_BINARY_FOR_GPU", (13, 0))
    text = refused("CUDA_ERROR_NO_BINARY_FOR_GPU", (13, 0), gpu="sm_120")
    assert "The device is sm_120: it runs code that was built for sm_120" in text
    text = refused("CUDA_ERROR_INVALID_IMAGE", (12, 8), replace(BUILT, arch="sm_90a"), gpu="sm_90")
    assert "older than the compiler" in text


def test_an_error_that_is_not_of_loading_stays_readable():
    assert "CUDA_ERROR_OUT_OF_MEMORY. The driver says no more" in refused(
        "CUDA_ERROR_OUT_OF_MEMORY", (13, 0)
    )


def test_without_a_driver_its_version_is_unknown(monkeypatch):
    monkeypatch.setattr(nvrtc_load, "driver_version", lambda: None)
    text = refused("CUDA_ERROR_INVALID_IMAGE", None)
    assert text.startswith("the driver (of an unknown version) does not load")


@pytest.mark.parametrize(
    ("answer", "version"), [((0, 13000), (13, 0)), ((0, 12080), (12, 8)), ((100, 0), None)]
)
def test_the_drivers_version_is_read(monkeypatch, answer, version):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: answer)
    assert nvrtc_load.driver_version() == version


@pytest.mark.gpu
def test_a_real_driver_loads_its_own_and_refuses_other_code():
    import torch
    from cuda.core import Device, ObjectCode

    Device(0).set_current()
    here = "sm_{}{}".format(*torch.cuda.get_device_capability(0))
    built = compiled(here)
    assert ObjectCode.from_cubin(built.cubin).get_kernel("multiply").attributes.num_regs > 0
    other = compiled("sm_120" if here != "sm_120" else "sm_80")
    with pytest.raises(Exception, match="CUDA_ERROR") as caught:
        ObjectCode.from_cubin(other.cubin).get_kernel("multiply")
    assert f"The device is {here}" in str(explain_load_failure(caught.value, other, gpu=here))


@pytest.mark.usefixtures("fresh")
def test_an_old_cuda_core_is_told(monkeypatch):
    from cuda import core

    monkeypatch.delattr(core, "Program")
    with pytest.raises(ToolchainError, match=r"cuda.core \S+ has no Program: too old.*install"):
        nvrtc()
