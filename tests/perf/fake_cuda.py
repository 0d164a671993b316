"""torch.cuda with a clock of its own: a host, and streams whose kernels take the time they say.

Stands in for ``cuda``, ``perf_counter`` and ``profile`` of `verify_attn.perf.cuda_device`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from verify_attn import cuda_graph
from verify_attn.perf import cuda_device
from verify_attn.perf.clocks import Clocks
from verify_attn.perf.cuda_device import CudaDevice

LAUNCH_S, SYNC_S, EVENT_S, WRITE_S = 5e-6, 5e-6, 1e-6, 250e-6


class Stream:
    def __init__(self) -> None:
        self.busy_until = 0.0

    def wait_stream(self, other: Stream) -> None:
        self.busy_until = max(self.busy_until, other.busy_until)


class FakeCuda:
    """``seen`` are the activities that a profiler would tell of: (name, start, end)."""

    OutOfMemoryError = RuntimeError

    def __init__(self, gpus: int = 1) -> None:
        self.gpus, self.now, self.streams = gpus, 1.0, [Stream()]
        self.stream_now, self.captured = self.streams[0], None
        self.seen: list[tuple[str, float, float]] = []
        self.ended: list[Any] = []
        self.default_generators = [SimpleNamespace(
            clone_state=lambda: "state", graphsafe_set_state=lambda state: None,
        )]  # fmt: skip

    def kernel(self, seconds: float, stream: Stream | None = None, name: str = "kernel") -> None:
        stream = stream or self.stream_now
        if self.captured is not None and stream is self.capturing:
            self.captured.append((seconds, name))
            return
        self.now += LAUNCH_S
        start = max(stream.busy_until, self.now)
        stream.busy_until = start + seconds
        self.seen.append((name, start, start + seconds))

    def synchronize(self, device: object = None) -> None:
        if self.captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.now = max([self.now, *(s.busy_until for s in self.streams)]) + SYNC_S

    def Stream(self) -> Stream:  # noqa: N802
        self.streams.append(Stream())
        return self.streams[-1]

    def Event(self, enable_timing: bool = False) -> Any:  # noqa: N802
        event = SimpleNamespace()

        def record() -> None:
            event.at = max(self.now, self.stream_now.busy_until)
            self.stream_now.busy_until = event.at + EVENT_S

        event.record, event.query = record, lambda: event.at <= self.now
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event

    def current_stream(self) -> Stream:
        return self.stream_now

    def set_stream(self, stream: Stream) -> None:
        self.stream_now = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.stream_now = self.stream_now, stream
        yield
        self.stream_now = before

    def CUDAGraph(self) -> Any:  # noqa: N802
        graph = SimpleNamespace(kernels=[])
        graph.replay = lambda: [self.kernel(seconds, name=name) for seconds, name in graph.kernels]
        return graph

    @contextmanager
    def graph(self, graph: Any, pool: object) -> Iterator[None]:
        before, self.stream_now = self.stream_now, self.Stream()
        self.captured, self.capturing = graph.kernels, self.stream_now
        try:
            yield
        except RuntimeError:
            raise RuntimeError("capture failed due to a previous error") from None
        finally:
            self.captured = None
        self.stream_now = before  # torch does not get here after an error

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 1)

    def is_available(self) -> bool:
        return self.gpus > 0

    def device_count(self) -> int:
        return self.gpus

    def set_device(self, index: int) -> None:
        pass

    def mem_get_info(self, device: object) -> tuple[int, int]:
        return 100 << 30, 140 << 30

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(name="Fake GPU", uuid=f"uuid-{index}", major=9, minor=0,
                               total_memory=140 << 30, L2_cache_size=60 << 20)  # fmt: skip

    @contextmanager
    def profile(self, activities: object, acc_events: bool) -> Iterator[Any]:
        del self.seen[:]
        seen: list[Any] = []
        yield SimpleNamespace(events=lambda: seen)
        seen += [
            SimpleNamespace(
                name=name, device_type=cuda_device.DeviceType.CUDA, is_user_annotation=False,
                time_range=SimpleNamespace(start=start * 1e6, end=end * 1e6),
            )
            for name, start, end in self.seen
        ]  # fmt: skip


def device_on(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, found: Callable[[], list[Any]] = list
) -> CudaDevice:
    """A `CudaDevice` of that machine; ``found`` are the GPUs that NVML tells of."""
    buffer = SimpleNamespace(
        zero_=lambda: fake.kernel(WRITE_S, name="fill"), numel=lambda: 1024 << 20
    )
    for module in (cuda_device, cuda_graph):
        monkeypatch.setattr(module, "cuda", fake)
    monkeypatch.setattr(cuda_device, "perf_counter", lambda: fake.now)
    monkeypatch.setattr(cuda_device, "profile", fake.profile)
    monkeypatch.setattr(cuda_device, "gpus", found)
    monkeypatch.setattr(cuda_device, "_flush_buffer", lambda device, l2: buffer)
    monkeypatch.setattr(cuda_device, "Clocks", lambda uuid: Clocks("none of the tests'"))
    monkeypatch.setattr(cuda_graph.torch._C, "_cuda_endAllocateToPool",
                        lambda index, pool: fake.ended.append(pool), raising=False)  # fmt: skip
    return CudaDevice()
