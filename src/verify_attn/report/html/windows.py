"""Within an answer: rate, committed tokens and step time by windows, with change points."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.sweeps import answers, lines, sort_key
from verify_attn.report.html.values import (
    Record,
    number,
    objects,
    plain,
    said,
    sentence,
    some,
)

# The record has change points in the words of their causes' evidence.
AT_TOKEN = re.compile(r"at token (\d+)")
WITHIN = ("acceptance-falls", "step-time-grows", "stall", "stall-then-burst")
ROWS = (("tok_per_s", "tok/s"), ("committed_per_step", "committed a step"), ("step_ms", "step ms"))
POINTS = 400  # of one answer; 128 tokens each make 51,200


@dataclass(frozen=True)
class Windows:
    """One answer: ``changes`` are (token, cause, evidence)."""

    point: str
    repeat: int
    windows: list[Record]
    changes: list[tuple[int, str, str]]

    @property
    def name(self) -> str:
        """Unlike any other's of the sweep."""
        return self.point if self.repeat == 0 else f"{self.point}, repeat {self.repeat}"


def within(record: Record | None, problem: str) -> Section:
    """The answer of each point whose slowest window is the slowest, in three rows."""
    title = "Within an answer"
    every = [_slowest(p) for line in lines(record) for p in sorted(line.points, key=sort_key)]
    found = [w for w in every if w is not None and len(w.windows) > 1]
    if not found:
        short = (
            "no answer was long enough for two windows" if any(every) else "no answer has windows"
        )
        return Section("within", title, empty=problem or short)
    kept = [found[i] for i in sorted(_worst(found))]
    changes = [(w, *c) for w in found for c in w.changes]
    note = fig.TOO_MANY.format(drawn=len(kept), all=len(found)) if len(found) > len(kept) else ""
    chart = Chart(
        "within-chart", "Windows of an answer",
        sentence([
            "Of each point the answer with the slowest window. Where the rate falls, the rows "
            "below it say whether fewer tokens are committed or steps take longer",
            "; ".join(f"{w.name}: {cause} at token {at:,}" for w, at, cause, _ in changes[:6])
            or "No change point was found within an answer", note,
        ]),
        [t for i, w in enumerate(kept) for t in _traces(w, i)], _layout(), _table(found),
    )  # fmt: skip
    listed = [f"{w.name}, token {at:,}: {cause}: {evidence}" for w, at, cause, evidence in changes]
    return Section("within", title, charts=[chart], notes=listed[:20])


def _slowest(point: Record) -> Windows | None:
    """The answer with the slowest window; None where no answer has windows."""
    best: tuple[float, Record, list[Record]] | None = None
    for answer in answers(point):
        own = [w for w in objects(answer.get("windows")) if _rate(w) and _at(w) is not None]
        if own and (best is None or min(map(_rate, own)) < best[0]):
            best = min(map(_rate, own)), answer, own
    if best is None:
        return None
    repeat = number(best[1].get("repeat")) or 0
    return Windows(plain(point.get("id"), 60), int(repeat), best[2], _changes(point))


def _rate(window: Record) -> float:
    return number(window.get("tok_per_s")) or 0.0


def _at(window: Record) -> float | None:
    return number(window.get("first_token"))


def _changes(point: Record) -> list[tuple[int, str, str]]:
    found = []
    for finding in objects(point.get("findings")):
        cause, evidence = plain(finding.get("cause"), 60), plain(finding.get("evidence"))
        match = AT_TOKEN.search(evidence)
        if cause in WITHIN and match:
            found.append((int(match[1]), cause, evidence))
    return found


def _worst(found: list[Windows]) -> list[int]:
    """Those with change points first, then those that fall the most."""

    def key(i: int) -> tuple[bool, float]:
        rates = [_rate(w) for w in found[i].windows]
        return not found[i].changes, min(rates) / max(rates)

    return sorted(range(len(found)), key=key)[: fig.LINES]


def _traces(w: Windows, i: int) -> list[fig.Figure]:
    """A line a row, drawn as steps: a window's figure holds for the whole of it."""
    found: list[fig.Figure] = []
    kept = some(w.windows, POINTS)
    for row, (name, unit) in enumerate(ROWS):
        known = [(_at(x), number(x.get(name)), number(x.get("tokens"))) for x in kept]
        marks = [(a, v, n or 0.0) for a, v, n in known if a is not None and v is not None]
        if not marks:
            continue
        x = [a for a, _, _ in marks] + [marks[-1][0] + marks[-1][2]]
        y = [v for _, v, _ in marks] + [marks[-1][1]]
        text = [fig.hover(w.name, f"from token {a:,.0f}: {said(v)} {unit}") for a, v, _ in marks]
        found.append({
            "type": "scatter", "mode": "lines+markers", "x": x, "y": y,
            "name": fig.legend(w.name), "legendgroup": str(i), "showlegend": row == 0,
            "line": {"shape": "hv", "color": fig.colour(i), "width": 2, "dash": fig.dash(i)},
            "marker": {"size": 5, "color": fig.colour(i), "symbol": fig.symbol(i)},
            "hoverinfo": "text", "hovertext": [*text, text[-1]],
            "yaxis": "y" if row == 0 else f"y{row + 1}",
        })  # fmt: skip
        if row == 0:
            found += _marks(w, i, marks)
    return found


def _marks(w: Windows, i: int, marks: list[tuple[float, float, float]]) -> list[fig.Figure]:
    """Change points, as crosses on the line of the rate."""
    if not w.changes:
        return []
    y = [next((v for a, v, n in marks if a <= at < a + n), marks[-1][1]) for at, _, _ in w.changes]
    return [{
        "type": "scatter", "mode": "markers+text", "x": [at for at, _, _ in w.changes], "y": y,
        "name": fig.legend(f"change point, {w.name}"), "legendgroup": str(i),
        "marker": {"size": 14, "symbol": "x-thin", "color": fig.LIMIT,
                   "line": {"width": 3, "color": fig.LIMIT}},
        "text": [fig.label(cause) for _, cause, _ in w.changes],
        "textposition": "top center", "textfont": {"color": fig.LIMIT, "size": 12},
        "hoverinfo": "text", "cliponaxis": False,
        "hovertext": [fig.hover(w.name, f"{cause} at token {at:,}", evidence)
                      for at, cause, evidence in w.changes],
    }]  # fmt: skip


def _layout() -> fig.Figure:
    rows = {
        "yaxis2": fig.axis(ROWS[1][1], domain=[0.33, 0.61]),
        "yaxis3": fig.axis(ROWS[2][1], domain=[0.0, 0.28]),
    }
    x = fig.axis("token of the answer", anchor="y3")
    y = fig.axis(ROWS[0][1], domain=[0.66, 1.0])
    return fig.layout(x, y, height=640, **rows) | {
        "legend": {"orientation": "h", "x": 0, "y": -0.13, "yanchor": "top"}
    }


def _table(found: list[Windows]) -> Table:
    head = ["answer", "from token", "tokens", "tok/s", "committed a step", "step ms"]
    rows = [
        [w.name, said(_at(x)), said(number(x.get("tokens"))), said(_rate(x)),
         said(number(x.get("committed_per_step"))), said(number(x.get("step_ms")))]
        for w in found for x in w.windows
    ]  # fmt: skip
    return Table.of(head, rows)
