"""The command line of kernels: check, compile, bench, roofline, compare."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option(
    "--examples", type=click.IntRange(1, 1_000_000), help="Cases a kernel [1000; 24 without a GPU]."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check (repeat, or a,b).")
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
@click.option("--case", metavar="JSON", help="Run this one case, as a failure printed it.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=120.0,
              show_default=True, metavar="SECONDS", help="Of one check on one case.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Processes [a core each].")
@click.option("--resume", is_flag=True, help="Go on where the record of --json stopped.")
def check(
    kernels: tuple[str, ...],
    examples: int | None,
    seed: int,
    only: tuple[str, ...],
    record: Path | None,
    case: str | None,
    time_limit: float,
    workers: int | None,
    resume: bool,
) -> None:
    """Fuzz verify kernels and say exactly what is wrong.

    KERNEL is a built-in's name (torch, triton-unsplit, triton-split; all of them by default) or
    your own, package.module:name.
    """
    from verify_attn.commands import run_check

    sys.exit(
        run_check(
            kernels, examples=examples, seed=seed, only=only, record=record, case=case,
            time_limit_s=time_limit, workers=workers, resume=resume,
        )
    )  # fmt: skip


@click.command(name="compile")
@click.option("--arch", "archs", multiple=True, default=("sm_90",), show_default=True,
              help="sm_80, sm_86, sm_90, sm_100 or sm_120; repeat for several.")  # fmt: skip
@click.option("--kernel", "kernels", multiple=True, metavar="KERNEL",
              type=click.Choice(["triton-unsplit", "triton-split", "sm120"]),
              help="Only this kernel (repeat): triton-unsplit, triton-split, sm120.")  # fmt: skip
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
def compile_command(archs: tuple[str, ...], kernels: tuple[str, ...], record: Path | None) -> None:
    """Compile the built-in kernels, with no GPU and no driver, and print what they take.

    Of Triton's every configuration; of the CUDA kernel sm120 every build, which is also held to
    101,376 bytes of shared memory, no spill, no local memory, and instructions that sm_80, sm_90
    and sm_120 all have.  Ends with 1 if anything is over a limit.
    """
    from verify_attn.compile_command import run_compile

    sys.exit(run_compile(archs, kernels, record))


def _axes(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the axes, the same for bench and roofline."""
    for name, shown in (
        ("kv-dtypes", ""), ("dtypes", "[bfloat16]"), ("trees", "tree, chain"),
        ("layouts", "shuffled, contiguous, churned ..."), ("page-sizes", ""), ("heads", ""),
        ("requests", "of unequal lengths"), ("nodes", "the root counts: budget + 1"),
        ("contexts", "prefix tokens, k is 1,024"),
    ):  # fmt: skip
        command = click.option(f"--{name}", metavar="LIST", help=shown)(command)
    command = click.option("--grid", is_flag=True, help="All combinations of the axes.")(command)
    return click.option("--quick", is_flag=True, help="Three contexts alone.")(command)


@click.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@_axes
@click.option("--peers", is_flag=True, help="Other people's kernels too, where installed.")
@click.option("--baseline", default="triton-unsplit", show_default=True, metavar="KERNEL",
              help="What speedups are against.")  # fmt: skip
@click.option("--timers", default="events,graph", show_default=True, help="And cupti.")
@click.option("--gpu", metavar="NAME", help="Without a GPU: whose roofline (h200 ...).")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=300.0,
              show_default=True, metavar="SECONDS", help="Of a step with a kernel.")  # fmt: skip
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here, after each cell.")  # fmt: skip
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--project", type=click.Path(dir_okay=False, path_type=Path), metavar="RECORD",
              help="On an RTX PRO 6000: show against times projected from it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the cells and the plan; time nothing.")
def bench(kernels: tuple[str, ...], gpu: str | None, dry_run: bool, **options: Any) -> None:
    """Time verify kernels against the hardware's limit and against a baseline.

    One axis at a time around 1 request, 31,952 tokens, 32 nodes, 8 heads and page 1; axes that are
    given replace all others.  A wrong kernel gets no time.  Without a GPU nothing is timed (3).
    """
    from verify_attn.bench_command import ask, run_bench
    from verify_attn.terminal import error

    try:
        asked = ask(kernels, options)
    except ValueError as wrong:
        sys.exit(error(str(wrong)))
    sys.exit(run_bench(asked, gpu, dry_run))


@click.command()
@click.option("--gpu", metavar="NAME", help="rtx-pro-6000, h100, b200 ... [h200, which is said].")
@click.option("--project", type=click.Path(dir_okay=False, path_type=Path), metavar="RECORD",
              help="Times projected to an RTX PRO 6000 from a record of bench.")  # fmt: skip
@_axes
def roofline(gpu: str | None, project: Path | None, **options: Any) -> None:
    """What no kernel can go below, by a GPU's data sheet; needs no GPU.

    With --project: what a kernel that was timed elsewhere should take there (docs/projection.md).
    """
    from verify_attn.bench_command import asked_cells, run_projection, run_roofline
    from verify_attn.terminal import error

    try:
        chosen = asked_cells(options)
    except ValueError as wrong:
        sys.exit(error(str(wrong)))
    if project is not None:
        sys.exit(run_projection(gpu, project, chosen if any(options.values()) else None))
    sys.exit(run_roofline(gpu, chosen))


@click.command(name="compare")
@click.argument("baseline", metavar="A", type=click.Path(path_type=Path))
@click.argument("candidate", metavar="B", type=click.Path(path_type=Path))
@click.option("--threshold", type=float, metavar="SHARE",
              help="How much worse is allowed [pyproject.toml's, or 0.05: 5 %].")  # fmt: skip
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a JUnit report here.")  # fmt: skip
@click.option("--json", "record", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
def compare_command(baseline: Path, candidate: Path, **options: Any) -> None:
    """Did B get worse than A?  Case by case; records of bench, or of pytest --benchmark-json.

    Exit codes: 0 nothing got worse, 1 a case is worse, missing, renamed or failed, 2 a file that
    is no such record, 3 unclear, or nothing was compared.
    """
    from verify_attn.compare_command import run_compare

    sys.exit(run_compare(baseline, candidate, **options))
