"""A sweep's record as lines over context: the points of one server and one number of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verify_attn.report.html.figure import LINES, POINTS, TOO_MANY
from verify_attn.report.html.values import (
    Record,
    cases,
    listed,
    mapping,
    metric,
    number,
    objects,
    parameter,
    plain,
    some,
)


@dataclass(frozen=True)
class Line:
    """``points``: cases by ascending context; ``overview``: the fits over them."""

    name: str
    points: list[Record]
    overview: Record

    def having(self, *names: str) -> list[Record]:
        """The points that have a context and these metrics, at most as many as a chart draws."""
        found = [p for p in self.points if context(p) and all(above(p, n) for n in names)]
        return some(found, POINTS)


def above(case: Record, name: str) -> float | None:
    """A metric above 0; what is not is no measurement, and has no place on a log axis."""
    value = metric(case, name)
    return value if value is not None and value > 0 else None


def context(case: Record) -> float | None:
    """Prompt tokens by the server's count."""
    return above(case, "prompt_tokens")


def sort_key(case: Record) -> float:
    """By context, or by what was asked for where nothing was measured."""
    return context(case) or number(parameter(case, "context")) or 0.0


def lines(record: Record | None) -> list[Line]:
    """One line a server and number of streams.

    A record of several servers (``sweeps``: name -> its findings and overview) has each one's
    name before its points' ids.
    """
    if record is None:
        return []
    several = sorted(mapping(record.get("sweeps")), key=len, reverse=True)
    groups: dict[tuple[str, int], list[Record]] = {}
    for case in cases(record):
        own = next((n for n in several if str(case.get("id")).startswith(f"{n},")), "")
        streams = number(parameter(case, "concurrency"))
        groups.setdefault((own, int(streams or 1)), []).append(case)
    found = []
    for (own, streams), points in groups.items():
        where = mapping(mapping(record.get("sweeps")).get(own)) if own else record
        over = mapping(mapping(where.get("overview")).get(str(streams)))
        words = [plain(own, 60)] if own else []
        if streams > 1 or not own:
            words.append("1 stream" if streams == 1 else f"{streams} streams")
        found.append(Line(", ".join(words), sorted(points, key=sort_key), over))
    return found


def drawn(found: list[Line]) -> tuple[list[Line], str]:
    """The lines that one chart holds, and what to say of the others."""
    note = TOO_MANY.format(drawn=LINES, all=len(found)) if len(found) > LINES else ""
    return found[:LINES], note


def findings(record: Record | None) -> list[tuple[str, Record]]:
    """(server, cause) of a sweep, the server empty where there is only one."""
    if record is None:
        return []
    found = [("", f) for f in objects(record.get("findings"))]
    for name, part in mapping(record.get("sweeps")).items():
        found += [(name, f) for f in objects(mapping(part).get("findings"))]
    return found


def answers(case: Record) -> list[Record]:
    """The answers that were measured at a point."""
    return objects(case.get("answers"))


def why_not(points: list[Record], name: str, otherwise: str) -> str:
    """Why no point has a figure, in the record's own words."""
    reasons = [plain(r) for p in points if (r := mapping(p.get("absent")).get(name))]
    reasons += [
        f"{plain(p.get('id'), 80)}: {plain(p.get('reason'), 300)}"
        for p in points if p.get("status") in ("error", "skipped") and p.get("reason")
    ]  # fmt: skip
    return reasons[0] if reasons else otherwise


def falls(line: Line, name: str, unit: str, form: Callable[[float], str]) -> str:
    """From the shortest to the longest context, in words."""
    points = [p for p in line.points if context(p) and above(p, name)]
    if not points:
        return ""
    first, last = points[0], points[-1]
    a, b = metric(first, name) or 0.0, metric(last, name) or 0.0
    at, to = context(first) or 0.0, context(last) or 0.0
    if first is last:
        return f"{line.name}: {form(a)} {unit} at {at:,.0f} tokens"
    return f"{line.name}: {form(a)} {unit} at {at:,.0f} tokens, {form(b)} at {to:,.0f}"


def floors(case: Record) -> list[Record]:
    """The floors that a point was held to."""
    return objects(case.get("floors"))


def notes(case: Record) -> list[str]:
    """What the record says besides."""
    return [plain(note) for note in listed(case.get("notes"))]
