"""The verdict as Markdown, for the job summary of a CI run.

All text out of records is shown as text: whatever could be markup, HTML or a link is an entity.
"""

from __future__ import annotations

from collections.abc import Sequence

from verify_attn.report.folder import Folder, Record
from verify_attn.report.reasons import rate
from verify_attn.report.verdict import Verdict

MARKUP = frozenset("&<>|`*_[]#~\\!@$")
# GitHub drops a summary above 1 MiB as a whole.
LONGEST = 600  # characters of one reason
MOST = 100  # lines of a list, rows of a table
SIGNS = {"pass": "✅", "fail": "❌", "dead": "💀", "inconclusive": "❔", "interrupted": "✋"}


def summary(folder: Folder, verdict: Verdict) -> str:
    """The whole document."""
    parts = [
        [f"## {SIGNS[verdict.status]} verify-attn: {escaped(verdict.headline)}"],
        _list("Reasons", [f"**{r.status}** ({r.step}) {escaped(r.text)}" for r in verdict.reasons]),
        _steps(folder),
        _sweep(folder.steps["sweep"].record),
        _check(folder.steps["check"].record),
        _bench(folder.steps["bench"].record),
        _list("Not tested", [escaped(line) for line in verdict.not_tested]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def escaped(text: str) -> str:
    """On one line, with nothing left that Markdown or HTML would obey."""
    text = " ".join(text.split())
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} … ({len(text) - LONGEST:,} characters more in the record)"
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    plain = "".join(
        f"&#{ord(c)};" if c in MARKUP else c for c in "".join(shown)
    )  # fmt: skip
    # A bare address would become a link.
    return plain.replace("://", "&#58;//").replace("www.", "www&#46;")


def _list(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    lines = [f"### {title}", "", *(f"- {item}" for item in items[:MOST])]
    more = [f"- and {len(items) - MOST:,} more in the records"] if len(items) > MOST else []
    return lines + more


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"### {title}", "", _row(head), _row(["---"] * len(head))]
    lines += [_row(row) for row in rows[:MOST]]
    more = ["", f"and {len(rows) - MOST:,} more in the record"] if len(rows) > MOST else []
    return lines + more


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _steps(folder: Folder) -> list[str]:
    rows = []
    for case in [] if folder.run is None else folder.run["cases"]:
        seconds, command = case["metrics"].get("seconds"), case["parameters"].get("command")
        rows.append([
            escaped(case["id"]), case["status"], _figure(seconds, ",.0f"),
            escaped(str(command or case["reason"] or "")),
        ])  # fmt: skip
    return _table("Steps", ("step", "status", "s", "command"), rows)


def _sweep(record: Record | None) -> list[str]:
    rows = []
    for case in [] if record is None else record["cases"]:
        metrics = case["metrics"]
        rows.append([
            escaped(case["id"]), case["status"], _figure(metrics.get("prompt_tokens"), ",.0f"),
            _figure(rate(case), ",.1f"), _figure(metrics.get("committed_per_step"), ".2f"),
            _figure(metrics.get("step_ms"), ",.1f"), _figure(metrics.get("first_token_s"), ",.2f"),
        ])  # fmt: skip
    head = ("point", "status", "prompt", "decode tok/s", "committed", "step ms", "TTFT s")
    return _table("Sweep", head, rows)


def _check(record: Record | None) -> list[str]:
    if record is None:
        return []
    counts: dict[str, dict[str, int]] = {}
    for case in record["cases"]:
        mine = counts.setdefault(str(case["parameters"].get("kernel")), {})
        mine[case["status"]] = mine.get(case["status"], 0) + 1
    statuses = ("pass", "fail", "error", "skipped")
    rows = [[escaped(k), *(str(n.get(s, 0)) for s in statuses)] for k, n in counts.items()]
    return _table("Checks", ("kernel", *statuses), rows)


def _bench(record: Record | None) -> list[str]:
    rows = []
    for case in [] if record is None else record["cases"]:
        metrics = case["metrics"]
        share, speedup = metrics.get("limit_share"), metrics.get("speedup")
        rows.append([
            escaped(case["id"]), case["status"], _figure(metrics.get("run_ms"), ".4g"),
            _figure(share, ".0%"), _figure(speedup, ".2f"),
        ])  # fmt: skip
    head = ("kernel and cell", "status", "ms", "of the limit", "times the baseline")
    return _table("Kernel times", head, rows)


def _figure(value: object, form: str) -> str:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return format(value, form) if known else "-"
