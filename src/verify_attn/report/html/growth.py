"""What grows with the context: the time of a step, and of the prompt, each with its fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verify_attn.report.html import figure as fig
from verify_attn.report.html.figure import Chart, Section, Table
from verify_attn.report.html.sweeps import Line, above, answers, context, drawn, lines, why_not
from verify_attn.report.html.values import Record, mapping, metric, number, plain, said, sentence

PARTS = (("fixed_s", "", ""), ("linear_s_per_token", "n", "token"),
         ("quadratic_s_per_token2", "n^2", "token^2"))  # fmt: skip
CURVE = 40  # points of a drawn fit


def step_time(record: Record | None, problem: str) -> Section:
    """Step time against the tokens in the KV, half of the answer's included, as in its fit."""
    title, found = "Step time against context", lines(record)
    points = [p for line in found for p in line.points]
    measured = [line for line in found if line.having("step_ms")]
    if not measured:
        why = why_not(points, "step_ms", "no point has a step time")
        return Section("step-time", title, empty=problem or why)
    kept, note = drawn(measured)
    data = [t for i, line in enumerate(kept) for t in _line(line, i, "step_ms", in_kv, "ms")]
    for i, line in enumerate(kept):
        data += _part(line, i)
        x = [in_kv(p) for p in line.having("step_ms")]
        data += _fit(mapping(line.overview.get("step_time_fit")), line.name, i, x, 1e3, "ms")
    said_fits = [_words(line, "step_time_fit") for line in kept]
    chart = Chart(
        "step-time-chart", "Step time and its fit",
        sentence([*said_fits, "Axes are linear: what grows with the context is a straight line",
                  note]),
        data, fig.layout(fig.axis("tokens in the KV"), fig.axis("step ms")),
        _rows(measured, "step_ms", "step ms", in_kv, "step_time_fit", 1e3),
    )  # fmt: skip
    return Section("step-time", title, charts=[chart])


def prefill(record: Record | None, problem: str) -> Section:
    """Seconds to the first token against the prompt."""
    title, found = "Prefill", lines(record)
    points = [p for line in found for p in line.points]
    measured = [line for line in found if line.having("first_token_s")]
    if not measured:
        why = why_not(points, "first_token_s", "no point has a time to its first token")
        return Section("prefill", title, empty=problem or why)
    kept, note = drawn(measured)
    data = [t for i, line in enumerate(kept) for t in _line(line, i, "first_token_s", context, "s")]
    for i, line in enumerate(kept):
        x = [context(p) for p in line.having("first_token_s")]
        data += _fit(mapping(line.overview.get("prefill_fit")), line.name, i, x, 1.0, "s")
    computed = any(line.having("prefill_tok_s") for line in measured)
    missing = "" if computed else why_not(points, "prefill_tok_s", "")
    chart = Chart(
        "prefill-chart", "Time to the first token and its fit",
        sentence([*(_words(line, "prefill_fit") for line in kept), missing, note]),
        data, fig.layout(fig.axis("prompt tokens"), fig.axis("seconds to the first token")),
        _rows(measured, "first_token_s", "first token s", context, "prefill_fit", 1.0),
    )  # fmt: skip
    return Section("prefill", title, charts=[chart])


def in_kv(point: Record) -> float | None:
    """Prompt tokens and half of the answer's: what is in the KV on average."""
    at = context(point)
    if at is None:
        return None
    made = [number(mapping(a.get("metrics")).get("completion_tokens")) for a in answers(point)]
    known = [n for n in made if n is not None]
    return at + (sum(known) / len(known) / 2 if known else 0.0)


def _line(
    line: Line, i: int, name: str, at: Callable[[Record], float | None], unit: str
) -> list[fig.Figure]:
    points = line.having(name)
    return [{
        "type": "scatter", "mode": "markers", "name": fig.legend(line.name),
        "x": [at(p) for p in points], "y": [metric(p, name) for p in points],
        "marker": {"size": 10, "color": fig.colour(i), "symbol": fig.symbol(i)},
        "legendgroup": str(i), "hoverinfo": "text",
        "hovertext": [fig.hover(line.name, f"{said(at(p))} tokens: {said(metric(p, name))} {unit}")
                      for p in points],
    }]  # fmt: skip


def _part(line: Line, i: int) -> list[fig.Figure]:
    """The attention's part of a step, where it was measured."""
    points = line.having("attention_ms", "step_ms")
    if not points:
        return []
    name = f"{line.name}, attention alone"
    return [{
        "type": "scatter", "mode": "lines+markers", "name": fig.legend(name),
        "x": [in_kv(p) for p in points], "y": [metric(p, "attention_ms") for p in points],
        "line": {"width": 1, "dash": "dot", "color": fig.colour(i)},
        "marker": {"size": 7, "color": fig.colour(i), "symbol": f"{fig.symbol(i)}-open"},
        "hoverinfo": "text",
        "hovertext": [fig.hover(name, f"{said(in_kv(p))} tokens: "
                                f"{said(metric(p, 'attention_ms'))} ms") for p in points],
    }]  # fmt: skip


def _coefficients(fit: Record) -> list[float] | None:
    found = [number(fit.get(name)) for name, _, _ in PARTS]
    known = [v for v in found if v is not None]
    return known if len(known) == len(PARTS) else None


def _fit(
    fit: Record, name: str, i: int, at: Sequence[float | None], scale: float, unit: str
) -> list[fig.Figure]:
    found, known = _coefficients(fit), [x for x in at if x is not None]
    if found is None or len(known) < 2:
        return []
    first, last = min(known), max(known)
    x = [first + (last - first) * k / (CURVE - 1) for k in range(CURVE)]
    y = [scale * sum(c * n**power for power, c in enumerate(found)) for n in x]
    return [{
        "type": "scatter", "mode": "lines", "name": fig.legend(f"{name}, fit"), "x": x, "y": y,
        "line": {"color": fig.colour(i), "width": 2, "dash": fig.dash(i)}, "hoverinfo": "text",
        "hovertext": [fig.hover(f"{name}, fit", f"{n:,.0f} tokens: {said(v)} {unit}")
                      for n, v in zip(x, y, strict=True)],
    }]  # fmt: skip


def _words(line: Line, name: str) -> str:
    fit = mapping(line.overview.get(name))
    found = _coefficients(fit)
    if found is None:
        return f"{line.name}: no fit, which takes two contexts"
    fixed, linear, quadratic = found
    shape = plain(fit.get("shape"), 40)
    terms = [f"{said(fixed * 1e3)} ms"]
    if linear:
        terms.append(f"{said(linear * 1e6)} ms every 1,000 tokens")
    if quadratic:
        terms.append(f"{said(quadratic * 1e9)} ms every (1,000 tokens)^2")
    return f"{line.name}: {f'{shape}: ' if shape else ''}{' + '.join(terms)}"


def _rows(
    measured: list[Line],
    name: str,
    head: str,
    at: Callable[[Record], float | None],
    fit: str,
    scale: float,
) -> Table:
    rows = []
    for line in measured:
        found = _coefficients(mapping(line.overview.get(fit)))
        for p in [p for p in line.points if above(p, name) and at(p)]:
            n = at(p) or 0.0
            fitted = None if found is None else scale * sum(c * n**k for k, c in enumerate(found))
            rows.append([line.name, plain(p.get("id"), 80), said(n), said(metric(p, name)),
                         said(fitted), said(metric(p, "attention_ms"))])  # fmt: skip
    columns = ["line", "point", "tokens", head, "by the fit", "of it attention ms"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table.of(columns, rows)
