"""Text of others on the terminal: shown as it is, never obeyed."""

from __future__ import annotations

import pytest

from verify_attn.terminal import error, output, printable


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
