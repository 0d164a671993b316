"""What takes times: a GPU (`perf.cuda_device`), or in tests a device that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import torch

Launch = Callable[[], object]  # enqueues work on the current stream


class TimerError(RuntimeError):
    """A time that cannot be taken or believed; the message says what was seen and the rule."""


@dataclass(frozen=True)
class Method:
    """How times were taken: what was done, not what was asked for.

    ``timer``    CUDA events around the call; a CUDA graph replayed between events; CUPTI
    ``l2``       what was done about the L2 cache, in words
    ``calls``    kernel calls in one sample
    ``drained``  the GPU was idle when the clock started, so the host's own time is inside
    """

    timer: Literal["events", "graph", "cupti"]
    l2: str
    calls: int = 1
    drained: bool = False

    def as_record(self) -> dict[str, Any]:
        """For a run record."""
        return asdict(self)


@dataclass(frozen=True)
class Reading:
    """What NVML said after a sample; None where it cannot be read.  Nothing is ever set.

    ``throttled``  why clocks are held down, in words; None: they are not
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttled: str | None = None


@dataclass(frozen=True)
class Sample:
    """``seconds`` of one kernel call.

    ``stands``  does its answer stand in the outputs?  False: it was called again since, to be sure
                of the time
    """

    seconds: float
    reading: Reading
    stands: bool = True


@dataclass(frozen=True)
class Call:
    """Something to time, and how; made by a `Device`."""

    launch: Launch
    method: Method
    name: str = ""


class Device(Protocol):
    """Times calls.  Every method may raise `TimerError`."""

    torch_device: torch.device
    l2_bytes: int

    def identity(self) -> dict[str, Any]:
        """What must be equal before two records are compared: name, compute_capability,
        memory_bytes, driver, power_limit_w."""

    def once(self, launch: Launch, name: str = "") -> Call:
        """One call between two events, the L2 flushed before, the launch hidden by the flush."""

    def whole(self, launch: Launch, name: str = "") -> Call:
        """As `once`, but the GPU is idle when the clock starts: host work is inside."""

    def replay(self, launches: Sequence[Launch], copy_bytes: int, name: str = "") -> Call:
        """One CUDA graph of all launches, replayed between two events.

        ``launches``  the same problem in as many places, ``copy_bytes`` each; the call keeps them,
                      for a graph is full of addresses that it does not keep alive itself
        """

    def profiled(self, launch: Launch, name: str = "") -> Call:
        """By CUPTI: from the start of the call's first kernel to the end of its last."""

    def sample(self, call: Call) -> Sample:
        """Take one."""
