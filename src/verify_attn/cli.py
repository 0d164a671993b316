"""The command line: a thin front over the parts."""

from __future__ import annotations

import io
import sys

import click

from verify_attn import __version__
from verify_attn.cli_kernels import bench, check, compare_command, compile_command, roofline
from verify_attn.cli_runs import doctor, history, report, run
from verify_attn.cli_servers import serve, sweep
from verify_attn.record import BAD_USAGE, INTERRUPTED


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Is tree-verify attention right, does a live server hold its speed, and if not, why not?

    Exit codes: 0 passed, 1 something failed, 2 bad usage, 3 inconclusive or nothing executed,
    4 the server died or cannot be reached, 130 interrupted.
    """


for command in (
    run, check, bench, roofline, compare_command, sweep, serve, report, history, doctor,
    compile_command,
):  # fmt: skip
    main.add_command(command)


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
