"""History as one HTML file: a list of series, each with a chart that is drawn when opened.

Needs the extra ``report``.  Text of records goes through the template's escaping, or through
`label`, since plotly reads a little HTML in what it draws.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why
from verify_attn.history_command import about, summary, told
from verify_attn.record import RecordError
from verify_attn.report.history import Series
from verify_attn.report.kept import Records
from verify_attn.whole_file import write_whole

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>History: {{ summary }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
summary { cursor: pointer; padding: .3rem 0; overflow-wrap: anywhere; }
li, p { overflow-wrap: anywhere; }
.worse { font-weight: bold; }
</style></head><body><main>
<h1>History</h1>
<p><strong>{{ summary }}</strong></p>
{% for line in about %}<p>{{ line }}</p>
{% endfor %}
{% for one in series %}
<details data-chart="{{ loop.index0 }}"{% if one.open %} open{% endif %}>
<summary>{{ one.name }}: now {{ one.now }}{% if one.worse %}, <span class="worse">got worse</span>
{% endif %}</summary>
<ul>{% for line in one.lines %}<li>{{ line }}</li>{% endfor %}</ul>
<div role="img" aria-label="{{ one.says }}"></div>
</details>
{% endfor %}
</main>
<script>{{ library }}</script>
<script>
const dark = matchMedia("(prefers-color-scheme: dark)").matches ? {{ dark }} : {};
const figures = JSON.parse({{ figures }}, (_, value) => dark[value] ?? value);
function draw(details) {
  const place = details.querySelector("div");
  if (!details.open || place.hasChildNodes()) return;
  Plotly.newPlot(place, ...figures[details.dataset.chart],
                 {responsive: true, displayModeBar: false, showTips: false});
}
for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => draw(details));
  draw(details);
}
document.documentElement.dataset.charts = "drawn";
</script></body></html>
"""


def write_page(path: Path, records: Records, series: Sequence[Series]) -> None:
    """Write the page; raises `RecordError` where it cannot be written or the extra is missing."""
    try:
        page = _page(records, series)
    except ImportError as wrong:
        raise RecordError(
            f"{path} is not written: {wrong.name or wrong} is not installed; a page needs "
            "pip install 'verify-attn[report]'"
        ) from None
    try:
        write_whole(path, page.encode(errors="backslashreplace"))
    except OSError as wrong:
        raise RecordError(f"{path} is not written: {why(wrong)}") from None


def _page(records: Records, series: Sequence[Series]) -> str:
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from verify_attn.report.html.figure import DARK
    from verify_attn.report.html.values import LONG, plain

    def shown(value: Any) -> Any:
        return plain(value, LONG) if type(value) is str else value

    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=shown)
    figures = json.dumps([_figure(one) for one in series], allow_nan=False)
    return template.from_string(_PAGE).render(
        summary=summary(series), about=about(records), library=Markup(get_plotlyjs()),
        figures=Markup(_script_text(figures)), dark=Markup(json.dumps(DARK)),
        series=[_entry(one) for one in series],
    )  # fmt: skip


def _script_text(text: str) -> str:
    """A string of JavaScript that cannot end the script element."""
    quoted = json.dumps(text)
    for character in "<>&":
        quoted = quoted.replace(character, f"\\u{ord(character):04x}")
    return quoted


def _entry(one: Series) -> dict[str, Any]:
    changes = [f"{step.verdict}: {told(step)}" for step in one.steps]
    ends = f"from {one.values[0]:.4g} to {one.values[-1]:.4g}"
    return {
        "name": f"{one.case}, {one.metric}", "now": f"{one.values[-1]:.4g}",
        "worse": one.worsened, "open": one.worsened,
        "lines": [
            *(changes or ["no change" if one.enough else "too few records to say"]),
            *([one.ended] if one.ended else []), *one.notes, f"machine: {one.machine}",
        ],
        "says": f"{one.metric} over {len(one.points)} records, {ends}; {len(changes)} changes",
    }  # fmt: skip


def _figure(one: Series) -> list[Any]:
    """Records at equal distances: commits come in bursts."""
    from verify_attn.report.html.figure import COLOURS, LIMIT, axis, label, layout

    points, numbers = one.points, list(range(len(one.points)))
    hover = [f"{label(p.commit)}<br>{p.record.started:%Y-%m-%d %H:%M}" for p in points]
    shown: dict[str, Any] = {
        "x": numbers, "y": one.values, "text": hover, "type": "scatter", "mode": "lines+markers",
        "hovertemplate": "%{text}<br>%{y:.4g}<extra></extra>", "name": label(one.metric),
        "marker": {"color": COLOURS[0]}, "line": {"color": COLOURS[0]},
    }  # fmt: skip
    if all(p.low is not None and p.high is not None for p in points):
        shown["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1,
            "array": [(p.high or 0) - p.value for p in points],
            "arrayminus": [p.value - (p.low or 0) for p in points],
        }  # fmt: skip
    data, starts = [shown], {id(p): i for i, p in enumerate(points)}
    for step in one.steps:
        at = starts[id(step.first_bad)]
        ends = [s for s in (starts[id(s.first_bad)] for s in one.steps) if s > at]
        data.append({
            "x": [at - 0.5, (ends or [len(points)])[0] - 0.5], "y": [step.after] * 2,
            "type": "scatter", "mode": "lines", "hoverinfo": "skip",
            "name": f"{step.verdict}: {label(step.commits)}",
            "line": {"color": LIMIT if step.verdict == "worse" else COLOURS[2], "width": 4},
        })  # fmt: skip
    return [
        data,
        layout(axis("record, in the order of time"), axis(label(one.metric), rangemode="normal")),
    ]
