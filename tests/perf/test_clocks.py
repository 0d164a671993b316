"""What is read by NVML, from an NVML of our own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from verify_attn.perf.clocks import Clocks, throttled
from verify_attn.perf.device import Reading


class NvmlError(Exception):
    pass


class FakeNvml:
    """An NVML of one GPU; the functions named in ``failing`` raise, those in ``missing`` are not
    there.  It has no function that sets anything."""

    NVMLError, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = NvmlError, 1, 2, 0

    def __init__(self, failing: tuple[str, ...] = (), missing: tuple[str, ...] = ()) -> None:
        self.failing, self.missing, self.opened = failing, missing, 0
        self.answers = {
            "nvmlDeviceGetClockInfo": lambda gpu, which: {1: 1755, 2: 3201}[which],
            "nvmlDeviceGetPowerUsage": lambda gpu: 512_345,
            "nvmlDeviceGetTemperature": lambda gpu, which: 45,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x04,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x48,
        }

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1
        if "nvmlInit" in self.failing:
            raise NvmlError("no driver")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        if uuid != "GPU-1":
            raise NvmlError("Not Found")
        return "gpu"

    def __getattr__(self, name: str) -> Any:
        answers = self.__dict__["answers"]
        if name in self.missing or name not in answers:
            raise AttributeError(name)

        def ask(gpu: object, *arguments: object) -> Any:
            assert gpu == "gpu"
            if name in self.failing:
                raise NvmlError("not supported")
            return answers[name](gpu, *arguments)

        return ask


def clocks(monkeypatch: pytest.MonkeyPatch, nvml: object, uuid: str = "GPU-1") -> Clocks:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return Clocks(uuid)


def test_all_is_read_and_nvml_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    read = clocks(monkeypatch, nvml).read
    assert read() == read() == Reading(1755, 3201, 512.345, 45, "power cap")
    assert nvml.opened == 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nvmlDeviceGetClockInfo", Reading(None, None, 512.345, 45, "power cap")),
        ("nvmlDeviceGetPowerUsage", Reading(1755, 3201, None, 45, "power cap")),
        ("nvmlDeviceGetTemperature", Reading(1755, 3201, 512.345, None, "power cap")),
        (
            "nvmlDeviceGetCurrentClocksEventReasons",  # the older function is asked
            Reading(1755, 3201, 512.345, 45, "thermal slowdown"),
        ),
    ],
)
@pytest.mark.parametrize("how", ["failing", "missing"])
def test_what_cannot_be_read_is_none(
    monkeypatch: pytest.MonkeyPatch, function: str, expected: Reading, how: str
) -> None:
    assert clocks(monkeypatch, FakeNvml(**{how: (function,)})).read() == expected


@pytest.mark.parametrize(
    ("nvml", "uuid", "why"),
    [
        (None, "GPU-1", "no NVML"),
        (FakeNvml(failing=("nvmlInit",)), "GPU-1", "no driver"),
        (FakeNvml(), "GPU-2", "does not know the GPU GPU-2: Not Found"),
    ],
)
def test_nothing_can_be_read(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None, uuid: str, why: str
) -> None:
    made = clocks(monkeypatch, nvml, uuid)
    assert made.read() == Reading()
    assert why in made.unreadable


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, None),
        (0x1, None),  # idle
        (0x2 | 0x10 | 0x100, None),  # clocks that somebody set, a group's, a display's
        (0x4, "power cap"),
        (0x8, "hardware slowdown"),
        (0x8 | 0x40, "thermal slowdown"),
        (0x8 | 0x80, "power brake"),
        (0x20 | 0x4 | 0x1, "software thermal slowdown, power cap"),
        (1 << 40, None),
    ],
)
def test_reasons_in_words(bits: int, words: str | None) -> None:
    assert throttled(bits) == words


def test_bits_are_nvml_s() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = SimpleNamespace(
        **{
            name.removeprefix("nvmlClocksEventReason"): throttled(value)
            for name, value in vars(pynvml).items()
            if name.startswith("nvmlClocksEventReason")
        }
    )
    assert names.GpuIdle is names.ApplicationsClocksSetting is names.SyncBoost is None
    assert names.HwThermalSlowdown == "thermal slowdown"
    assert names.HwPowerBrakeSlowdown == "power brake"
    assert names.HwSlowdown == "hardware slowdown"
    assert names.SwThermalSlowdown == "software thermal slowdown"
    assert names.SwPowerCap == "power cap"
