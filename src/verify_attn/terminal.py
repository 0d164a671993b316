"""How every command prints: text of others is shown and never obeyed; pipes have no edge."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from verify_attn.record import BAD_USAGE

PIPE_WIDTH = 200
STATUS_STYLE = {
    "pass": "green", "fail": "bold red", "error": "bold red", "inconclusive": "yellow",
    "skipped": "dim",
}  # fmt: skip


def printable(text: str) -> str:
    """Text of a kernel's or a server's, on its way to the terminal: control characters shown."""
    return escape("".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    ))  # fmt: skip


def output() -> Console:
    """Standard output; in a pipe as wide as any table, since nothing there has an edge."""
    console = Console(highlight=False, emoji=False)
    return (
        console if console.is_terminal else Console(highlight=False, emoji=False, width=PIPE_WIDTH)
    )


def show_table(console: Console, table: Table) -> None:
    """As wide as it is: a narrow terminal breaks its lines, and loses no column and no name."""
    roomy = console.options.update(max_width=10 * PIPE_WIDTH)
    width = Measurement.get(console, roomy, table).maximum
    if width > console.width and not console.quiet:
        console = Console(file=console.file, width=width, force_terminal=console.is_terminal,
                          highlight=False, emoji=False)  # fmt: skip
    console.print(table)


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM, from a CI runner or systemd, ends a command as Ctrl-C does: with its record."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def error(message: str, code: int = BAD_USAGE) -> int:
    """Say what is wrong on standard error; returns the exit code."""
    Console(stderr=True, highlight=False, emoji=False, soft_wrap=True).print(
        f"error: {printable(message)}"
    )
    return code
