"""The command line: a thin front over the parts."""

from __future__ import annotations

import errno
import io
import os
import sys

import click

from verify_attn import __version__
from verify_attn.cli_kernels import bench, check, compare_command, compile_command, roofline
from verify_attn.cli_runs import doctor, history, report, run
from verify_attn.cli_servers import serve, sweep
from verify_attn.file_errors import why
from verify_attn.record import BAD_USAGE, INTERRUPTED

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


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
    """The console script: Ctrl-C ends with 130 whatever runs, a full output with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a kernel may say what it likes
    try:
        main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(BAD_USAGE)
    except OSError as failed:
        if failed.filename is not None or failed.errno not in FULL:
            raise
        from verify_attn.terminal import error

        try:
            os.write(sys.stdout.fileno(), b"\n")
        except OSError:
            pass
        else:
            raise  # it was another file that is full
        # Python writes what is left when it ends, and would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(error(f"standard output cannot be written: {why(failed)}"))


if __name__ == "__main__":
    entry()
