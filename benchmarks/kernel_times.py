"""Time verify kernels on one GPU, and write a run record.

    python benchmarks/kernel_times.py --json results/h200/kernel_times.json

One request of 8 heads (Kimi K2.6 on 8 GPUs), bf16, page_size 1, shuffled pages, a random tree.
Each time is the median of CUDA events around ``run``, the L2 flushed before each call; the kernels
of a cell take turns.  A kernel that differs from the reference is not timed.  SGLang's
``extend_attention_fwd`` is timed too where its wheel is installed (docs/wrap-a-kernel.md).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from verify_attn.conformance.trial import Trial
from verify_attn.generate import Case
from verify_attn.kernels.base import KernelError, VerifyKernel
from verify_attn.kernels.registry import load
from verify_attn.record import new_record, write_record

CONTEXTS = (1_427, 11_402, 31_952, 63_903, 127_802, 184_728)
NODES = (8, 32, 64)
KERNELS = ("triton-unsplit", "triton-split", "sglang-extend")
ROUNDS, WARM_UP = 15, 3
FLUSH_BYTES = 1 << 30


def main() -> int:
    """Time every cell; 2 without a GPU."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=Path, required=True)
    path = arguments.parse_args().json
    if not torch.cuda.is_available():
        print("error: no GPU; nothing can be timed here", file=sys.stderr)
        return 2
    kernels = usable(KERNELS)
    record = new_record(["python", *sys.argv])
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for context in CONTEXTS:
        for nodes in NODES:
            case = Case(
                ((context, f"random:{nodes}:1"),), geometry="kimi-k2.6-tp8", dtype="bfloat16",
                layout="shuffled",
            )  # fmt: skip
            record["cases"] += time_cell(kernels, case, context, nodes, flush)
            write_record(path, record)
    return 0


def usable(names: tuple[str, ...]) -> dict[str, VerifyKernel]:
    """The kernels that load here; the others are named with their reason."""
    kernels = {}
    for name in names:
        try:
            kernels[name] = load(name)
        except KernelError as error:
            print(f"left out {name}: {error}", file=sys.stderr)
    return kernels


def time_cell(
    kernels: dict[str, VerifyKernel], case: Case, context: int, nodes: int, flush: torch.Tensor
) -> list[dict[str, Any]]:
    """One context and tree, all kernels in turn."""
    calls, cases = {}, []
    for name, kernel in kernels.items():
        trial = Trial(kernel, case, torch.device("cuda"))
        trial.compare(trial.output, trial.reference, trial.batch, f"{name} is wrong")
        plan = kernel.plan(trial.batch)
        kernel.prepare(trial.batch, plan)
        out, lse = trial.batch.outputs()
        calls[name] = (kernel, trial.batch, plan, out, lse)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(WARM_UP + ROUNDS):
        for name, (kernel, batch, plan, out, lse) in calls.items():
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            kernel.run(batch, plan, out, lse)
            end.record()
            torch.cuda.synchronize()
            if round_number >= WARM_UP:
                times[name].append(start.elapsed_time(end))
    shown = []
    for name, measured in times.items():
        median = statistics.median(measured)
        cases.append({
            "id": f"{name}/{context}/{nodes}",
            "parameters": {"kernel": name, "context": context, "nodes": nodes, "page_size": 1,
                           "heads": 8, "layout": "shuffled", "dtype": "bfloat16"},
            "status": "pass", "reason": None,
            "metrics": {"median_ms": median, "min_ms": min(measured), "max_ms": max(measured),
                        "rounds": len(measured)},
        })  # fmt: skip
        shown.append(f"{name} {median:.4f}")
    print(f"{context:>7} tokens {nodes:>3} nodes  ms: " + "  ".join(shown), flush=True)
    return cases


if __name__ == "__main__":
    sys.exit(main())
