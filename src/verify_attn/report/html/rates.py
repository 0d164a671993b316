"""Decode rate against context: with floors, bounds and the saved run behind it."""

from __future__ import annotations

from typing import Any

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.sweeps import (
    Line,
    above,
    context,
    drawn,
    falls,
    floors,
    lines,
    notes,
    sort_key,
    why_not,
)
from verify_attn.report.html.values import (
    Record,
    listed,
    mapping,
    metric,
    number,
    parameter,
    plain,
    said,
    sentence,
    whole,
)

WIDE = 20  # past such a ratio an axis is logarithmic
RATE = "decode_tok_s"


def decode(record: Record | None, problem: str, against: Record | None) -> Section:
    """``problem``: why there is no sweep."""
    title, found = "Decode rate against context", lines(record)
    points = [p for line in found for p in line.points]
    if not points:
        return Section("decode", title, empty=problem or "the sweep has no point")
    saved = lines(against)
    measured = [p for line in [*found, *saved] for p in line.having(RATE)]
    extra = [*_compared(record, against, saved), *_said(points)]
    if not any(line.having(RATE) for line in found):
        why = why_not(points, RATE, "no point has a decode rate")
        return Section("decode", title, empty=why, more={"points": _points(points)},
                       kind="points", notes=extra)  # fmt: skip
    kept, note = drawn(found)
    data = [t for i, line in enumerate(saved[: fig.LINES]) for t in _saved(line, i, against)]
    data += [t for i, line in enumerate(kept) for t in _band(line, i)]
    data += [t for i, line in enumerate(kept) for t in _rates(line, i)]
    data += _floors(points)
    y = [above(p, RATE) or 0.0 for p in measured]
    x = [context(p) or 0.0 for p in measured]
    chart = Chart(
        "decode-chart", "Sustained decode rate and its bounds",
        sentence([
            "; ".join(falls(line, RATE, "tok/s", said) for line in kept if line.having(RATE)),
            "The band lies between the one-sided 95 % bounds of the mean", _marks(points), note,
        ]),
        data,
        fig.layout(
            fig.axis("context, prompt tokens", log=fig.spread(x) > WIDE, values=x),
            fig.axis("decode tok/s", log=fig.spread(y) > WIDE, values=y), height=440,
        ),
        _table(points),
    )  # fmt: skip
    return Section("decode", title, charts=[chart], kind="points",
                   more={"points": _points(points)}, notes=extra)  # fmt: skip


def _marks(points: list[Record]) -> str:
    """What the markers' shapes mean, where they differ."""
    words = {"fail": "a cross failed", "error": "a plus ended in an error",
             "inconclusive": "an open diamond is inconclusive"}  # fmt: skip
    found = [words[s] for s in words if any(p.get("status") == s for p in points)]
    return f"A filled circle passed, {', '.join(found)}" if found else ""


def _rates(line: Line, i: int) -> list[fig.Figure]:
    points = line.having(RATE)
    if not points:
        return []
    status = [str(p.get("status")) for p in points]
    return [{
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(line.name),
        "x": [context(p) for p in points], "y": [metric(p, RATE) for p in points],
        "line": {"color": fig.colour(i), "width": 2.5, "dash": fig.dash(i)},
        "marker": {"size": 10, "color": fig.colour(i),
                   "symbol": [fig.STATUS_SYMBOL.get(s, "circle") for s in status]},
        "hoverinfo": "text",
        "hovertext": [
            fig.hover(line.name, f"{said(context(p))} tokens: {said(metric(p, RATE))} tok/s "
                      f"({_interval(p)})", f"{s}: {p.get('reason') or ''}")
            for p, s in zip(points, status, strict=True)
        ],
    }]  # fmt: skip


def _interval(point: Record) -> str:
    low, high = metric(point, f"{RATE}_low"), metric(point, f"{RATE}_high")
    return "no bounds" if low is None or high is None else f"{said(low)} to {said(high)}"


def _band(line: Line, i: int) -> list[fig.Figure]:
    points = line.having(RATE, f"{RATE}_low", f"{RATE}_high")
    if len(points) < 2:
        return []
    x = [context(p) for p in points]
    up = [metric(p, f"{RATE}_high") for p in points]
    down = [metric(p, f"{RATE}_low") for p in points]
    return [{
        "type": "scatter", "mode": "lines", "fill": "toself", "x": x + x[::-1],
        "y": up + down[::-1], "fillcolor": fig.band(fig.colour(i)),
        "line": {"width": 0, "color": fig.band(fig.colour(i))}, "hoverinfo": "skip",
        "showlegend": False,
    }]  # fmt: skip


def _saved(line: Line, i: int, against: Record | None) -> list[fig.Figure]:
    points = line.having(RATE)
    if not points:
        return []
    name = f"{_name(against)}, {line.name}"
    return [{
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(name),
        "x": [context(p) for p in points], "y": [metric(p, RATE) for p in points],
        "line": {"color": fig.MUTED, "width": 1.5, "dash": fig.dash(i + 2)},
        "marker": {"size": 7, "color": fig.MUTED, "symbol": "circle-open"}, "hoverinfo": "text",
        "hovertext": [fig.hover(name, f"{said(context(p))} tokens: {said(metric(p, RATE))} tok/s")
                      for p in points],
    }]  # fmt: skip


def _name(against: Record | None) -> str:
    started = str(mapping(against).get("started") or "")[:16].replace("T", " ")
    return f"saved {started}" if started else "saved run"


def _floors(points: list[Record]) -> list[fig.Figure]:
    """Each floor where points were held to it, as a line between them."""
    held: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        at = context(point)
        for floor in floors(point):
            limit = number(floor.get("floor_tok_s"))
            if at is not None and limit is not None and limit > 0:
                held.setdefault(plain(floor.get("name"), 80), []).append((at, limit))
    for marks in held.values():
        marks.sort()
    return [{
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(f"floor: {name}"),
        "x": [at for at, _ in marks], "y": [limit for _, limit in marks],
        "line": {"color": fig.LIMIT, "width": 2, "dash": "dash"},
        "marker": {"size": 12, "color": fig.LIMIT, "symbol": "line-ew-open"}, "hoverinfo": "text",
        "hovertext": [fig.hover(f"floor {name}", f"{said(at)} tokens: {said(limit)} tok/s")
                      for at, limit in marks],
    } for name, marks in list(held.items())[: fig.LINES]]  # fmt: skip


def _table(points: list[Record]) -> Table:
    head = ["point", "status", "prompt tokens", "decode tok/s", "95 % bounds", "floor tok/s",
            "committed a step", "step ms", "first token s", "worst window of mean"]  # fmt: skip
    rows = []
    for p in sorted(points, key=_worst_first):
        limits = [limit for f in floors(p) if (limit := number(f.get("floor_tok_s"))) is not None]
        worst = number(
            mapping(mapping(p.get("metrics")).get("audit")).get("worst_window_to_sustained")
        )
        rows.append([
            plain(p.get("id"), 80), str(p.get("status")), said(context(p)), said(metric(p, RATE)),
            _interval(p).replace("no bounds", ""), said(max(limits, default=None)),
            said(metric(p, "committed_per_step")), said(metric(p, "step_ms")),
            said(metric(p, "first_token_s")), said(worst, ".0%"),
        ])  # fmt: skip
    return Table.of(head, rows)


def _worst_first(point: Record) -> tuple[bool, float]:
    """Of more points than a table holds, the bad ones are what it is for."""
    return point.get("status") in ("pass", "skipped"), sort_key(point)


def _points(points: list[Record]) -> list[dict[str, Any]]:
    """What is to be said of points that did not pass, in the order of their contexts."""
    found = [
        {
            "id": plain(p.get("id"), 80), "status": str(p.get("status")),
            "reason": plain(p.get("reason")), "notes": notes(p)[:5], "answers": _answers(p),
        }
        for p in points if p.get("status") != "pass" or notes(p)
    ]  # fmt: skip
    return found


def _answers(point: Record) -> list[str]:
    """What single answers ended with, where that was not their end."""
    found = []
    for answer in listed(point.get("answers")):
        own = mapping(answer)
        if own.get("outcome") != "complete" and own.get("reason"):
            found.append(f"answer {whole(own.get('repeat'))}: {plain(own.get('reason'), 300)}")
    return found[:5]


def _compared(record: Record | None, against: Record | None, saved: list[Line]) -> list[str]:
    """What makes the saved run another thing, and what of a point's change is whose."""
    if against is None:
        name = mapping(mapping(record).get("against")).get("name")
        return [f"The sweep was compared with {plain(name, 80)}; report --against draws it."] \
            if name else []  # fmt: skip
    if not any(line.having(RATE) for line in saved):
        return ["The saved run has no decode rate to draw."]
    differs = [
        plain(d, 200) for d in listed(mapping(mapping(record).get("against")).get("differs"))
    ]
    return [f"The saved run is of something else: {'; '.join(differs)}."] if differs else []


def _said(points: list[Record]) -> list[str]:
    """The rule of the audit: what a burst would have said of the worst point."""
    worst: tuple[float, float, str] | None = None
    for p in points:
        ratio = number(mapping(mapping(p.get("metrics")).get("audit")).get("burst_to_sustained"))
        if ratio is not None and ratio > 0:
            off = max(ratio, 1 / ratio)
            if off > 1.25 and (worst is None or off > worst[0]):
                worst = off, ratio, f"{plain(p.get('id'), 80)} ({parameter(p, 'corpus') or 'text'})"
    if worst is None:
        return []
    _, ratio, where = worst
    return [
        f"A benchmark of the first 200 tokens would have said {ratio:.2g} times the sustained rate "
        f"at {where}."
    ]
