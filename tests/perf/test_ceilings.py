"""Ceilings, the timers' self-test and times that cannot be, with times written beforehand."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.perf.scripted import ScriptedDevice
from verify_attn.hardware import GPUS, GpuModel, sheet_of
from verify_attn.perf import ceilings as module
from verify_attn.perf.ceilings import ceilings, check_against, self_test
from verify_attn.perf.device import TimerError
from verify_attn.perf.read_triton import BLOCK, Reader
from verify_attn.perf.roofline import Rates, Work

SIZE = 1 << 15
HOST_S = 0.25
RATES = Rates(4300, 750, "measured: read of 1,024 MiB")
WORK = Work(kv_bytes=40_000_000, other_bytes=3_000_000, flops=3_750_000_000)  # 10 us and 5 us


def sheet(gb_per_s: float) -> GpuModel:
    return GpuModel("test", gb_per_s, 1000, "a sheet")


class TestSelfTest:
    @pytest.fixture(autouse=True)
    def _host_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_host_seconds", lambda device, launch, count=1: HOST_S)

    def run(self, times: dict[str, float], sheet: GpuModel | None = None, cupti: str = "") -> dict:
        def script(name: str, taken: int) -> float:
            return times.get(name.removeprefix("self-test by "), HOST_S)

        return self_test(ScriptedDevice(script, no_cupti=cupti), sheet, SIZE)

    def test_timers_that_agree(self) -> None:
        told = self.run({"events": 0.2520, "graph": 0.2444}, sheet(4800))
        json.dumps(told)
        moved = 2 * SIZE / 1e9
        assert told["timers"]["events"] == {
            "seconds": 0.2520, "host_seconds": HOST_S, "gb_per_s": moved / 0.2520,
        }  # fmt: skip
        assert told["timers"].keys() == {"events", "graph", "cupti"}
        assert told["copies"] == 1

    @pytest.mark.parametrize("timer", ["events", "graph", "cupti"])
    @pytest.mark.parametrize("factor", [0.96, 1.04, 0.02])
    def test_a_timer_that_is_off(self, timer: str, factor: float) -> None:
        told = rf"{HOST_S * factor:.6f} s by the {timer} timer and 0.250000 s by the host"
        with pytest.raises(TimerError, match=told):
            self.run({timer: HOST_S * factor})

    @pytest.mark.parametrize("timer", ["events", "graph", "cupti"])
    def test_a_timer_that_stands_still(self, timer: str) -> None:
        with pytest.raises(TimerError, match="positive number"):
            self.run({timer: 0.0})

    def test_faster_than_the_memory(self) -> None:
        peak = 2 * SIZE / 1e9 / HOST_S
        self.run({}, sheet(1.01 * peak))
        with pytest.raises(TimerError, match="the memory's peak is"):
            self.run({}, sheet(0.99 * peak))

    def test_no_data_sheet_is_told(self) -> None:
        assert "none for this GPU" in self.run({})["data_sheet"]

    def test_cupti_that_cannot_be_used_is_told(self) -> None:
        told = self.run({}, cupti="no rights")
        assert told["timers"]["cupti"] == {"unusable": "no rights"}

    def test_a_graph_that_cannot_be_had_is_an_error(self) -> None:
        class NoGraph(ScriptedDevice):
            def replay(self, launches, copy_bytes, name=""):
                raise TimerError("no graph")

        with pytest.raises(TimerError, match="no graph"):
            self_test(NoGraph(lambda name, taken: HOST_S), None, SIZE)


def test_copies_go_on_until_the_host_s_clock_can_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock(device: ScriptedDevice, launch: object, count: int = 0) -> float:
        return 0.03 * (count or 8)  # without a count all copies are one launch

    monkeypatch.setattr(module, "_host_seconds", clock)
    device = ScriptedDevice(lambda name, taken: 0.03 if "graph" in name else 0.24)
    told = self_test(device, None, SIZE)
    assert told["copies"] == 8
    assert told["timers"]["graph"]["seconds"] == pytest.approx(0.24)  # of all, not of one


def test_the_host_s_clock_is_around_the_copies() -> None:
    device, copied = ScriptedDevice(lambda name, taken: 1.0), []
    assert module._host_seconds(device, lambda: copied.append(1), 5) > 0
    assert len(copied) == 5


class TestCeilings:
    def script(self, name: str, taken: int) -> float:
        warm_up = 100 if taken < module.WARM_UP else 1
        odd = 3 if taken == 10 else 1  # a median does not see it
        return warm_up * odd * {"copy": 2e-3, "read by torch.sum": 0.9e-3, "matmul": 4e-6}[name]

    def test_medians_without_the_warm_up(self) -> None:
        found = ceilings(ScriptedDevice(self.script), SIZE, matrix=16)
        assert found.copy_gb_per_s == pytest.approx(2 * SIZE / 2e-3 / 1e9)
        assert found.read_gb_per_s == pytest.approx(SIZE / 0.9e-3 / 1e9)
        assert found.matmul_tflops == pytest.approx(2 * 16**3 / 4e-6 / 1e12)
        assert found.read_by == "torch.sum"
        json.dumps(found.as_record())

    def test_the_better_memory_rate_counts(self) -> None:
        found = ceilings(ScriptedDevice(self.script), SIZE, matrix=16)
        assert found.rates.gb_per_s == found.read_gb_per_s
        assert "measured: read of" in found.rates.source
        slow = ceilings(
            ScriptedDevice(lambda name, taken: 1e-3 if name == "copy" else 1e-2), SIZE, matrix=16
        )
        assert slow.rates.gb_per_s == slow.copy_gb_per_s
        assert "measured: copy of" in slow.rates.source

    def test_memory_that_does_not_suffice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: object, **options: object) -> torch.Tensor:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(torch, "empty", full)
        with pytest.raises(TimerError, match="two buffers of 2,048 MiB"):
            ceilings(ScriptedDevice(self.script), 1 << 31)


class TestCheckAgainst:
    @pytest.mark.parametrize("seconds", [10e-6, 9.6e-6, 1.0])
    def test_possible(self, seconds: float) -> None:
        check_against(seconds, WORK, RATES)

    @pytest.mark.parametrize("seconds", [0.0, -1e-5, math.nan, math.inf])
    def test_no_time(self, seconds: float) -> None:
        with pytest.raises(TimerError, match="a time is a positive number"):
            check_against(seconds, WORK, RATES)

    def test_faster_than_the_memory(self) -> None:
        told = r"5,375\.0 GB/s, 1\.25 times the ceiling of 4,300\.0 GB/s \(measured: read of"
        with pytest.raises(TimerError, match=told):
            check_against(8e-6, WORK, RATES)

    def test_faster_than_arithmetic(self) -> None:
        work = Work(kv_bytes=1, other_bytes=0, flops=WORK.flops)
        with pytest.raises(TimerError, match=r"937\.5 TFLOP/s, 1\.25 times the ceiling of 750"):
            check_against(4e-6, work, RATES)


class TestReader:
    def test_every_word_is_read(self) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        words = torch.randint(-100, 100, (3 * BLOCK,), dtype=torch.int32, device=device)
        reader = Reader(words)
        reader.read()
        assert reader.sums.tolist() == words.view(3, BLOCK).sum(1).tolist()

    @pytest.mark.parametrize(
        "words",
        [
            torch.zeros(BLOCK + 1, dtype=torch.int32),
            torch.zeros(BLOCK),
            torch.zeros(2 * BLOCK, dtype=torch.int32)[::2],
        ],
    )
    def test_what_it_cannot_read(self, words: torch.Tensor) -> None:
        with pytest.raises(ValueError, match="a contiguous int32 buffer"):
            Reader(words)


class TestSheets:
    @pytest.mark.parametrize(
        ("driver", "name"),
        [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA L40S", "l40s")],
    )
    def test_known(self, driver: str, name: str) -> None:
        assert sheet_of(driver) == GPUS[name]

    @pytest.mark.parametrize(
        "driver", ["", "h200", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB"]
    )
    def test_a_relative_of_other_rates_is_not_taken_for_it(self, driver: str) -> None:
        assert sheet_of(driver) is None

    def test_no_name_is_two_models(self) -> None:
        drivers = [name for model in GPUS.values() for name in model.drivers]
        assert len(drivers) == len(set(drivers))
        assert all(model.drivers for model in GPUS.values())
