"""The verdict on the terminal, in 20 lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from verify_attn.report.verdict import Verdict

MOST_LINES = 20
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
    for reason in reasons[:REASONS]:
        yield _cut(f"  {reason.status}: {reason.text}", width)
    if len(reasons) > REASONS:
        yield f"  and {len(reasons) - REASONS} more reasons"


def _not_tested(verdict: Verdict, width: int | None) -> Iterator[str]:
    for line in verdict.not_tested[:NOT_TESTED]:
        yield _cut(f"not tested: {line}", width)
    if len(verdict.not_tested) > NOT_TESTED:
        yield f"and {len(verdict.not_tested) - NOT_TESTED} more that was not tested"


def _cut(text: str, width: int | None) -> str:
    text = _shown(text)
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


def _shown(text: str) -> str:
    """On one line, indented as it was; control characters are shown, not obeyed."""
    indent = "  " if text.startswith("  ") else ""
    line = indent + " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
