"""Times on a GPU: the logic on a machine with a clock of its own, and the real thing."""

from __future__ import annotations

import gc
import math
import statistics
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.perf.fake_cuda import LAUNCH_S, FakeCuda, device_on
from verify_attn.environment import Gpu
from verify_attn.hardware import sheet_of
from verify_attn.perf.ceilings import Ceilings, ceilings, self_test
from verify_attn.perf.cuda_device import CudaDevice
from verify_attn.perf.device import Call, Device, Method, TimerError

KERNEL_S = 300e-6


@pytest.fixture
def fake() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def device(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    return device_on(fake, monkeypatch)


def near(expected: float) -> Any:
    return pytest.approx(expected, abs=2e-6)  # an event and a launch


def seconds(device: Device, call: Call) -> float:
    return device.sample(call).seconds


class TestWays:
    def test_once_is_the_kernel_alone(self, device: CudaDevice, fake: FakeCuda) -> None:
        call = device.once(lambda: fake.kernel(KERNEL_S))
        assert seconds(device, call) == near(KERNEL_S)
        assert call.method.as_record() == {
            "timer": "events", "l2": "flushed before each call by 1024 MiB of writes", "calls": 1,
            "drained": False,
        }  # fmt: skip

    def test_a_slow_launch_gets_a_longer_flush(self, device: CudaDevice, fake: FakeCuda) -> None:
        def launch() -> None:
            fake.now += 400e-6
            fake.kernel(KERNEL_S)

        call = device.once(launch)
        assert seconds(device, call) == near(KERNEL_S)
        assert "4096 MiB" in call.method.l2

    @pytest.mark.parametrize("waits", [False, True])
    def test_a_launch_that_cannot_be_hidden_is_told(
        self, device: CudaDevice, fake: FakeCuda, waits: bool
    ) -> None:
        def launch() -> None:
            fake.kernel(KERNEL_S)
            if waits:
                fake.synchronize()
            else:
                fake.now += 20e-3

        call = device.once(launch)
        assert call.method.drained
        assert seconds(device, call) > KERNEL_S

    def test_whole_holds_the_host_s_work(self, device: CudaDevice, fake: FakeCuda) -> None:
        def launch() -> None:
            fake.now += 100e-6
            fake.kernel(KERNEL_S)

        call = device.whole(launch)
        assert call.method.drained
        assert seconds(device, call) == near(KERNEL_S + 100e-6 + LAUNCH_S)

    def test_replay_is_of_one_call(self, device: CudaDevice, fake: FakeCuda) -> None:
        call = device.replay([lambda: fake.kernel(KERNEL_S)] * 5, 40 << 20)
        assert seconds(device, call) == near(KERNEL_S)
        assert call.method == Method("graph", "rotated through 5 copies of 40.0 MiB", calls=5)

    def test_what_a_graph_works_on_lives_as_long_as_the_call(
        self, device: CudaDevice, fake: FakeCuda
    ) -> None:
        class Plan:
            """With a workspace; nobody but the launch has it."""

        def launch_with(plan: Plan) -> Callable[[], None]:
            def launch() -> None:
                fake.kernel(KERNEL_S, name=type(plan).__name__)

            return launch

        plans = [Plan() for _ in range(5)]
        call = device.replay([launch_with(plan) for plan in plans], 40 << 20)
        seen = [weakref.ref(plan) for plan in plans]
        del plans
        gc.collect()
        assert all(plan() is not None for plan in seen)
        assert seconds(device, call) == near(KERNEL_S)
        del call
        gc.collect()
        assert all(plan() is None for plan in seen)

    def test_copies_that_fit_into_the_l2_are_warm(self, device: CudaDevice, fake: FakeCuda) -> None:
        call = device.replay([lambda: fake.kernel(KERNEL_S)] * 3, 40 << 20)
        assert call.method.l2.startswith("warm: 3 copies of 40.0 MiB are no more than twice")

    def test_profiled_is_from_first_to_last(self, device: CudaDevice, fake: FakeCuda) -> None:
        def launch() -> None:
            fake.kernel(KERNEL_S)
            fake.kernel(2 * KERNEL_S)

        call = device.profiled(launch)
        assert seconds(device, call) == near(3 * KERNEL_S)
        assert call.method.timer == "cupti"

    def test_a_call_that_has_become_quicker_is_watched_anew(
        self, device: CudaDevice, fake: FakeCuda
    ) -> None:
        """Then its answer is no longer that of the timed call, once."""
        took = [KERNEL_S]
        call = device.once(lambda: fake.kernel(took[0]))
        assert device.sample(call).stands
        took[0] = KERNEL_S / 3
        first, second = device.sample(call), device.sample(call)
        assert (first.seconds, second.seconds) == (near(KERNEL_S / 3), near(KERNEL_S / 3))
        assert (first.stands, second.stands) == (False, True)

    @pytest.mark.parametrize(("launches", "size"), [(0, 1), (1, 0)])
    def test_nothing_to_replay(self, device: CudaDevice, launches: int, size: int) -> None:
        with pytest.raises(ValueError, match="one launch at least"):
            device.replay([lambda: None] * launches, size)

    def test_another_device_s_call(self, device: CudaDevice) -> None:
        with pytest.raises(TypeError, match="not made by this device"):
            device.sample(Call(lambda: None, Method("events", "")))


class TestHidden:
    """Kernels that work where the events do not look, in each of the ways there are."""

    def launches(self, fake: FakeCuda, forked: bool, joined: bool) -> Callable[[], None]:
        side = fake.Stream()

        def launch() -> None:
            if forked:
                side.wait_stream(fake.current_stream())
            fake.kernel(KERNEL_S, side)
            if joined:
                fake.current_stream().wait_stream(side)

        return launch

    @pytest.mark.parametrize("way", ["once", "whole"])
    @pytest.mark.parametrize(("forked", "joined"), [(False, False), (True, False), (False, True)])
    def test_refused(
        self, device: CudaDevice, fake: FakeCuda, way: str, forked: bool, joined: bool
    ) -> None:
        call = getattr(device, way)(self.launches(fake, forked, joined), "cheat")
        if way == "whole" and joined:  # from an idle GPU all of it is inside
            assert seconds(device, call) >= KERNEL_S
            return
        with pytest.raises(TimerError, match=r"cheat took .* GPU was at work for 0\.3"):
            device.sample(call)

    def test_a_graph_without_the_work(self, device: CudaDevice, fake: FakeCuda) -> None:
        launch = self.launches(fake, forked=False, joined=False)

        def both() -> None:
            launch()
            fake.kernel(1e-6)  # else torch warns that the graph is empty

        with pytest.raises(TimerError, match="work on another stream is not timed"):
            device.sample(device.replay([both], 1 << 30))

    def test_an_honest_second_stream(self, device: CudaDevice, fake: FakeCuda) -> None:
        call = device.once(self.launches(fake, forked=True, joined=True))
        assert seconds(device, call) == near(KERNEL_S)

    def test_clocks_that_rise_are_no_cheat(self, device: CudaDevice, fake: FakeCuda) -> None:
        speed = 1.0
        call = device.once(lambda: fake.kernel(KERNEL_S / speed))
        speed = 3.0
        assert seconds(device, call) == near(KERNEL_S / 3)


class TestErrors:
    @pytest.mark.parametrize("gives", [0.0, -1.0, math.nan, math.inf])
    def test_no_time(
        self,
        device: CudaDevice,
        fake: FakeCuda,
        gives: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        call = device.once(lambda: fake.kernel(KERNEL_S), "odd")
        monkeypatch.setattr(device, "_between_events", lambda call: gives)
        with pytest.raises(TimerError, match=r"odd took .* positive number"):
            device.sample(call)

    def test_a_capture_that_fails(self, device: CudaDevice, fake: FakeCuda) -> None:
        before, good = fake.current_stream(), [lambda: fake.kernel(KERNEL_S)]
        with pytest.raises(TimerError, match=r"not permitted when stream is capturing.* may not"):
            device.replay([fake.synchronize], 1 << 30)
        assert fake.current_stream() is before
        assert fake.ended == [(0, 1)]
        assert seconds(device, device.replay(good, 1 << 30)) == near(KERNEL_S)

    def test_a_profiler_that_sees_nothing(
        self, device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Blind:
            def __init__(self, activities: object, acc_events: bool) -> None:
                pass

            def __enter__(self) -> Blind:
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def events(self) -> list[Any]:
                return []

        monkeypatch.setattr("verify_attn.perf.cuda_device.profile", Blind)
        with pytest.raises(TimerError, match="saw nothing of a write"):
            device.profiled(lambda: fake.kernel(KERNEL_S))

    def test_a_profiler_that_raises(
        self, device: CudaDevice, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(activities: object, acc_events: bool) -> Any:
            raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

        monkeypatch.setattr("verify_attn.perf.cuda_device.profile", refuse)
        with pytest.raises(TimerError, match="cannot be used: CUPTI_ERROR_INSUFFICIENT"):
            device.profiled(lambda: fake.kernel(KERNEL_S))

    def test_activities_that_got_lost(self, device: CudaDevice, fake: FakeCuda) -> None:
        works = [True] * 8

        def launch() -> None:
            if works:
                works.pop()
                fake.kernel(KERNEL_S)

        call = device.profiled(launch, "lazy")
        works.clear()
        with pytest.raises(TimerError, match="CUPTI told of fill for lazy"):
            device.sample(call)

    @pytest.mark.parametrize(("gpus", "index"), [(0, 0), (1, 1), (1, -1)])
    def test_no_such_gpu(self, monkeypatch: pytest.MonkeyPatch, gpus: int, index: int) -> None:
        device_on(FakeCuda(), monkeypatch)
        monkeypatch.setattr("verify_attn.perf.cuda_device.cuda", FakeCuda(gpus))
        with pytest.raises(TimerError, match=f"GPU {index} was asked for and torch sees {gpus}"):
            CudaDevice(index)


class TestIdentity:
    def gpu(self, uuid: str, power: float) -> Gpu:
        return Gpu(0, "NVIDIA H200", uuid, "580.1", "9.0", 1 << 37, 1980, 3201, power, 30)

    def test_by_uuid(self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [self.gpu("GPU-other", 1.0), self.gpu("GPU-uuid-0", 700.0)]
        device = device_on(fake, monkeypatch, lambda: found)
        assert device.identity() == {
            "name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 1 << 37,
            "driver": "580.1", "power_limit_w": 700.0,
        }  # fmt: skip

    def test_unknown_to_nvml(self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        device = device_on(fake, monkeypatch, lambda: [self.gpu("GPU-other", 1.0)])
        identity = device.identity()
        assert (identity["name"], identity["driver"]) == ("Fake GPU", None)


GIB = 1 << 30


@pytest.fixture(scope="module")
def real() -> Iterator[CudaDevice]:
    yield CudaDevice()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def top(real: CudaDevice) -> Ceilings:
    return ceilings(real)


def median(device: Device, call: Call) -> float:
    return statistics.median(device.sample(call).seconds for _ in range(9))


def product() -> Callable[[], object]:
    """About 4 ms on an H200: little of it is the launch, where nothing hides that."""
    size = 4096
    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda: [torch.mm(a, b, out=c) for _ in range(20)]


@pytest.mark.gpu
class TestOnTheGpu:
    def test_the_self_test_passes(self, real: CudaDevice) -> None:
        told = self_test(real, sheet_of(real.identity()["name"]))
        assert {"events", "graph", "cupti"} == told["timers"].keys()
        assert told["timers"]["events"]["host_seconds"] >= 0.2

    def test_the_ceilings_are_below_the_data_sheet(self, real: CudaDevice, top: Ceilings) -> None:
        sheet = sheet_of(real.identity()["name"])
        if sheet is None:
            pytest.skip("no data sheet of this GPU")
        assert 0.7 * sheet.gb_per_s < top.rates.gb_per_s < sheet.gb_per_s
        assert 0.5 * sheet.tflops < top.matmul_tflops < sheet.tflops

    def test_a_copy_is_near_the_ceiling(self, real: CudaDevice, top: Ceilings) -> None:
        source = torch.ones(GIB, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        rate = 2 * GIB / median(real, real.once(lambda: target.copy_(source))) / 1e9
        assert 0.5 * top.rates.gb_per_s < rate < 1.05 * top.rates.gb_per_s

    def test_the_timers_agree(self, real: CudaDevice) -> None:
        launch = product()
        events = median(real, real.once(launch))
        assert median(real, real.whole(launch)) == pytest.approx(events, rel=0.1)
        assert median(real, real.replay([launch], GIB)) == pytest.approx(events, rel=0.1)

    def test_cupti_agrees_or_says_why_not(self, real: CudaDevice) -> None:
        launch = product()
        try:
            call = real.profiled(launch)
        except TimerError as error:
            pytest.skip(str(error))
        events = median(real, real.once(launch))
        assert median(real, call) == pytest.approx(events, rel=0.1)

    @pytest.mark.parametrize("forked", [False, True])
    def test_work_on_another_stream_is_refused(self, real: CudaDevice, forked: bool) -> None:
        work, side = product(), torch.cuda.Stream()

        def launch() -> None:
            if forked:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                work()

        with pytest.raises(TimerError, match="another stream"):
            real.sample(real.once(launch))

    def test_a_graph_of_nothing_is_refused(self, real: CudaDevice) -> None:
        work, side = product(), torch.cuda.Stream()

        def launch() -> None:
            with torch.cuda.stream(side):
                work()

        with pytest.raises(TimerError, match="no CUDA graph could be captured"):
            real.replay([launch], GIB)

    def test_a_capture_that_fails_leaves_all_usable(self, real: CudaDevice) -> None:
        value = torch.ones(1, device="cuda")
        stream = torch.cuda.current_stream()
        for waits in (value.item, torch.cuda.synchronize):
            with pytest.raises(TimerError, match="no CUDA graph could be captured"):
                real.replay([waits], GIB)
        assert torch.cuda.current_stream() == stream
        torch.cuda.empty_cache()
        assert torch.randn(4, device="cuda").isfinite().all()
        launch = product()
        captured = median(real, real.replay([launch], GIB))
        assert captured == pytest.approx(median(real, real.once(launch)), rel=0.1)

    def test_clocks_are_read(self, real: CudaDevice) -> None:
        reading = real.sample(real.once(product())).reading
        assert reading.sm_clock_mhz
        assert reading.power_w
