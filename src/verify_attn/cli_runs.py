"""The command line of whole runs: run, report, history, doctor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--url", help="Your server's [the package's own, started beside].")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="The folder of the run [verify-attn-runs/<UTC time>].")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with an interrupted run [the latest].")
@click.option("--quick", is_flag=True, help="Fewer cases and lengths: a first look.")
@click.option("--examples", type=click.IntRange(1, 1_000_000), help="As of check.")
@click.option("--contexts", metavar="SIZES", help="As of sweep.")
@click.option("--max-tokens", type=int, help="As of sweep.")
@click.option("--floors", metavar="FILE", help="As of sweep.")
@click.option("--against", metavar="FILE", help="As of sweep.")
@click.option("--sweep", metavar="OPTIONS", help="More of sweep's: '--geometry NAME --gpu NAME'.")
def run(out: Path | None, resume: bool, **options: Any) -> None:
    """Everything in one command: doctor, check, bench, sweep; one verdict, one folder.

    KERNEL is a built-in's name (all of them by default) or your own, package.module:name.  Without
    a GPU it takes minutes and says what was not tested.
    """
    from verify_attn.run_command import run_run
    from verify_attn.run_plan import Asked

    sys.exit(run_run(Asked(**options), out, resume))


@click.command()
@click.argument("records", metavar="FOLDER_OR_RECORD...", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="[report.html in the folder, or beside the record]")  # fmt: skip
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="A saved sweep's record, drawn behind this one's.")  # fmt: skip
def report(records: tuple[Path, ...], out: Path | None, against: Path | None) -> None:
    """Make the HTML page of a run's folder, or of single records, from the records alone.

    Ends in 0 where the page was written, whatever its verdict; 2 for what is no record.
    """
    from verify_attn.report_command import run_report

    sys.exit(run_report(records, out=out, against=against))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--branch", metavar="NAME", help="Of the repository FOLDER, read without a checkout.")
@click.option("--case", "cases", multiple=True, metavar="PATTERN", help="An id or a glob; repeat.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME",
              help="[bench run_ms and limit_share; sweep decode_tok_s, step_ms and first_token_s; "
              "check worst_over_bound; compare run_ratio]")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the charts here.")  # fmt: skip
@click.option("--json", "record", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
def history(folder: Path, **options: Any) -> None:
    """When did it get worse?  Records kept in FOLDER, at any depth, over their commits.

    Exit codes: 0 nothing got worse and stayed so, 1 something did, 2 no folder, no record, nothing
    that matches, 3 too few records to say.
    """
    from verify_attn.history_command import run_history

    sys.exit(run_history(folder, **options))


@click.command()
def doctor() -> None:
    """Say what this machine has and what can run on it."""
    from verify_attn.commands import run_doctor

    run_doctor()
