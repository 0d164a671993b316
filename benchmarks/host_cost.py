"""What one ``run`` of a verify kernel takes the host, on one GPU, and write a run record.

    python benchmarks/host_cost.py --json results/h200/host_cost.json

Nothing is waited for after a call, so the time is that of the Python code and of the driver's
launch, not of the kernel: once with calls behind one another, as in a decode step, and once with
the GPU idle before each.  One request of 8 heads (Kimi K2.6 on 8 GPUs), bf16, page_size 1, shuffled
pages, a random tree; medians of 300 calls, taken three times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

from verify_attn.conformance.trial import Trial
from verify_attn.generate import Case
from verify_attn.kernels.registry import load
from verify_attn.record import new_record, write_record

KERNELS = ("sm120", "triton-split", "triton-unsplit")
CONTEXT, NODES = 1_427, 32
CALLS, WARM_UP, TIMES = 300, 20, 3


def main() -> int:
    """Time all kernels; 2 without a GPU."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=Path, required=True)
    path = arguments.parse_args().json
    if not torch.cuda.is_available():
        print("error: no GPU; nothing can be timed here", file=sys.stderr)
        return 2
    record = new_record(["python", *sys.argv])
    case = Case(
        ((CONTEXT, f"random:{NODES}:1"),), geometry="kimi-k2.6-tp8", dtype="bfloat16",
        layout="shuffled",
    )  # fmt: skip
    for name in KERNELS:
        behind, idle = (
            [1e6 * host_seconds(name, case, from_idle) for _ in range(TIMES)]
            for from_idle in (False, True)
        )
        for what, medians in (("behind one another", behind), ("from idle", idle)):
            print(name, what, *(f"{median:.1f}" for median in medians), "us")
        record["cases"].append({
            "id": f"{name}, {CONTEXT} tokens, {NODES} nodes", "status": "pass", "reason": None,
            "parameters": {"kernel": name, "context": CONTEXT, "nodes": NODES, "calls": CALLS},
            "metrics": {
                "host_us": statistics.median(behind), "host_us_each_time": behind,
                "from_idle_us": statistics.median(idle), "from_idle_us_each_time": idle,
            },
        })  # fmt: skip
    write_record(path, record)
    return 0


def host_seconds(name: str, case: Case, from_idle: bool) -> float:
    """The median of what a call keeps the host for."""
    kernel = load(name)
    batch = Trial(kernel, case, torch.device("cuda")).batch
    out, lse = batch.outputs()
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    taken = []
    for _ in range(WARM_UP + CALLS):
        if from_idle:
            torch.cuda.synchronize()
        start = time.perf_counter()
        kernel.run(batch, plan, out, lse)
        taken.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(taken[WARM_UP:])


if __name__ == "__main__":
    sys.exit(main())
