"""Sweep servers of which everything is known, and count which cause is named for which injected.

python benchmarks/confusion_matrix.py --json results/cpu/diagnosis.json

All scenarios of ``tests/live/truth/scenarios.py`` and the healthy servers of 50 seeds, one sweep
each, none repeated.  Server and client have a core each, and real-time priority where the system
allows it, so that other work on the machine does not count as a server's fault.
"""

from __future__ import annotations

import fnmatch
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).parent.parent))  # for tests.live.truth

from tests.live.truth.scenarios import SCENARIOS, Named, healthy
from tests.live.truth.sweeping import Swept, sweep, wrong

from verify_attn.live.causes import CAUSES
from verify_attn.record import check_writable, new_record, write_record

HEALTHY, NONE = "healthy", "(none)"
ERRORS = {
    "first_token_ms": ("first_token_s", 1e3),
    "decode_rate_percent": ("rate", 100.0),
    "committed_percent": ("committed", 100.0),
}


@dataclass
class Counted:
    """What all sweeps so far said."""

    matrix: dict[str, Counter[str]] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ERRORS})
    cases: list[dict[str, Any]] = field(default_factory=list)
    undisturbed: bool = True

    def add(self, named: Named, group: str, swept: Swept, seconds: float) -> None:
        """A sweep: a row for each injected cause; causes allowed beside it are left out."""
        self.undisturbed &= swept.undisturbed
        said, problem = swept.causes, wrong(named, swept.causes)
        for injected in named.causes or (group,):
            others = set(named.causes) - {injected}
            row = self.matrix.setdefault(injected, Counter())
            row.update((said - others - set(named.allowed)) or {NONE})
        metrics: dict[str, Any] = {"seconds": seconds, "hindered_s": swept.hindered_s}
        for name, (key, unit) in ERRORS.items():
            values = [abs(value) * unit for value in getattr(swept.errors, key)]
            self.errors[name] += values
            if values:
                metrics[f"{name}_median"] = float(np.median(values))
        self.cases.append({
            "id": named.name,
            "status": "fail" if problem else "pass",
            "reason": problem or "",
            "parameters": {"injected": list(named.causes), "allowed": list(named.allowed)},
            "metrics": metrics,
            "findings": [finding.as_json() for finding in swept.run.findings()],
        })  # fmt: skip

    def failed(self, named: Named, group: str, error: Exception) -> None:
        """A sweep that raised."""
        for injected in named.causes or (group,):
            self.matrix.setdefault(injected, Counter())["(raised)"] += 1
        reason = f"{type(error).__name__}: {error}"
        self.cases.append({"id": named.name, "status": "error", "reason": reason, "metrics": {}})

    def summary(self) -> dict[str, dict[str, float]]:
        """Median, p90 and largest of the absolute errors, over all answers."""
        return {
            name: {
                "answers": len(values), "median": float(np.median(values)),
                "p90": float(np.quantile(values, 0.9)), "max": max(values),
            }
            for name, values in self.errors.items() if values
        }  # fmt: skip


def chosen(first: int, seeds: int, only: Sequence[str]) -> list[tuple[str, Named]]:
    """(row for nothing injected, what to sweep)."""
    all_of_them = [("sound formats", named) for named in SCENARIOS.values()]
    for seed in range(first, first + seeds):
        all_of_them.append((HEALTHY, Named(f"healthy-{seed}", healthy(seed))))
    if not only:
        return all_of_them
    return [
        (group, named) for group, named in all_of_them
        if any(fnmatch.fnmatchcase(named.name, pattern) for pattern in only)
    ]  # fmt: skip


def show(console: Console, counted: Counted) -> None:
    """The matrix without its empty columns, the errors, and what was wrong."""
    columns = [
        c for c in (NONE, *CAUSES, "(raised)") if any(c in r for r in counted.matrix.values())
    ]
    lines = [f"{'injected':30}" + "".join(f"{i + 1:4}" for i in range(len(columns))) + "   named"]
    for injected, row in counted.matrix.items():
        lines.append(f"{injected:30}" + "".join(f"{row[c] or '':4}" for c in columns))
    lines += [f"{i + 1:4} {name}" for i, name in enumerate(columns)]
    console.print("\n".join(line.rstrip() for line in lines), soft_wrap=True, highlight=False)
    for name, found in counted.summary().items():
        console.print(
            f"error of {name}: median {found['median']:.3g}, p90 {found['p90']:.3g}, "
            f"max {found['max']:.3g} ({found['answers']} answers)",
            soft_wrap=True,
        )
    for case in counted.cases:
        if case["status"] != "pass":
            console.print(f"{case['id']}: {case['reason']}", markup=False, soft_wrap=True)


@click.command()
@click.option("--seeds", default=50, show_default=True, type=click.IntRange(0),
              help="Healthy servers.")  # fmt: skip
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--only", multiple=True, help="Names, with * as a wildcard, such as 'healthy-*'.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write a record here.")
def main(seeds: int, first_seed: int, only: tuple[str, ...], path: Path | None) -> None:
    """Ends in 1 where a cause was missed or wrongly named, in 130 where interrupted."""
    if path is not None:
        check_writable(path)
    todo = chosen(first_seed, seeds, only)
    if not todo:
        raise click.BadParameter(f"no scenario is named {', '.join(only)}", param_hint="--only")
    record = new_record(["python", *sys.argv])
    console, err = Console(), Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    counted, interrupted = Counted(), False
    load = os.getloadavg()[0]
    with Progress(
        *columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=len(todo))
        try:
            for group, named in todo:
                bar.update(task, description=named.name)
                begin = time.monotonic()
                try:
                    swept = sweep(named.scenario, named.settings)
                    counted.add(named, group, swept, time.monotonic() - begin)
                except Exception as error:
                    counted.failed(named, group, error)
                bar.advance(task)
        except KeyboardInterrupt:
            interrupted = True
    show(console, counted)
    record["cases"] = counted.cases
    record["matrix"] = {injected: dict(row) for injected, row in counted.matrix.items()}
    record["errors"] = counted.summary()
    record["machine"] = {
        "cores": len(os.sched_getaffinity(0)), "load_before": load,
        "real_time_priority": counted.undisturbed,
        "held_up_over_50_ms": sum(c["metrics"].get("hindered_s", 0) > 0.05 for c in counted.cases),
        "interrupted": interrupted,
    }  # fmt: skip
    if path is not None:
        write_record(path, record)
    if interrupted:
        sys.exit(130)
    sys.exit(any(case["status"] != "pass" for case in counted.cases))


if __name__ == "__main__":
    main()
