"""A subject's samples as a case of a run record.

Every figure is there only where it was measured, with the interval that its median lies in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from verify_attn.kernels.base import Capabilities
from verify_attn.perf.axes import Cell
from verify_attn.perf.ceilings import check_against
from verify_attn.perf.device import Sample, TimerError
from verify_attn.perf.roofline import Rates, limit
from verify_attn.perf.saved import WHOLE
from verify_attn.perf.statistics import SampleError, compare, median_interval, two_modes
from verify_attn.perf.subject import Subject
from verify_attn.problem import FP8_DTYPES

WIDE = 0.05  # an interval wider than this, either side of its median, is no result


def failed_record(name: str, cell: Cell, status: str, reason: str) -> dict[str, Any]:
    """A kernel that was not timed on a cell, and why."""
    return _record(name, cell, status, reason, cell.case().to_json())


def case_record(
    subject: Subject,
    samples: Mapping[str, Sequence[Sample]],
    rates: Rates,
    baseline: Sequence[float] | None,
    asked_for: str = "run",
) -> dict[str, Any]:
    """``baseline``: seconds of the baseline's run, taken in turn with this one's.  ``asked_for``:
    the part whose interval must be narrow even if it has the host's noise."""
    seconds = {part: [s.seconds for s in taken] for part, taken in samples.items()}
    asked, rates = rates, own_rates(rates, subject.kernel.capabilities)
    record = _record(subject.kernel.name, subject.cell, "pass", None, subject.case.to_json())
    try:
        for taken in seconds.values():
            check_against(median_interval(taken).median, subject.work, rates)
        record["metrics"], record["notes"] = _metrics(subject, seconds, rates, baseline)
    except (TimerError, SampleError) as wrong:
        return record | {"status": "error", "reason": str(wrong)}
    record["samples_ms"] = {part: [s * 1e3 for s in taken] for part, taken in seconds.items()}
    record["methods"] = {p: subject.calls[p].method.as_record() for p in seconds}
    record["notes"] += [f"{part} is not measured: {why}" for part, why in subject.absent.items()]
    if rates.tflops != asked.tflops:
        record["notes"].append("shares are by fp8 products at twice the bf16 ceiling")
    _readings(record, samples)
    wide = [p for p in seconds if _wide(record["metrics"], p)]
    if not any(part in seconds for part in WHOLE):
        record["status"] = "inconclusive"
        lacking = "; ".join(f"{part}: {why}" for part, why in subject.absent.items())
        record["reason"] = (
            f"no time of the kernel could be taken: {lacking or 'none was asked for'}"
        )
    elif wide == ["prepare_run"] and asked_for != "prepare_run":
        # the host's own noise, which is no fault of the kernel's time
        record["notes"].append(f"the interval of prepare_run is wider than {WIDE:.0%}")
    elif wide:
        record["status"] = "inconclusive"
        record["reason"] = (
            f"the interval of {', '.join(wide)} is wider than {WIDE:.0%} of the median on a side"
        )
    return record


def own_rates(rates: Rates, kernel: Capabilities) -> Rates:
    """The ceilings, for a kernel with fp8 products at twice the arithmetic rate: tensor cores do
    two of them in the time of one in bf16, by every data sheet since Hopper's."""
    if kernel.products not in FP8_DTYPES:
        return rates
    return replace(
        rates, tflops=2 * rates.tflops, source=f"{rates.source}; fp8 products at twice that"
    )


def _record(name: str, cell: Cell, status: str, reason: str | None, case: str) -> dict[str, Any]:
    return {
        "id": f"{name} | {cell.id}",
        "parameters": {"kernel": name, **asdict(cell), "case": case},
        "status": status, "reason": reason, "metrics": {}, "notes": [],
    }  # fmt: skip


def _metrics(
    subject: Subject,
    seconds: Mapping[str, Sequence[float]],
    rates: Rates,
    baseline: Sequence[float] | None,
) -> tuple[dict[str, Any], list[str]]:
    metrics: dict[str, Any] = {}
    notes = []
    for part, taken in seconds.items():
        interval = median_interval(taken)
        metrics[f"{part}_ms"] = interval.median * 1e3
        metrics[f"{part}_low_ms"] = interval.low * 1e3
        metrics[f"{part}_high_ms"] = interval.high * 1e3
        if modes := two_modes(taken):
            notes.append(f"{part} has two modes, {modes[0] * 1e3:.4g} and {modes[1] * 1e3:.4g} ms")
    floor, work = limit(subject.work, rates), subject.work
    metrics |= {"limit_ms": floor.seconds * 1e3, "binds": floor.binds}
    whole = next((p for p in WHOLE if p in seconds), None)
    if whole is not None:
        time = metrics[f"{whole}_ms"] / 1e3
        gb, tflop = work.total_bytes / time / 1e9, work.flops / time / 1e12
        metrics |= {
            "gb_per_s": gb, "tflop_per_s": tflop, "memory_share": gb / rates.gb_per_s,
            "arithmetic_share": tflop / rates.tflops, "limit_share": floor.seconds / time,
            "samples": len(seconds[whole]),
        }  # fmt: skip
    if baseline is not None and "run" in seconds:
        pairs = min(len(baseline), len(seconds["run"]))
        verdict, ratio = compare(baseline[:pairs], seconds["run"][:pairs])
        metrics |= {
            "speedup": 1 / ratio.median, "speedup_low": 1 / ratio.high,
            "speedup_high": 1 / ratio.low, "against_baseline": verdict,
        }  # fmt: skip
    return metrics, notes


def _readings(record: dict[str, Any], samples: Mapping[str, Sequence[Sample]]) -> None:
    """Clocks, power and temperature along the samples; those taken while held down are marked."""
    readings = [s.reading for taken in samples.values() for s in taken]
    for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"):
        values = [v for r in readings if (v := getattr(r, name)) is not None]
        if values:
            record["metrics"][f"{name}_least"] = min(values)
            record["metrics"][f"{name}_most"] = max(values)
    throttled = {
        part: marks for part, taken in samples.items()
        if any(marks := [s.reading.throttled or "" for s in taken])
    }  # fmt: skip
    record["metrics"]["throttled_samples"] = sum(1 for r in readings if r.throttled)
    if throttled:
        record["throttled"] = throttled
        why = sorted({r.throttled for r in readings if r.throttled})
        record["notes"].append(
            f"{record['metrics']['throttled_samples']} of {len(readings)} samples were taken while "
            f"clocks were held down ({', '.join(why)})"
        )


def _wide(metrics: Mapping[str, Any], part: str) -> bool:
    low, middle, high = (metrics[f"{part}{end}_ms"] for end in ("_low", "", "_high"))
    return bool(max(high - middle, middle - low) > WIDE * middle)
