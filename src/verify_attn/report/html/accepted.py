"""Committed tokens: how many a step, and how often each position of a draft is accepted."""

from __future__ import annotations

from dataclasses import dataclass

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.sweeps import answers, context, lines, why_not
from verify_attn.report.html.values import Record, mapping, numbers, plain, said, sentence

SHOWN = 4  # histograms side by side; more cannot be told apart
WIDEST = 64  # committed tokens and positions drawn


@dataclass(frozen=True)
class Accepted:
    """``steps[k]``: steps that accepted k drafts; ``positions[k]``: share that accepted k + 1."""

    line: str
    name: str
    steps: list[float]
    positions: list[float]

    @property
    def mean(self) -> float:
        """Committed tokens a step."""
        total = sum(self.steps)
        return sum((k + 1) * n for k, n in enumerate(self.steps)) / total if total else 0.0


def committed(record: Record | None, problem: str) -> Section:
    """From the server's own counts, the answers of a point added up."""
    title, found = "Committed tokens", lines(record)
    several = len(found) > 1
    points = [(line.name if several else "", p) for line in found for p in line.points]
    known = [a for name, p in points if (a := _accepted(name, p)) is not None]
    if not known:
        why = why_not([_first_absent(p) for _, p in points], "server",
                      "the server does not say how many drafts its steps accept")  # fmt: skip
        return Section("committed", title, empty=problem or why)
    charts = []
    if any(a.steps for a in known):
        charts.append(_histogram([a for a in known if a.steps]))
    if any(a.positions for a in known):
        charts.append(_by_position([a for a in known if a.positions]))
    lead = "A step commits the drafts that it accepts and one bonus token."
    return Section("committed", title, lead=lead, charts=charts)


def _first_absent(point: Record) -> Record:
    """An answer's absences stand for its point's."""
    found = next((mapping(a.get("absent")) for a in answers(point) if a.get("absent")), {})
    return point | {"absent": found}


def _accepted(line: str, point: Record) -> Accepted | None:
    served = [mapping(mapping(a.get("metrics")).get("server")) for a in answers(point)]
    histograms = [numbers(s.get("accepted_drafts_histogram")) for s in served]
    steps = [
        sum(h[k] for h in histograms if k < len(h))
        for k in range(min(WIDEST, max(map(len, histograms), default=0)))
    ]
    lists = [p for s in served if (p := numbers(s.get("accepted_per_position")))]
    longest = max(map(len, lists), default=0)
    alike = [p for p in lists if len(p) == longest]
    positions = [sum(p[k] for p in alike) / len(alike) for k in range(min(WIDEST, longest))]
    at = context(point)
    words = [line] if line else []
    words.append(plain(point.get("id"), 60) if at is None else f"{at:,.0f} tokens")
    if not sum(steps) > 0 or min(steps) < 0:
        steps = []
    return Accepted(line, ", ".join(words), steps, positions) if steps or positions else None


def _ends(known: list[Accepted]) -> list[Accepted]:
    """The shortest and the longest context of each line, as far as they fit."""
    if len(known) <= SHOWN:
        return known
    found: list[Accepted] = []
    for name in dict.fromkeys(a.line for a in known):
        own = [a for a in known if a.line == name]
        found += own if len(own) < 2 else [own[0], own[-1]]
    return found[:SHOWN]


def _histogram(known: list[Accepted]) -> Chart:
    kept = _ends(known)
    left = f"{len(kept)} of {len(known)} points are drawn" if len(kept) < len(known) else ""
    data = [{
        "type": "bar", "name": fig.legend(a.name), "x": list(range(1, len(a.steps) + 1)),
        "y": [n / sum(a.steps) for n in a.steps],
        "marker": {"color": fig.colour(i), "line": {"color": fig.SURFACE, "width": 1},
                   "pattern": {"shape": ("", "/", ".", "x")[i % 4], "fillmode": "overlay",
                               "fgcolor": fig.SURFACE,
                               "solidity": 0.3}},
        "hoverinfo": "text",
        "hovertext": [fig.hover(a.name, f"{k + 1} committed: {n:,.0f} steps, "
                                f"{n / sum(a.steps):.1%}") for k, n in enumerate(a.steps)],
    } for i, a in enumerate(kept)]  # fmt: skip
    widest = max(len(a.steps) for a in known)
    rows = [
        [a.name, said(a.mean), said(sum(a.steps)), *(said(n) for n in a.steps),
         *[""] * (widest - len(a.steps))]
        for a in known
    ]  # fmt: skip
    return Chart(
        "histogram-chart", "Steps by committed tokens",
        sentence(["; ".join(f"{a.name}: {a.mean:.2f} committed a step" for a in kept), left]),
        data,
        fig.layout(fig.axis("committed tokens of a step", dtick=1 if widest <= 24 else None),
                   fig.axis("share of the steps", tickformat=".0%"), barmode="group", bargap=0.2),
        Table.of(["point", "mean", "steps", *(str(k + 1) for k in range(widest))], rows),
    )  # fmt: skip


def _by_position(known: list[Accepted]) -> Chart:
    kept = known[: fig.LINES]
    note = fig.TOO_MANY.format(drawn=len(kept), all=len(known)) if len(kept) < len(known) else ""
    data = [{
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(a.name),
        "x": list(range(1, len(a.positions) + 1)), "y": a.positions,
        "line": {"color": fig.colour(i), "width": 2, "dash": fig.dash(i)},
        "marker": {"color": fig.colour(i), "size": 7, "symbol": fig.symbol(i)},
        "hoverinfo": "text",
        "hovertext": [fig.hover(a.name, f"position {k + 1}: accepted in {share:.1%} of the steps")
                      for k, share in enumerate(a.positions)],
    } for i, a in enumerate(kept)]  # fmt: skip
    widest = max(len(a.positions) for a in known)
    rows = [[a.name, *(said(p, ".1%") for p in a.positions), *[""] * (widest - len(a.positions))]
            for a in known]  # fmt: skip
    first = "; ".join(f"{a.name}: {a.positions[0]:.0%} at position 1" for a in kept[:4])
    return Chart(
        "position-chart", "Accepted by position",
        sentence([f"Share of the steps that accept a draft at least so deep. {first}", note]),
        data,
        fig.layout(fig.axis("position in the draft", dtick=1 if widest <= 24 else None),
                   fig.axis("share of the steps", tickformat=".0%")),
        Table.of(["point", *(str(k + 1) for k in range(widest))], rows),
    )  # fmt: skip
