"""What this machine is: read without touching CUDA, so that it is safe at import and collection."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

PACKAGES = ("verify-attn", "torch", "triton", "numpy", "hypothesis", "pytest")


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver names it; clocks and temperature as read, never set."""

    index: int
    name: str
    uuid: str
    driver: str
    compute_capability: str
    memory_bytes: int
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_limit_w: float | None
    temperature_c: int | None


def gpus() -> list[Gpu]:
    """The GPUs that this process may use, by NVML; empty without a driver.

    ``CUDA_VISIBLE_DEVICES`` is obeyed, as CUDA would.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else _visible(found, visible)


def visible_entries(visible: str) -> list[str]:
    """The entries of a CUDA_VISIBLE_DEVICES."""
    return [entry for part in visible.split(",") if (entry := part.strip())]


def _visible(found: list[Gpu], visible: str) -> list[Gpu]:
    chosen = []
    for entry in visible_entries(visible):
        if entry.isdecimal():
            match = [gpu for gpu in found if gpu.index == int(entry)]
        else:
            match = [gpu for gpu in found if gpu.uuid.startswith(entry)]
        if len(match) != 1:
            break  # CUDA stops at the first entry that it does not know, or knows twice
        chosen += match
    return chosen


def _gpu(pynvml: Any, index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read(call: Any, *args: Any) -> Any:
        try:
            return call(handle, *args)
        except pynvml.NVMLError:
            return None

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    capability = read(pynvml.nvmlDeviceGetCudaComputeCapability)
    power = read(pynvml.nvmlDeviceGetEnforcedPowerLimit)
    memory = read(pynvml.nvmlDeviceGetMemoryInfo)
    return Gpu(
        index=index,
        name=text(read(pynvml.nvmlDeviceGetName)),
        uuid=text(read(pynvml.nvmlDeviceGetUUID)),
        driver=text(pynvml.nvmlSystemGetDriverVersion()),
        compute_capability="unknown" if capability is None else ".".join(map(str, capability)),
        memory_bytes=0 if memory is None else int(memory.total),
        sm_clock_mhz=read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=read(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        power_limit_w=None if power is None else power / 1000,
        temperature_c=read(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    )


def triton_setting() -> bool | None:
    """What TRITON_INTERPRET asks for, read as Triton reads it; None: it is not set."""
    setting = os.environ.get("TRITON_INTERPRET")
    return None if setting is None else setting.lower() in ("1", "true", "yes", "on", "y")


def interpreted(found: list[Gpu] | None = None) -> bool:
    """Will Triton kernels run in the interpreter?  As `kernels.registry.choose_triton_mode`."""
    setting = triton_setting()
    if setting is not None:
        return setting
    return not (gpus() if found is None else found)


def versions() -> dict[str, str]:
    """Versions of what matters here; a missing package is ``not installed``."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "not installed"
    return result


def environment() -> dict[str, Any]:
    """The ``environment`` of a run record."""
    found = gpus()
    return {
        "gpus": [asdict(gpu) for gpu in found],
        "triton": "interpreter" if interpreted(found) else "compiled",
        "versions": versions(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "executable": os.path.basename(sys.executable),
    }


def summary(found: list[Gpu] | None = None) -> str:
    """One line: GPU, driver and whether Triton compiles or interprets."""
    found = gpus() if found is None else found
    if not found and not interpreted(found):
        return "no GPU; TRITON_INTERPRET keeps Triton kernels from its interpreter: none can run"
    if not found:
        return "no GPU; Triton kernels run in its interpreter (arithmetic, not the GPU, is tested)"
    names = ", ".join(sorted({gpu.name for gpu in found}))
    mode = "interpreted" if interpreted(found) else "compiled"
    return f"{len(found)} x {names}, driver {found[0].driver}; Triton kernels {mode}"
