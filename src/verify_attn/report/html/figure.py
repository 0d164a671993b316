"""A chart: its plotly figure, the same numbers as a table, and what it shows in a sentence.

plotly reads a little HTML in every text that it draws (``<b>``, ``<a href>``), so all text goes
through `label`.  Colours are those of the light scheme; `DARK` holds what each becomes in the dark
one, and the page's script swaps them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from verify_attn.report.html.values import ROWS, plain

Figure = dict[str, Any]

INK, MUTED, GRID, SURFACE = "#1a2330", "#566172", "#d9dfe7", "#ffffff"
LIMIT = "#b00020"  # floors, and what is worse than one
# Told apart by hue and lightness for the colour-blind too, and by dash and marker where hue fails.
COLOURS = ("#0063a6", "#b84300", "#007a5a", "#8a3ea0", "#7a6200", "#007c91", "#444b55")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "star")
STATUS_SYMBOL = {
    "pass": "circle", "fail": "x", "error": "cross", "inconclusive": "diamond-open",
    "skipped": "circle-open",
}  # fmt: skip
_IN_THE_DARK = {
    INK: "#e6ebf2", MUTED: "#a8b3c2", GRID: "#37424f", SURFACE: "#151b23", LIMIT: "#ff8a93",
    **dict(zip(COLOURS, ("#6db9f2", "#ff9e66", "#3fcfa0", "#d9a0ee", "#e3c64b", "#5fd4e6",
                         "#c3cad3"), strict=True)),
}  # fmt: skip
# One figure, or the two ends of an interval.
_FIGURES = re.compile(r"-?[\d.,]+(e[-+]\d+)?%?( to -?[\d.,]+)?")
NAME = 38  # characters of a name in a legend
LINES, POINTS = 12, 60  # of one chart, points of each line


def band(colour: str) -> str:
    """The colour as a wash, for what lies between two bounds."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


DARK = _IN_THE_DARK | {band(light): band(dark) for light, dark in _IN_THE_DARK.items()}


@dataclass(frozen=True)
class Table:
    """The numbers of a chart.  ``note`` says which rows are left out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
        """At most `ROWS` rows, and how many more there are."""
        left = len(rows) - ROWS
        more = f"{left:,} more rows are in the record." if left > 0 else ""
        return cls(head, rows[:ROWS], f"{note} {more}".strip())

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold figures alone."""
        return [
            any(cells) and all(not c or _FIGURES.fullmatch(c) for c in cells)
            for cells in ([row[i] for row in self.rows] for i in range(len(self.head)))
        ]


@dataclass(frozen=True)
class Chart:
    """``says``: what there is to see, for who cannot; it is the caption too."""

    id: str
    title: str
    says: str
    data: list[Figure]
    layout: Figure
    table: Table

    @property
    def figure(self) -> Figure:
        """What plotly draws."""
        return {"data": self.data, "layout": self.layout}


@dataclass(frozen=True)
class Section:
    """A part of the page.  ``empty``: why there is nothing in it; ``kind`` and ``more``: what its
    template draws besides charts."""

    id: str
    title: str
    lead: str = ""
    charts: list[Chart] = field(default_factory=list)
    empty: str = ""
    kind: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def label(text: object, most: int = 120) -> str:
    """Text for plotly, in which markup stays text."""
    shown = plain(str(text)[: most + 1], most + 1).replace("\n", " ")
    shown = shown if len(shown) <= most else f"{shown[: most - 3]}..."
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def legend(text: object) -> str:
    """A label short enough for a legend on a phone; hover boxes and tables have it whole."""
    shown = plain(text, 200).replace("\n", " ")
    return label(shown if len(shown) <= NAME else f"{shown[: NAME - 14]}...{shown[-11:]}")


def wrapped(text: str, width: int = 20) -> str:
    """A label of a category in lines that leave a phone room for the chart, broken at commas."""
    rows = [""]
    for word in re.split(r", |,(?!\d{3})", text):
        if rows[-1] and len(rows[-1]) + len(word) + 2 > width:
            rows.append("")
        rows[-1] += f", {word}" if rows[-1] else word
    return "<br>".join(label(row, 2 * width) for row in rows[:4])


def hover(*lines: object) -> str:
    """Text of a hover box: a line each, long ones broken."""
    broken: list[str] = []
    for line in lines:
        row = ""
        for word in plain(line, 240).split():
            if row and len(row) + len(word) > 56:
                broken.append(row)
                row = ""
            row = f"{row} {word}".strip()
        broken.append(row)
    return "<br>".join(label(row) for row in broken if row)


def colour(i: int) -> str:
    """Of the i-th line."""
    return COLOURS[i % len(COLOURS)]


def dash(i: int) -> str:
    """Of the i-th line."""
    return DASHES[i % len(DASHES)]


def symbol(i: int) -> str:
    """Of the i-th line's markers."""
    return SYMBOLS[i % len(SYMBOLS)]


def axis(title: str, *, log: bool = False, values: Sequence[float] = (), **more: Any) -> Figure:
    """An axis; a linear one begins at zero.  ``values``: what a logarithmic one has ticks for."""
    kind: Figure = {"type": "log"} if log else {"type": "linear", "rangemode": "tozero"}
    if log and any(v > 0 for v in values):
        ticks = _ticks([v for v in values if v > 0])
        kind |= {"tickvals": ticks, "ticktext": [short(t) for t in ticks]}
    shown = f"{title} (log)" if log else title
    return kind | {
        "title": {"text": shown}, "gridcolor": GRID, "zerolinecolor": GRID, "linecolor": MUTED,
        "automargin": True, **more,
    }  # fmt: skip


def _ticks(values: Sequence[float]) -> list[float]:
    """The values themselves where they are few and apart, else 1, 2 and 5 of every power of ten
    that they span, or 1 alone where they span many."""
    own = sorted(set(values))
    if len(own) <= 6 and all(b >= 1.6 * a for a, b in pairwise(own)) and len(own) > 1:
        return own
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    digits = (1, 2, 5) if high - low <= 3 else (1,)
    return [d * 10.0**power for power in range(low, high + 1) for d in digits]


def short(value: float) -> str:
    """Of a tick: 31,952 is 32k, for there is little room on a phone."""
    if value >= 1000:
        return f"{value / 1000:,.3g}k"
    return f"{value:.3g}"


def layout(x: Figure, y: Figure, *, height: int = 400, **more: Any) -> Figure:
    """A layout that fits a phone: the legend below, no margin but what the labels need."""
    return {
        "height": height, "autosize": True, "xaxis": x, "yaxis": y,
        "font": {"color": INK, "size": 13, "family": "system-ui, sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top", "font": {"size": 12}},
        "showlegend": True, "hovermode": "closest",
        "hoverlabel": {"bgcolor": SURFACE, "bordercolor": MUTED, "font": {"color": INK},
                       "align": "left"},
        **more,
    }  # fmt: skip


def spread(values: Sequence[float]) -> float:
    """The largest over the smallest; 1 where there is nothing to compare."""
    above = [v for v in values if v > 0]
    return max(above) / min(above) if above else 1.0


TOO_MANY = "{drawn} of {all} lines are drawn; the table has more."
