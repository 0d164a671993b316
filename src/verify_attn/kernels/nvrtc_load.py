"""Why a driver refuses what was compiled, in a sentence with both versions."""

from __future__ import annotations

import re

from verify_attn.kernels.nvrtc import BuildError, Built

# What drivers answer to code that they cannot read, and to code for another GPU.
UNREADABLE = (
    "CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_INVALID_SOURCE", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
)  # fmt: skip
OTHER_GPU = "CUDA_ERROR_NO_BINARY_FOR_GPU"
_NAME = re.compile(r"CUDA_ERROR_[A-Z0-9_]+")


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver here is for; None without a driver."""
    try:
        from cuda.bindings import driver

        status, version = driver.cuDriverGetVersion()
    except (ImportError, RuntimeError):
        return None
    return divmod(version // 10, 100) if int(status) == 0 and version else None


def explain_load_failure(
    error: BaseException, built: Built, *, driver: tuple[int, int] | None = None, gpu: str = ""
) -> BuildError:
    """The error to raise where loading ``built`` raised ``error``.

    ``driver``: its CUDA version, asked for if not given.  ``gpu``: architecture of the device,
    such as sm_90, if known.
    """
    driver = driver or driver_version()
    found = _NAME.search(str(error))
    name = found.group() if found else ""
    nvrtc = "{}.{}".format(*built.nvrtc)
    known = "of an unknown version" if driver is None else "for CUDA {}.{}".format(*driver)
    begin = f"the driver ({known}) does not load the kernel that NVRTC {nvrtc} built for "
    begin += f"{built.arch}: {name or error}."
    if gpu and gpu != built.arch.rstrip("af"):
        why = f"The device is {gpu}: it runs code that was built for {gpu}"
    elif name in (*UNREADABLE, OTHER_GPU) and driver is not None and driver < built.nvrtc:
        here = "{}.{}".format(*driver)
        why = (
            f"The driver is older than the compiler: update it to one for CUDA {nvrtc} or newer, "
            f"or install an NVRTC of CUDA {here} or older ({_package(driver)})"
        )
    elif name == OTHER_GPU:
        why = f"The device is not {built.arch}, or the driver does not know it: update the driver"
    elif name in UNREADABLE:
        why = (
            f"The file may be damaged or the driver too old: empty the kernel cache, then update "
            f"the driver to one for CUDA {nvrtc} or newer"
        )
    else:
        why = "The driver says no more; verify-attn doctor shows what is here"
    return BuildError(f"{begin} {why}")


def _package(driver: tuple[int, int]) -> str:
    major, minor = driver
    suffix = f"-cu{major}" if major < 13 else ""
    return f"pip install 'nvidia-cuda-nvrtc{suffix}=={major}.{minor}.*' 'cuda-bindings=={major}.*'"
