"""The command line: a thin front over the parts."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click

from verify_attn import __version__
from verify_attn.record import BAD_USAGE, INTERRUPTED


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Is tree-verify attention right, and if not, what is wrong?

    Exit codes: 0 passed, 1 something failed, 2 bad usage, 3 inconclusive or nothing executed,
    130 interrupted.
    """


@main.command()
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


@main.command()
def doctor() -> None:
    """Say what this machine has and what can run on it."""
    from verify_attn.commands import run_doctor

    run_doctor()


@main.command(name="compile")
@click.option("--arch", "archs", multiple=True, default=("sm_90",), show_default=True,
              help="sm_80, sm_86, sm_90, sm_100 or sm_120; repeat for several.")  # fmt: skip
def compile_command(archs: tuple[str, ...]) -> None:
    """Compile every Triton configuration, with no GPU, and print what it takes."""
    from verify_attn.commands import run_compile

    sys.exit(run_compile(archs))


def entry() -> None:
    """The console script: Ctrl-C ends with 130 whatever runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a kernel may say what it likes
    try:
        main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_USAGE)


if __name__ == "__main__":
    entry()
