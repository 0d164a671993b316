"""A few calls of a verify kernel, for tools that look at one: ncu, compute-sanitizer.

    ncu --clock-control none --kernel-name regex:verify_split --launch-skip 2 --launch-count 1 \
        --set full python benchmarks/one_call.py sm120 --context 184728 --nodes 32

One request of 8 heads (Kimi K2.6 on 8 GPUs), bf16, shuffled pages, a random tree.
"""

from __future__ import annotations

import argparse
import sys

import torch

from verify_attn.conformance.trial import Trial
from verify_attn.generate import Case
from verify_attn.kernels.registry import load

CALLS = 3


def main() -> int:
    """2 without a GPU or where the kernel does not take the case."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("kernel")
    arguments.add_argument("--context", type=int, default=184_728)
    arguments.add_argument("--nodes", type=int, default=32)
    arguments.add_argument("--page-size", type=int, default=1)
    asked = arguments.parse_args()
    if not torch.cuda.is_available():
        print("error: no GPU; there is nothing to look at", file=sys.stderr)
        return 2
    kernel = load(asked.kernel)
    case = Case(
        ((asked.context, f"random:{asked.nodes}:1"),), geometry="kimi-k2.6-tp8", dtype="bfloat16",
        layout="shuffled", page_size=asked.page_size,
    )  # fmt: skip
    batch = Trial(kernel, case, torch.device("cuda")).batch
    if why := kernel.unsupported(batch):
        print(f"error: {asked.kernel} does not take this case: {why}", file=sys.stderr)
        return 2
    out, lse = batch.outputs()
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    for _ in range(CALLS):
        kernel.run(batch, plan, out, lse)
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
