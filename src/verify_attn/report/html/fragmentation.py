"""What scattered pages cost: runs of pages and times before and after compaction, or by layout."""

from __future__ import annotations

from collections.abc import Iterable

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.kernels import AXES, time_of
from verify_attn.report.html.sweeps import above
from verify_attn.report.html.values import (
    Record,
    metric,
    parameter,
    plain,
    said,
    sentence,
    some,
    whole,
)

NOTHING = (
    "no record has it: benchmarks/defragmentation.py times steps before and after compaction, "
    "bench times contiguous against shuffled pages"
)
BARS = 24


def fragmentation(every: Iterable[Record]) -> Section:
    """``every``: the cases of all records."""
    known = list(every)
    moved = [c for c in known if metric(c, "runs_before") is not None
             and metric(c, "runs_after") is not None]  # fmt: skip
    charts = []
    if moved:
        charts += [_runs(moved), *_steps(moved)]
    pairs = _by_layout(known)
    if pairs:
        charts.append(_layouts(pairs))
    title = "Fragmentation"
    return Section("fragmentation", title, charts=charts, empty="" if charts else NOTHING)


def _runs(moved: list[Record]) -> Chart:
    kept = some(moved, BARS)
    note = f"{len(kept)} of {len(moved)} are drawn" if len(kept) < len(moved) else ""
    rows = [
        [plain(c.get("id"), 80), *(said(metric(c, name), ",.0f") for name in (
            "runs_before", "runs_after", "rows_moved")),
         *(said(metric(c, name)) for name in (
            "plan_ms", "move_ms", "median_ms_before", "median_ms_after", "before_to_after"))]
        for c in moved
    ]  # fmt: skip
    return Chart(
        "runs-chart", "Runs of pages before and after compaction",
        sentence(["; ".join(
            f"{plain(c.get('id'), 60)}: {said(metric(c, 'runs_before'))} runs become "
            f"{said(metric(c, 'runs_after'))}" for c in kept[:4]), note]),
        _pairs(kept, "runs_before", "runs_after", "runs"),
        _sideways(fig.axis("runs of pages", log=True, values=[
            metric(c, n) or 0.0 for c in kept for n in ("runs_before", "runs_after")]), len(kept)),
        Table.of(["case", "runs before", "runs after", "rows moved", "plan ms", "move ms",
                  "step ms before", "step ms after", "before / after"], rows),
    )  # fmt: skip


def _steps(moved: list[Record]) -> list[Chart]:
    timed = [c for c in moved if metric(c, "median_ms_before") is not None
             and metric(c, "median_ms_after") is not None]  # fmt: skip
    if not timed:
        return []
    kept = some(timed, BARS)
    return [Chart(
        "defragmented-chart", "Step time before and after compaction",
        sentence(["; ".join(
            f"{plain(c.get('id'), 60)}: {said(metric(c, 'median_ms_before'))} ms before, "
            f"{said(metric(c, 'median_ms_after'))} ms after" for c in kept[:4])]),
        _pairs(kept, "median_ms_before", "median_ms_after", "ms"),
        _sideways(fig.axis("step ms"), len(kept)),
        Table.of(["case", "step ms before", "step ms after"], [
            [plain(c.get("id"), 80), said(metric(c, "median_ms_before")),
             said(metric(c, "median_ms_after"))] for c in timed]),
    )]  # fmt: skip


def _sideways(x: fig.Figure, rows: int) -> fig.Figure:
    """A row a case, the first on top."""
    names = fig.axis("", type="category", autorange="reversed", tickfont={"size": 11})
    return fig.layout(x, names, height=200 + 56 * rows, barmode="group") | {
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    }


def _pairs(kept: list[Record], before: str, after: str, unit: str) -> list[fig.Figure]:
    pairs = ((before, "before", "/"), (after, "after", ""))
    return [{
        "type": "bar", "orientation": "h", "name": name, "hoverinfo": "text",
        "y": [fig.wrapped(plain(c.get("id"), 100)) for c in kept],
        "x": [metric(c, key) for c in kept],
        "marker": {"color": fig.colour(i), "pattern": {"shape": shape, "fillmode": "overlay",
                                                       "fgcolor": fig.SURFACE, "solidity": 0.3}},
        "hovertext": [fig.hover(c.get("id"), f"{name}: {said(metric(c, key))} {unit}")
                      for c in kept],
    } for i, (key, name, shape) in enumerate(pairs)]  # fmt: skip


def _by_layout(known: list[Record]) -> list[tuple[str, str, float, float | None]]:
    """(cell, layout, time against the contiguous one's, runs of pages)."""
    cells: dict[tuple[str, ...], dict[str, Record]] = {}
    laid = [c for c in known if parameter(c, "layout") and parameter(c, "kernel") and _time(c)]
    for c in laid:
        key = (plain(parameter(c, "kernel"), 60),
               *(whole(parameter(c, a)) for a in AXES if a != "layout"))  # fmt: skip
        cells.setdefault(key, {})[plain(parameter(c, "layout"), 40)] = c
    kept = {k: own for k, own in cells.items() if "contiguous" in own and len(own) > 1}
    names = [a for a in AXES if a != "layout"]
    varies = [len({k[i + 1] for k in kept} - {""}) > 1 for i in range(len(names))]
    found = []
    for key, own in kept.items():
        words = [
            f"{a} {v}" for a, v, some_do in zip(names, key[1:], varies, strict=True) if some_do
        ]
        base = _time(own["contiguous"]) or 1.0
        for name, c in own.items():
            ratio = (_time(c) or 0.0) / base
            found.append((", ".join([key[0], *words]), name, ratio, metric(c, "runs")))
    return found


def _time(case: Record) -> float | None:
    return time_of(case) or above(case, "ms_median")


def _layouts(pairs: list[tuple[str, str, float, float | None]]) -> Chart:
    kinds = list(dict.fromkeys(name for _, name, _, _ in pairs if name != "contiguous"))
    cells = list(dict.fromkeys(cell for cell, _, _, _ in pairs))
    kept = set(some(cells, BARS))
    data = []
    for i, kind in enumerate(kinds[:6]):
        own = [p for p in pairs if p[1] == kind and p[0] in kept]
        data.append({
            "type": "scatter", "mode": "markers", "name": fig.legend(kind),
            "y": [fig.wrapped(cell) for cell, _, _, _ in own], "x": [r for _, _, r, _ in own],
            "marker": {"color": fig.colour(i), "size": 10, "symbol": fig.symbol(i)},
            "hoverinfo": "text",
            "hovertext": [fig.hover(cell, f"{kind}: {ratio:.3f} times the contiguous time")
                          for cell, _, ratio, _ in own],
        })  # fmt: skip
    worst = max(pairs, key=lambda p: p[2])
    note = f"{len(kept)} of {len(cells)} cells are drawn" if len(kept) < len(cells) else ""
    return Chart(
        "layouts-chart", "Time by page layout, against contiguous pages",
        sentence([f"At most {worst[2]:.3f} times the contiguous time: {worst[0]}, {worst[1]}",
                  "1 is no cost", note]),
        data,
        _sideways(fig.axis("times the contiguous time", rangemode="normal"), len(kept)),
        Table.of(["cell", "layout", "times contiguous", "runs of pages"],
                 [[cell, kind, f"{ratio:.4f}", said(runs)] for cell, kind, ratio, runs in pairs]),
    )  # fmt: skip
