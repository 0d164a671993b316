"""Is a kernel ever called better or worse than itself, and one slowed by 5 % always worse?

    python benchmarks/same_kernel.py --json results/h200/same_kernel.json

On each cell, 20 comparisons of triton-split with itself and 20 with itself and a busy loop after
it, as long as makes the call 5 % longer.  Samples of both sides are taken in turn, as `bench` does.
Ends with 1 unless every A/A comparison is neither better nor worse and 19 of 20 of the slowed ones
are worse.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from verify_attn.kernels.registry import load
from verify_attn.perf.axes import Cell
from verify_attn.perf.cuda_device import CudaDevice
from verify_attn.perf.device import Call
from verify_attn.perf.statistics import Interval, compare
from verify_attn.perf.subject import Shared, Subject
from verify_attn.record import new_record, write_record

COMPARISONS, SAMPLES, WARM_UP = 20, 30, 3
SLOWER = 1.05
LEAST_CAUGHT = 19
CELLS = (Cell(), Cell(context=184_728), Cell(context=184_728, nodes=64))


def main() -> int:
    """Compare; 2 without a GPU."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=Path, required=True)
    path = arguments.parse_args().json
    if not torch.cuda.is_available():
        print("error: no GPU; nothing can be timed here", file=sys.stderr)
        return 2
    record = new_record(["python", "benchmarks/same_kernel.py", *sys.argv[1:]])
    device, kernel = CudaDevice(), load("triton-split")
    for cell in CELLS:
        subject = Subject(kernel, cell, device, Shared(), ("events",))
        run = subject.calls["run"]
        for kind, other in (("itself", run), ("slowed", slowed(device, run))):
            record["cases"].append(case := judged(device, cell, kind, run, other))
            print(f"{cell.id}: {kind}: {case['metrics']['verdicts']}, ratio "
                  f"{case['metrics']['median_ratio']:.4f}", flush=True)  # fmt: skip
            write_record(path, record)
    return 0 if all(case["status"] == "pass" for case in record["cases"]) else 1


def slowed(device: CudaDevice, run: Call) -> Call:
    """The same call and a busy loop, found by trial, that makes it 5 % longer."""
    usual = median(device, run)
    long = 10_000_000
    hertz = long / median(device, device.once(lambda: torch.cuda._sleep(long), "busy loop"))
    cycles = 1

    def longer() -> None:
        run.launch()
        torch.cuda._sleep(cycles)

    call = device.once(longer, "slowed")
    for _ in range(6):
        missing = SLOWER * usual - median(device, call)
        cycles = max(1, cycles + round(missing * hertz))
    return call


def median(device: CudaDevice, call: Call) -> float:
    """Seconds."""
    taken = [device.sample(call).seconds for _ in range(WARM_UP + SAMPLES)]
    return statistics.median(taken[WARM_UP:])


def judged(device: CudaDevice, cell: Cell, kind: str, a: Call, b: Call) -> dict[str, Any]:
    """20 comparisons of two calls, samples taken in turn and the order turned about."""
    ratios: list[Interval] = []
    verdicts: Counter[str] = Counter()
    for _ in range(COMPARISONS):
        times: dict[int, list[float]] = {0: [], 1: []}
        for number in range(WARM_UP + SAMPLES):
            for side in (0, 1) if number % 2 else (1, 0):
                seconds = device.sample((a, b)[side]).seconds
                if number >= WARM_UP:
                    times[side].append(seconds)
        verdict, ratio = compare(times[0], times[1])
        verdicts[verdict] += 1
        ratios.append(ratio)
    wrong = verdicts["worse"] + verdicts["better"]
    good = wrong == 0 if kind == "itself" else verdicts["worse"] >= LEAST_CAUGHT
    return {
        "id": f"{kind} | {cell.id}", "parameters": {"kind": kind, "cell": cell.id},
        "status": "pass" if good else "fail",
        "reason": None if good else f"verdicts {dict(verdicts)}",
        "metrics": {
            "verdicts": dict(verdicts),
            "median_ratio": statistics.median(r.median for r in ratios),
            "ratios": [[r.low, r.median, r.high] for r in ratios],
        },
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
