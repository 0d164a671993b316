"""Every check on random cases, as `verify-attn check` draws them but in bfloat16, on sm120.

python -m tests.kernels.cuda_on_cpu.fuzz --examples 1000 --json FILE
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from tests.kernels.cuda_on_cpu.kernel import OnCpu
from verify_attn.conformance import CHECK_NAMES, fuzz
from verify_attn.kernels.base import ObjectKernel
from verify_attn.record import new_record, write_record


@click.command()
@click.option("--examples", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--arch", type=click.Choice(["800", "900"]), default="900", show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path))
def main(examples: int, seed: int, arch: str, path: Path | None) -> None:
    """Ends with 1 if a check failed."""
    fuzz.CPU = replace(fuzz.CPU, dtypes=("bfloat16",), geometries=fuzz.CPU.others)
    kernel = OnCpu(blocks=7, arch=int(arch))
    ran: Counter[str] = Counter()
    failures: dict[str, str] = {}

    def told(event: dict[str, Any]) -> None:
        if event["event"] == "check" and event["status"] == "pass":
            ran[event["check"]] += 1
            if sum(ran.values()) % 100 == 0 and sys.stderr.isatty():
                print(f"\r{sum(ran.values())} checks", end="", file=sys.stderr)
        if event["event"] == "failure":
            failures[event["check"]] = event["text"]

    of = ObjectKernel("sm120 on a CPU", kernel, kernel.capabilities)
    run = fuzz.Fuzz(of, torch.device("cpu"), list(CHECK_NAMES), told, seed)
    run.run(examples)
    record = new_record(["python", "-m", "tests.kernels.cuda_on_cpu.fuzz", *sys.argv[1:]])
    for name in CHECK_NAMES:
        status = "fail" if name in failures else "pass" if ran[name] else "skipped"
        print(f"{name:20}{status} {ran[name]:,}")
        record["cases"].append({
            "id": name, "parameters": {"kernel": of.name, "arch": f"sm_{int(arch) // 10}"},
            "status": status, "reason": failures.get(name, None if ran[name] else "no case"),
            "metrics": {"executed": ran[name]},
        })  # fmt: skip
    record["progress"] = {of.name: {"examples": run.done}}
    if path is not None:
        write_record(path, record)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
