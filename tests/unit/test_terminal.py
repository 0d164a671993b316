"""Text of others on the terminal: shown as it is, never obeyed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from verify_attn.terminal import error, output, printable, show_table


@pytest.mark.parametrize(
    "text", ["my:right:a", ":smiley: [bold]x[/bold]", "a\x1b[31mred", "back\\[x]"]
)
def test_no_markup_no_emoji_no_control(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output().print(printable(text))
    assert error(text) == 2
    shown = capsys.readouterr()
    plain = text.replace("\x1b", "\\x1b")
    assert shown.out == f"{plain}\n"
    assert shown.err == f"error: {plain}\n"


def test_a_narrow_terminal_loses_no_column_and_no_name() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("cell", overflow="fold")
    for n in range(12):
        table.add_column(f"figure {n}", no_wrap=True)
    table.add_row("the name of the cell", *(f"{n}.123456" for n in range(12)))
    file = io.StringIO()
    show_table(Console(file=file, width=40), table)
    shown = file.getvalue()
    assert "the name of the cell" in shown
    assert all(f"{n}.123456" in shown and f"figure {n}" in shown for n in range(12))
    assert "…" not in shown
    assert len(shown.splitlines()) == 2
