"""What this GPU can do, measured on the spot, and whether its timers tell the truth.

Both come before any kernel's time: a timer is held against the host's clock and the data sheet, and
every time after it against the ceilings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from verify_attn.hardware import GpuModel
from verify_attn.hardware import sheet_of as sheet_of
from verify_attn.perf.device import Call, Device, Launch, TimerError
from verify_attn.perf.roofline import Rates, Work

COPY_BYTES = 1 << 30  # of a buffer: far more than any L2
LEAST_S = 0.2  # of copies, for the host's clock
AGREEMENT = 0.03  # of a timer with the host's clock
MATRIX = 8192  # rows and columns of the product's matrices
WARM_UP, SAMPLES = 3, 15
ABOVE = 0.05  # a ceiling: nothing faster is believed


@dataclass(frozen=True)
class Ceilings:
    """Measured rates; each the median of SAMPLES.

    ``rates``         what kernels are held against; its memory rate is the better of copy and read
    ``copy_gb_per_s`` bytes read and bytes written, together
    ``read_by``       what read at ``read_gb_per_s``
    ``matmul_tflops`` bf16 by bf16, added up in float32, of random normal numbers
    """

    rates: Rates
    copy_gb_per_s: float
    read_gb_per_s: float
    read_by: str
    matmul_tflops: float

    def as_record(self) -> dict[str, Any]:
        """For a run record."""
        return asdict(self)


def ceilings(device: Device, copy_bytes: int = COPY_BYTES, matrix: int = MATRIX) -> Ceilings:
    """Measure them, cold; takes two buffers of ``copy_bytes``, then three matrices.

    ``copy_bytes``  a multiple of 32 KiB
    ``matrix``      rows and columns of the bf16 matrices
    """
    copied, read, read_by = _memory_rates(device, copy_bytes)
    a, b, c = (
        torch.randn(matrix, matrix, dtype=torch.bfloat16, device=device.torch_device)
        for _ in range(3)
    )
    matmul_s = _median(device, lambda: torch.mm(a, b, out=c), "matmul")
    tflops = 2 * matrix**3 / matmul_s / 1e12
    source = (
        f"measured: {'copy' if copied > read else 'read'} of {copy_bytes / 2**20:,.0f} MiB, "
        f"bf16 product of {matrix} x {matrix} random normal numbers"
    )
    return Ceilings(Rates(max(copied, read), tflops, source), copied, read, read_by, tflops)


def self_test(
    device: Device,
    sheet: GpuModel | None,
    copy_bytes: int = COPY_BYTES,
    least_s: float = LEAST_S,
) -> dict[str, Any]:
    """Each timer against the host's clock, over copies that take ``least_s`` or more.

    For the record: seconds and rate by timer; CUPTI with its reason where it cannot be used.
    Raises `TimerError` where a timer and the clock differ by more than AGREEMENT, or where the
    copies are faster than the data sheet's memory.
    """
    source, target = _buffers(device, copy_bytes)

    def copy() -> None:
        target.copy_(source)

    count = 1
    while _host_seconds(device, copy, count) < least_s:
        count *= 2
    moved_gb = 2 * copy_bytes * count / 1e9

    def copies() -> None:
        for _ in range(count):
            copy()

    makers: dict[str, Callable[[], Call]] = {
        "events": lambda: device.whole(copies, "self-test by events"),
        "graph": lambda: device.replay([copy] * count, 2 * copy_bytes, "self-test by graph"),
        "cupti": lambda: device.profiled(copies, "self-test by cupti"),
    }
    timers: dict[str, dict[str, Any]] = {}
    for name, make in makers.items():
        try:
            call = make()
        except TimerError as error:
            if name != "cupti":
                raise
            timers[name] = {"unusable": str(error)}
            continue
        # What the timer times: a graph may copy faster than a stream does.
        host_s = statistics.median(_host_seconds(device, call.launch) for _ in range(3))
        taken = statistics.median(device.sample(call).seconds for _ in range(3))
        seconds = taken * call.method.calls
        _agree(name, seconds, host_s, moved_gb, sheet)
        timers[name] = {
            "seconds": seconds, "host_seconds": host_s, "gb_per_s": moved_gb / seconds,
        }  # fmt: skip
    return {
        "copy_bytes": copy_bytes, "copies": count, "timers": timers,
        "data_sheet": asdict(sheet) if sheet else "none for this GPU: rates are not held to one",
    }  # fmt: skip


def check_against(seconds: float, work: Work, rates: Rates) -> None:
    """Raises `TimerError` for a time that is no positive number, or more than ABOVE faster than a
    ceiling allows.  ``seconds`` of one kernel call."""
    if not 0 < seconds < math.inf:
        raise TimerError(f"a time of {seconds} s; a time is a positive number")
    done = (
        (work.total_bytes / seconds / 1e9, rates.gb_per_s, "GB/s", "bytes that must move"),
        (work.flops / seconds / 1e12, rates.tflops, "TFLOP/s", "operations"),
    )
    for rate, ceiling, unit, what in done:
        if rate > (1 + ABOVE) * ceiling:
            raise TimerError(
                f"{seconds * 1e3:.6f} ms for the {what} is {rate:,.1f} {unit}, "
                f"{rate / ceiling:.2f} times the ceiling of {ceiling:,.1f} {unit} "
                f"({rates.source}); more than {1 + ABOVE:.2f} times is not possible: the kernel "
                "leaves work out, or does it where its timer does not look"
            )


def _agree(
    timer: str, seconds: float, host_s: float, moved_gb: float, sheet: GpuModel | None
) -> None:
    if abs(seconds / host_s - 1) > AGREEMENT:
        raise TimerError(
            f"copies of {moved_gb:.1f} GB took {seconds:.6f} s by the {timer} timer and "
            f"{host_s:.6f} s by the host's clock; they must agree within {AGREEMENT:.0%}. Is "
            "another process using the GPU or all of the CPU?"
        )
    rate = moved_gb / seconds
    if sheet and rate > sheet.gb_per_s:
        raise TimerError(
            f"copies went at {rate:,.0f} GB/s by the {timer} timer, and the memory's peak is "
            f"{sheet.gb_per_s:,.0f} GB/s ({sheet.source}); the timer cannot be right"
        )


def _host_seconds(device: Device, launch: Launch, count: int = 1) -> float:
    """Of so many launches back to back, by the host's clock, the GPU idle before and after."""
    _wait(device)
    start = perf_counter()
    for _ in range(count):
        launch()
    _wait(device)
    return perf_counter() - start


def _wait(device: Device) -> None:
    if device.torch_device.type == "cuda":
        torch.cuda.synchronize(device.torch_device)


def _memory_rates(device: Device, size: int) -> tuple[float, float, str]:
    """(GB/s of a copy, GB/s of a read, what read) of buffers of ``size`` bytes."""
    source, target = _buffers(device, size)
    copy_s = _median(device, lambda: target.copy_(source), "copy")
    reads = {
        name: _median(device, launch, f"read by {name}")
        for name, launch in _readers(source).items()
    }
    best = min(reads, key=lambda name: reads[name])
    return 2 * size / copy_s / 1e9, size / reads[best] / 1e9, best


def _median(device: Device, launch: Launch, name: str) -> float:
    call = device.once(launch, name)
    taken = [device.sample(call).seconds for _ in range(WARM_UP + SAMPLES)]
    return statistics.median(taken[WARM_UP:])


def _readers(source: torch.Tensor) -> dict[str, Launch]:
    """Ways to read a buffer once; which is faster hangs on the GPU and on torch."""
    floats = source.view(torch.float32)
    readers: dict[str, Launch] = {"torch.sum": lambda: torch.sum(floats)}
    if source.is_cuda:
        from verify_attn.perf.read_triton import Reader

        readers["triton"] = Reader(source.view(torch.int32)).read
    return readers


def _buffers(device: Device, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two of uint8 [size], the first filled with random numbers."""
    try:
        source, target = (
            torch.empty(size, dtype=torch.uint8, device=device.torch_device) for _ in range(2)
        )
    except torch.OutOfMemoryError as error:
        raise TimerError(
            f"two buffers of {size / 2**20:,.0f} MiB for copies do not fit into the GPU's memory; "
            "end what else holds it"
        ) from error
    source.view(torch.float32).uniform_()
    return source, target
