"""The verdict on the terminal, in 20 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from verify_attn.report.verdict import Verdict

MOST_LINES = 20
NARROW = 120  # columns
HEADLINE_LINES, REASONS, NOT_TESTED = 4, 7, 5  # with two counts of what is left out and two paths


def lines(verdict: Verdict, where: Sequence[str], width: int | None) -> list[str]:
    """Plain text, at most `MOST_LINES`; ``width`` of the terminal, None where there is no edge.

    ``where``: at most two lines on what was written.
    """
    headline = _shown(verdict.headline)
    head = [headline] if width is None else textwrap.wrap(headline, width)
    if len(head) > HEADLINE_LINES:
        head = [*head[: HEADLINE_LINES - 1], _cut(" ".join(head[HEADLINE_LINES - 1 :]), width)]
    told = [*head, *_reasons(verdict, width), *_not_tested(verdict, width), *where]
    assert len(told) <= MOST_LINES
    return told


def _reasons(verdict: Verdict, width: int | None) -> Iterator[str]:
    reasons = verdict.reasons
    if reasons and " ".join(reasons[0].text.split()) in verdict.headline:
        reasons = reasons[1:]
    most, rows = _room(REASONS, width)
    for reason in reasons[:most]:
        yield from _rows(f"  {reason.status}: {reason.text}", width, rows)
    if len(reasons) > most:
        yield f"  and {len(reasons) - most} more reasons"


def _not_tested(verdict: Verdict, width: int | None) -> Iterator[str]:
    most, rows = _room(NOT_TESTED, width)
    for line in verdict.not_tested[:most]:
        yield from _rows(f"not tested: {line}", width, rows)
    left = len(verdict.not_tested) - most
    if left > 0:
        yield f"and {left} more {'thing was' if left == 1 else 'things were'} not tested"


def _room(lines: int, width: int | None) -> tuple[int, int]:
    """(how many texts, lines of each): a narrow terminal shows fewer, and enough of each."""
    return (lines, 1) if width is None or width >= NARROW else (lines // 2, 2)


def _rows(text: str, width: int | None, rows: int) -> list[str]:
    """A text on so many lines at most."""
    if width is None or rows == 1:
        return [_cut(text, width)]
    found = textwrap.wrap(_shown(text), width, subsequent_indent="    ") or [""]
    return (
        [*found[: rows - 1], _cut("    " + " ".join(" ".join(found[rows - 1 :]).split()), width)]
        if len(found) > rows
        else found
    )


def _cut(text: str, width: int | None) -> str:
    text = _shown(text)
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


def _shown(text: str) -> str:
    """On one line, indented as it was; control characters are shown, not obeyed."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    line = indent + " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
