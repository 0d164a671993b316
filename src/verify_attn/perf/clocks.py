"""Clocks, power and temperature of a GPU by NVML: read after a sample, never set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verify_attn.perf.device import Reading

# Bits of NVML's clocks event reasons that hold clocks below what was set, the gravest first.  An
# idle GPU, clocks that somebody has set and a display's or a group's clocks are no throttling.
HARDWARE, POWER_CAP = 0x08, 0x04
REASONS = {
    0x40: "thermal slowdown",
    0x80: "power brake",
    HARDWARE: "hardware slowdown",
    0x20: "software thermal slowdown",
    POWER_CAP: "power cap",
}
DETAILS = 0x40 | 0x80  # each of them sets HARDWARE too


def throttled(bits: int) -> str | None:
    """NVML's clocks event reasons in words; None: nothing holds the clocks down."""
    if bits & DETAILS:
        bits &= ~HARDWARE
    return ", ".join(word for bit, word in REASONS.items() if bits & bit) or None


class Clocks:
    """Opens NVML once.

    ``uuid``        of the GPU as NVML spells it, "GPU-..."
    ``unreadable``  why nothing can be read, or ""
    """

    def __init__(self, uuid: str) -> None:
        self.unreadable = ""
        self._nvml: Any = None
        try:
            import pynvml
        except ImportError as error:
            self.unreadable = f"no NVML: {error}"
            return
        try:
            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            self.unreadable = f"NVML does not know the GPU {uuid}: {error}"
            return
        self._nvml = pynvml

    def read(self) -> Reading:
        """As things are now; what cannot be read is None."""
        nvml = self._nvml
        if nvml is None:
            return Reading()
        power = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttled=None if reasons is None else throttled(reasons),
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        function: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(self._gpu, *arguments)
        except self._nvml.NVMLError:
            return None
