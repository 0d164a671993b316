"""Kernel times of a bench record: the share of the limit by context and by nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.values import (
    Record,
    cases,
    mapping,
    metric,
    number,
    parameter,
    plain,
    said,
    sentence,
    some,
    whole,
)

# What a cell is made of, besides the axis that is drawn.
AXES = ("context", "nodes", "requests", "heads", "page_size", "layout", "tree", "dtype",
        "geometry", "kv_dtype")  # fmt: skip
TIMES = ("run_ms", "graph_ms", "cupti_ms", "median_ms")
PROJECTED = "projected, not measured"


def time_of(case: Record) -> float | None:
    """One call on the GPU, in ms."""
    return next((t for name in TIMES if (t := metric(case, name)) is not None and t > 0), None)


def projected(case: Record) -> bool:
    """Is its figure computed for another GPU, not measured on this one?"""
    return parameter(case, "projected") is True


def kernels(record: Record | None, problem: str) -> Section:
    """Charts for the axes that vary, a line a kernel; every cell in the table."""
    title, every = "Kernel times", [c for c in cases(record) if parameter(c, "kernel")]
    if not every:
        return Section("kernels", title, empty=problem or "the record has no kernel's time")
    timed = [c for c in every if time_of(c) is not None]
    others = [_other(c) for c in every if time_of(c) is None][: fig.LINES * 2]
    if not timed:
        return Section("kernels", title, empty="no kernel was timed", notes=others)
    charts = [
        chart for name, words in (("context", "prefix tokens"), ("nodes", "nodes of a tree"))
        if (chart := _along(timed, name, words)) is not None
    ]  # fmt: skip
    if not charts:
        charts = [_along(timed, "context", "prefix tokens", single=True) or _bars(timed)]
    notes = [*_limits(record), *others]
    if any(projected(c) for c in timed):
        notes.insert(0, "Figures marked as projected are computed from a data sheet or from "
                     "another GPU's times; nothing was run for them.")  # fmt: skip
    return Section("kernels", title, charts=charts, kind="grid",
                   more={"grids": _grids(timed)}, notes=notes)  # fmt: skip


def _other(case: Record) -> str:
    return f"{plain(case.get('id'), 160)}: {case.get('status')}: {plain(case.get('reason'), 300)}"


def _limits(record: Record | None) -> list[str]:
    bench = mapping(mapping(mapping(record).get("environment")).get("bench"))
    top = mapping(bench.get("ceilings"))
    rates = [f"{name} {whole(v)}" for name, v in top.items() if number(v) is not None]
    return [f"The limit is by the ceilings measured on this GPU: {', '.join(rates)}."] if rates \
        else []  # fmt: skip


def _rest(case: Record, without: str) -> tuple[tuple[str, str], ...]:
    return tuple((a, whole(parameter(case, a))) for a in AXES if a != without)


def _along(timed: list[Record], name: str, words: str, single: bool = False) -> Chart | None:
    """The cells that differ along one axis alone: those around the commonest of the others."""
    known = [c for c in timed if (v := number(parameter(c, name))) is not None and v > 0]
    # Of two equally common ones the first drawn from the record, which is the centre's.
    spans: dict[tuple[tuple[str, str], ...], set[Any]] = {}
    for c in known:
        spans.setdefault(_rest(c, name), set()).add(parameter(c, name))
    if not spans:
        return None
    rest = max(spans, key=lambda r: len(spans[r]))
    if len(spans[rest]) < 2 and not single:
        return None
    kept = [c for c in known if _rest(c, name) == rest]
    groups: dict[tuple[str, bool], list[Record]] = {}
    for c in sorted(kept, key=lambda c: number(parameter(c, name)) or 0.0):
        groups.setdefault((plain(parameter(c, "kernel"), 80), projected(c)), []).append(c)
    shares = all(metric(c, "limit_share") is not None for c in kept)
    lines = list(groups.items())[: fig.LINES]
    data = [_line(group, cells, i, name, shares) for i, (group, cells) in enumerate(lines)]
    x = [number(parameter(c, name)) or 0.0 for c in kept]
    y = [_height(c, shares) or 0.0 for c in kept]
    fixed = ", ".join(f"{a} {v}" for a, v in rest if v and a not in ("geometry", "dtype"))
    best = "; ".join(_ends(group, cells, name, shares) for group, cells in lines)
    note = fig.TOO_MANY.format(drawn=len(lines), all=len(groups)) \
        if len(groups) > len(lines) else ""  # fmt: skip
    what = "Share of the limit" if shares else "Time of a call"
    return Chart(
        f"kernels-{name}-chart", f"{what} by {name}",
        sentence([best, f"All at {fixed}", note]), data,
        fig.layout(
            fig.axis(words, log=fig.spread(x) > 8, values=x),
            fig.axis("share of the limit", tickformat=".0%") if shares
            else fig.axis("ms a call", log=fig.spread(y) > 20, values=y),
        ),
        _table(kept),
    )  # fmt: skip


def _height(case: Record, shares: bool) -> float | None:
    return metric(case, "limit_share") if shares else time_of(case)


def _line(
    group: tuple[str, bool], cells: list[Record], i: int, name: str, shares: bool
) -> fig.Figure:
    kernel, guess = group
    kept = some(cells, fig.POINTS)
    shown = f"{kernel} ({PROJECTED})" if guess else kernel
    mark = f"{fig.symbol(i)}-open" if guess else fig.symbol(i)
    text = [
        fig.hover(shown, f"{whole(parameter(c, name))} {name}: {said(time_of(c))} ms",
                  f"{said(metric(c, 'limit_share'), '.1%')} of the limit" if shares else "",
                  str(c.get("status")) if c.get("status") != "pass" else "")
        for c in kept
    ]  # fmt: skip
    return {
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(shown),
        "x": [number(parameter(c, name)) for c in kept], "y": [_height(c, shares) for c in kept],
        "line": {"color": fig.colour(i), "width": 2.5, "dash": "dash" if guess else fig.dash(i)},
        "marker": {"color": fig.colour(i), "size": 9, "symbol": mark},
        "hoverinfo": "text", "hovertext": text,
    }  # fmt: skip


def _ends(group: tuple[str, bool], cells: list[Record], name: str, shares: bool) -> str:
    kernel, guess = group
    form = ".0%" if shares else ""
    unit = "" if shares else " ms"
    a, b = (said(_height(c, shares), form) + unit for c in (cells[0], cells[-1]))
    words = f"{kernel}{f' ({PROJECTED})' if guess else ''}: {a}"
    if len(cells) < 2:
        return words
    first, last = (whole(parameter(c, name)) for c in (cells[0], cells[-1]))
    return f"{words} at {first} {'tokens' if name == 'context' else name}, {b} at {last}"


def _bars(timed: list[Record]) -> Chart:
    """Kernels whose cells have no context: a bar each."""
    kept = timed[: fig.POINTS]
    name = [fig.label(c.get("id"), 40) for c in kept]
    data = [{
        "type": "bar", "x": name, "y": [time_of(c) for c in kept], "name": "ms a call",
        "marker": {"color": fig.colour(0)}, "hoverinfo": "text",
        "hovertext": [fig.hover(c.get("id"), f"{said(time_of(c))} ms") for c in kept],
    }]  # fmt: skip
    note = f"{len(kept)} of {len(timed)} are drawn." if len(kept) < len(timed) else ""
    return Chart("kernels-chart", "Time of a call", sentence(["One bar a cell", note]), data,
                 fig.layout(fig.axis("cell", type="category"), fig.axis("ms a call")),
                 _table(timed))  # fmt: skip


def _table(timed: list[Record]) -> Table:
    varying = [a for a in AXES if len({whole(parameter(c, a)) for c in timed}) > 1]
    head = ["kernel", *varying, "ms a call", "interval ms", "of the limit", "GB/s", "TFLOP/s",
            "binds", "times baseline", "status"]  # fmt: skip
    rows = [
        [plain(parameter(c, "kernel"), 80), *(whole(parameter(c, a)) for a in varying),
         said(time_of(c)), _interval(c), said(metric(c, "limit_share"), ".1%"),
         said(metric(c, "gb_per_s")), said(metric(c, "tflop_per_s")),
         plain(mapping(c.get("metrics")).get("binds"), 40), said(metric(c, "speedup")),
         PROJECTED if projected(c) else str(c.get("status"))]
        for c in timed
    ]  # fmt: skip
    return Table.of(head, rows)


def _interval(case: Record) -> str:
    for part in ("run", "graph", "cupti"):
        low, high = metric(case, f"{part}_low_ms"), metric(case, f"{part}_high_ms")
        if low is not None and high is not None:
            return f"{said(low)} to {said(high)}"
    return ""


def _grids(timed: list[Record]) -> list[dict[str, Any]]:
    """Context by nodes for each kernel, where a record has both in combination."""
    found: dict[str, dict[tuple[float, float], Record]] = {}
    common = Counter(_rest_of_both(c) for c in timed).most_common(1)[0][0]
    for c in timed:
        at, nodes = number(parameter(c, "context")), number(parameter(c, "nodes"))
        if at is not None and nodes is not None and _rest_of_both(c) == common:
            name = plain(parameter(c, "kernel"), 80) + (f" ({PROJECTED})" if projected(c) else "")
            found.setdefault(name, {})[at, nodes] = c
    grids = []
    for name, cells in list(found.items())[: fig.LINES]:
        contexts, sizes = (sorted({k[i] for k in cells})[:30] for i in (0, 1))
        # Two axes that cross in one cell are no grid.
        if min(len(contexts), len(sizes)) < 2 or len(cells) < len(contexts) + len(sizes):
            continue
        rows = [(f"{at:,.0f}", [_cell(cells.get((at, n))) for n in sizes]) for at in contexts]
        shares = any(metric(c, "limit_share") is not None for c in cells.values())
        title = (
            f"{name}: {'share of the limit' if shares else 'time of a call'} by context and nodes"
        )
        grids.append({"kernel": name, "title": title, "nodes": [f"{n:,.0f}" for n in sizes],
                      "rows": rows})  # fmt: skip
    return grids


def _rest_of_both(case: Record) -> tuple[tuple[str, str], ...]:
    return tuple((a, v) for a, v in _rest(case, "context") if a != "nodes")


def _cell(case: Record | None) -> dict[str, Any]:
    """Its words, and how full a bar behind them is, in percent."""
    if case is None:
        return {"text": "", "full": 0}
    share = metric(case, "limit_share")
    if share is None:
        return {"text": f"{said(time_of(case))} ms", "full": 0}
    return {"text": f"{share:.0%}", "full": round(100 * min(1.0, max(0.0, share)))}
