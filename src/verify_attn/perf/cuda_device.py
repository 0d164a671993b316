"""Times taken on a real GPU.

Events see the current stream only.  Work that a call leaves on another stream would be free, so
each call is watched once beside the timing: from an idle GPU, how long is the GPU at work after the
launch has returned?  Its device time can be no shorter than that, some latency aside, and a sample
that says so is refused.  What hides in that latency, some 50 us, or is less than a fifth of the
call, is not seen so; the ceilings are the judge of it.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import cuda
from torch.profiler import DeviceType, ProfilerActivity, profile

from verify_attn.cuda_graph import CaptureError, capture, first_line
from verify_attn.environment import gpus
from verify_attn.perf.clocks import Clocks
from verify_attn.perf.device import Call, Launch, Method, Sample, TimerError

MIB = 1 << 20
TRIES = 3  # of what is looked at before a call is timed
HIDE_S = 100e-6  # the flush outlasts twice the launch by so much
MOST_WRITES = 64  # of the flush buffer, to hide a slow launch: some 16 ms on an H200
LATENCY_S = 50e-6  # from a launch to the GPU, and from the GPU's end to the host
BELIEVED = 0.8  # of the time seen from the host; clocks vary


@dataclass
class Busy:
    """``seconds``; watched anew where a call has become quicker than that."""

    seconds: float


@dataclass(frozen=True)
class _Timed(Call):
    """A call with what its samples need.

    ``writes``  of the flush buffer before the clock starts
    ``single``  one kernel call, to watch it from the host
    ``held``    what a graph holds addresses in and does not keep: its launches, and so all that
                they work on (a plan's workspace is nobody else's to keep)
    ``busy``    the GPU's work after such a launch had returned, seen from the host
    ``flush``   names of the flush's own activities, as CUPTI tells them
    """

    writes: int = 0
    single: Launch = lambda: None
    busy: Busy = field(default_factory=lambda: Busy(0.0))
    flush: tuple[str, ...] = ()
    held: tuple[Launch, ...] = ()


class CudaDevice:
    """A `verify_attn.perf.device.Device`; makes GPU ``index`` of torch's the current one.

    Raises `TimerError` where there is no such GPU or no memory to flush its L2 with.
    """

    def __init__(self, index: int = 0) -> None:
        count = cuda.device_count() if cuda.is_available() else 0
        if not 0 <= index < count:
            raise TimerError(
                f"GPU {index} was asked for and torch sees {count}; times need a GPU, a driver and "
                "a torch built with CUDA"
            )
        cuda.set_device(index)  # streams, events and Triton's launches follow the current GPU
        self.torch_device = torch.device("cuda", index)
        self._properties = cuda.get_device_properties(index)
        self.l2_bytes = int(self._properties.L2_cache_size)
        uuid = f"GPU-{self._properties.uuid}"  # by uuid: CUDA and NVML count in different orders
        self._gpu = next((gpu for gpu in gpus() if gpu.uuid == uuid), None)
        self.clocks = Clocks(uuid)
        self._buffer = _flush_buffer(self.torch_device, self.l2_bytes)
        writing = _Timed(self._buffer.zero_, Method("events", ""))
        self._write_s = statistics.median(self._between_events(writing) for _ in range(TRIES + 1))

    def identity(self) -> dict[str, Any]:
        """See `verify_attn.perf.device.Device`; by torch where NVML does not know the GPU."""
        if self._gpu is not None:
            names = "name", "compute_capability", "memory_bytes", "driver", "power_limit_w"
            return {name: getattr(self._gpu, name) for name in names}
        torch_says = self._properties
        return {
            "name": torch_says.name, "compute_capability": f"{torch_says.major}.{torch_says.minor}",
            "memory_bytes": torch_says.total_memory, "driver": None, "power_limit_w": None,
        }  # fmt: skip

    def once(self, launch: Launch, name: str = "") -> Call:
        """See `verify_attn.perf.device.Device`.  A launch that no flush can hide, since it
        synchronises or is very slow, is timed as by `whole`, and its method says so."""
        host_s, busy_s = self._watch(launch)
        writes = self._writes(launch, host_s)
        if not writes:
            return self._whole(launch, name, busy_s)
        method = Method("events", self._flushed(writes))
        return _Timed(launch, method, name, writes, launch, Busy(busy_s))

    def whole(self, launch: Launch, name: str = "") -> Call:
        """See `verify_attn.perf.device.Device`."""
        return self._whole(launch, name, self._watch(launch)[1])

    def replay(self, launches: Sequence[Launch], copy_bytes: int, name: str = "") -> Call:
        """See `verify_attn.perf.device.Device`.  An untimed replay goes before each timed one, and
        hides the time that the host takes to launch it."""
        if not launches or copy_bytes <= 0:
            raise ValueError(
                f"{len(launches)} launches on {copy_bytes} bytes each; a graph needs one launch "
                "at least, and the bytes that it works on"
            )
        busy_s = self._watch(launches[0])[1]
        try:
            graph = capture(launches, self.torch_device.index)
        except CaptureError as failure:
            raise TimerError(str(failure)) from failure
        copies = f"{len(launches)} copies of {copy_bytes / MIB:.1f} MiB"
        cold = len(launches) * copy_bytes > 2 * self.l2_bytes
        l2 = f"rotated through {copies}" if cold else (
            f"warm: {copies} are no more than twice the L2 of {self.l2_bytes / MIB:.0f} MiB"
        )  # fmt: skip
        method = Method("graph", l2, calls=len(launches))
        return _Timed(
            graph.replay, method, name, 1, launches[0], Busy(busy_s), held=tuple(launches)
        )

    def profiled(self, launch: Launch, name: str = "") -> Call:
        """See `verify_attn.perf.device.Device`."""
        host_s, busy_s = self._watch(launch)
        writes = self._writes(launch, host_s) or 1
        try:
            self._activities(lambda: None, writes)  # the first session of a process may see nothing
            flush = self._activities(lambda: None, writes)
        except (RuntimeError, AssertionError) as error:
            raise TimerError(f"CUPTI cannot be used: {first_line(error)}") from error
        if not flush:
            raise TimerError(
                "CUPTI cannot be used: torch.profiler saw nothing of a write of "
                f"{self._buffer.numel() / MIB:.0f} MiB; the driver may keep profiling to "
                "administrators, or another profiler may be at work"
            )
        method = Method("cupti", self._flushed(writes))
        names = tuple(event.name for event in flush)
        return _Timed(launch, method, name, writes, launch, Busy(busy_s), names)

    def sample(self, call: Call) -> Sample:
        """See `verify_attn.perf.device.Device`; ``call`` is one of this device's own."""
        if not isinstance(call, _Timed):
            raise TypeError(f"{call!r} was not made by this device's once, whole, replay, profiled")
        span = self._span if call.method.timer == "cupti" else self._between_events
        seconds = span(call) / call.method.calls
        if not 0 < seconds < math.inf:
            raise TimerError(
                f"{_called(call)} took {seconds} s by its {call.method.timer} timer; a time is a "
                "positive number"
            )
        again = self._refuse_hidden(call, seconds)
        return Sample(seconds, self.clocks.read(), stands=not again)

    def _whole(self, launch: Launch, name: str, busy_s: float) -> Call:
        method = Method("events", f"{self._flushed(1)}, which are waited for", drained=True)
        return _Timed(launch, method, name, 1, launch, Busy(busy_s))

    def _flushed(self, writes: int) -> str:
        return f"flushed before each call by {writes * self._buffer.numel() // MIB} MiB of writes"

    def _watch(self, launch: Launch) -> tuple[float, float]:
        """(host seconds of a launch, seconds that the GPU works on after it), from an idle GPU.

        The second is the least seen, with data in the L2: a cold call can only take longer.
        """
        launch()  # compiles
        host, busy = [], []
        for _ in range(TRIES):
            cuda.synchronize()
            start = perf_counter()
            launch()
            returned = perf_counter()
            cuda.synchronize()
            host.append(returned - start)
            busy.append(perf_counter() - returned)
        return statistics.median(host), min(busy)

    def _writes(self, launch: Launch, host_s: float) -> int:
        """Of the flush buffer, so that the GPU still writes when the launch returns; 0: none do."""
        writes = math.ceil((HIDE_S + 2 * host_s) / self._write_s)
        return writes if writes <= MOST_WRITES and self._hides(launch, writes) else 0

    def _hides(self, launch: Launch, writes: int) -> bool:
        for _ in range(TRIES):
            self._write(writes)
            flushed = _event()
            flushed.record()
            launch()
            hidden = not flushed.query()
            cuda.synchronize()
            if hidden:
                return True
        return False

    def _write(self, times: int) -> None:
        for _ in range(times):
            self._buffer.zero_()

    def _between_events(self, call: _Timed) -> float:
        start, end = _event(), _event()
        self._write(call.writes)
        if call.method.timer == "graph":
            call.launch()
        if call.method.drained:
            cuda.synchronize()
        start.record()
        call.launch()
        end.record()
        cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _refuse_hidden(self, call: _Timed, seconds: float) -> bool:
        """Raises where work is not timed; was the call made again to find out?"""
        if seconds + LATENCY_S >= BELIEVED * call.busy.seconds:
            return False
        busy_s = self._watch(call.single)[1]  # the clocks may have risen since
        if seconds + LATENCY_S < BELIEVED * busy_s:
            raise TimerError(
                f"{_called(call)} took {seconds * 1e3:.4f} ms by its {call.method.timer} timer, "
                f"but the GPU was at work for {busy_s * 1e3:.4f} ms after the launch had returned; "
                "work on another stream is not timed. Let that stream wait for the current one "
                "(side.wait_stream) before the work, and the current one for it after"
            )
        call.busy.seconds = busy_s
        return True

    def _span(self, call: _Timed) -> float:
        """From the start of the call's first activity to the end of its last."""
        events = self._activities(call.launch, call.writes)
        count = len(call.flush)
        names = tuple(event.name for event in events)
        if names[:count] != call.flush or len(names) == count:
            raise TimerError(
                f"CUPTI told of {', '.join(names) or 'nothing'} for {_called(call)}; it must be "
                f"the flush's {count} writes, and then the call's own work"
            )
        own = events[count:]
        span = max(event.time_range.end for event in own) - own[0].time_range.start
        return float(span) / 1e6

    def _activities(self, launch: Launch, writes: int) -> list[Any]:
        """Kernels, copies and fills of a flush and a launch, as CUPTI tells them, by start."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch 2.13 tells of each start and stop
        # Events are kept, or torch warns that they would go at the end of a cycle; there is one.
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            self._write(writes)
            launch()
            cuda.synchronize()
        seen: Any = profiler.events()
        on_gpu = [
            event
            for event in seen
            if event.device_type == DeviceType.CUDA
            and not getattr(event, "is_user_annotation", False)
        ]
        return sorted(on_gpu, key=lambda event: event.time_range.start)


def _event() -> Any:
    return cuda.Event(enable_timing=True)


def _called(call: Call) -> str:
    return call.name or "a call"


def _flush_buffer(device: torch.device, l2_bytes: int) -> torch.Tensor:
    """uint8 [1 GiB] where an eighth of the free memory has room for it, else of four times the L2.

    A large one outlasts the launch that it hides.
    """
    least = max(4 * l2_bytes, 64 * MIB)
    free, _ = cuda.mem_get_info(device)
    size = max(least, 1024 * MIB) if free >= 8 * 1024 * MIB else least
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise TimerError(
            f"flushing the L2 takes {size / MIB:.0f} MiB of GPU memory, and {free / MIB:.0f} MiB "
            "are free; end what else holds the GPU's memory"
        ) from error
