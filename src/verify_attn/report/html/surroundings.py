"""Around the figures: what ran, why the server is slow, and on what it was measured."""

from __future__ import annotations

from typing import Any

from verify_attn.report.folder import Folder
from verify_attn.report.html.figure import Section, Table
from verify_attn.report.html.sweeps import findings, lines
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
    said,
    whole,
)

CAUSES, DEEP = 30, 3
CHANGED = 1.25  # a rate that differs by less is not worth a split
# Said of the server in every record, and of no use to a reader.
UNREMARKABLE = ("cache flush not offered", "no log was named", "prefix cache flushed")


def steps(folder: Folder) -> Section:
    """What `run` did; for single records, where each came from."""
    rows = []
    run = {str(c.get("id")): c for c in cases(folder.run)}
    for name, step in folder.steps.items():
        case = run.get(name, {})
        if not case and step.record is None and folder.run is None:
            continue
        command = parameter(case, "command") or mapping(step.record).get("command")
        statuses = [str(c.get("status")) for c in cases(step.record)]
        counts = ", ".join(f"{statuses.count(s):,} {s}" for s in dict.fromkeys(statuses))
        rows.append([
            name, plain(case.get("status"), 40) or ("" if step.record else "no record"),
            said(metric(case, "seconds")), whole(case.get("exit_code")), counts,
            plain(case.get("reason") or step.problem, 300), plain(command, 300),
        ])  # fmt: skip
    head = ["step", "status", "seconds", "exit code", "cases", "reason", "command"]
    return Section("steps", "What ran", kind="table", more={"table": Table.of(head, rows)},
                   empty="" if rows else "no step left a record")  # fmt: skip


def causes(record: Record | None, problem: str) -> Section:
    """The sweep's diagnosis: each cause with its evidence, and what of a change is whose."""
    title = "Causes"
    if record is None:
        return Section("causes", title, empty=problem or "there is no sweep")
    found = [
        {
            "cause": plain(f.get("cause"), 80), "meaning": plain(f.get("meaning"), 300),
            "confidence": plain(f.get("confidence"), 20), "evidence": plain(f.get("evidence")),
            "points": plain(", ".join(map(str, listed(f.get("points")))), 200),
            "server": plain(server, 80),
        }
        for server, f in findings(record)
    ]  # fmt: skip
    splits = _splits(record)
    notes = [f"{len(found) - CAUSES} more causes are in the record."] if len(found) > CAUSES else []
    lead = "" if found or not splits else "The sweep names no cause."
    return Section(
        "causes", title, lead=lead, kind="causes", notes=notes,
        more={"causes": found[:CAUSES], "splits": splits},
        empty="" if found or splits else "the sweep names no cause",
    )  # fmt: skip


def _splits(record: Record) -> Table | None:
    """Points whose rate is far from a reference's, with the two factors."""
    rows = []
    for line in lines(record):
        for case in line.points:
            for part in objects(case.get("attribution")):
                ratio = number(part.get("rate_ratio"))
                if ratio is None or 1 / CHANGED < ratio < CHANGED:
                    continue
                share = number(part.get("acceptance_share"))
                if share is not None and not 0.005 <= share <= 0.995:
                    share = None  # shares add up only where both pull the same way
                rows.append([
                    plain(case.get("id"), 80), plain(part.get("against"), 80), said(ratio, ".2f"),
                    said(number(part.get("committed_ratio")), ".2f"),
                    said(number(part.get("step_time_ratio")), ".2f"), said(share, ".0%"),
                ])  # fmt: skip
    head = ["point", "against", "rate, times", "committed a step, times", "step time, times",
            "of the change by committed tokens"]  # fmt: skip
    return Table.of(head, rows) if rows else None


def environment(folder: Folder) -> Section:
    """One row a fact; where steps differ, each step's own."""
    records = {n: s.record for n, s in folder.steps.items() if s.record is not None}
    if folder.run is not None:
        records = {"run": folder.run} | records
    facts = {name: _facts(record) for name, record in records.items()}
    names = list(dict.fromkeys(key for own in facts.values() for key in own))
    rows = []
    for key in names:
        values = {step: own[key] for step, own in facts.items() if key in own}
        alike = len(set(values.values())) == 1
        text = next(iter(values.values())) if alike \
            else "\n".join(f"{step}: {value}" for step, value in values.items())  # fmt: skip
        rows.append([key, text])
    doctor = [[plain(c.get("id"), 80), _found(c)] for c in cases(records.get("doctor"))]
    tables: list[tuple[str, Table]] = [("Machine and versions", Table.of(["what", "value"], rows))]
    if doctor:
        tables.append(("Doctor", Table.of(["what", "found"], doctor)))
    served = _server(records.get("sweep"))
    if served:
        tables.append(("Server", Table.of(["what", "value"], served)))
    return Section("environment", "Environment", kind="tables", more={"tables": tables},
                   empty="" if rows else "no record says on what it was made")  # fmt: skip


def _found(case: Record) -> str:
    """What doctor found, and what is wrong with it."""
    wrong = "" if case.get("status") == "pass" else f"{case.get('status')}"
    told = (plain(parameter(case, "found")), wrong, plain(case.get("reason")))
    return "; ".join(text for text in told if text)


def _facts(record: Record) -> dict[str, str]:
    own = mapping(record.get("environment"))
    found: dict[str, str] = {}
    gpus = objects(own.get("gpus"))
    for gpu in gpus[:16]:
        name = f"GPU {whole(gpu.get('index'))}"
        found[name] = "; ".join(
            f"{plain(k, 40).replace('_', ' ')} {whole(v)}" if k != "name" else plain(v, 80)
            for k, v in gpu.items() if k not in ("index", "uuid") and v is not None
        )  # fmt: skip
    if not gpus and "gpus" in own:
        found["GPU"] = "none"
    for key, value in own.items():
        if key == "versions":
            found |= {f"version of {plain(k, 40)}": whole(v) for k, v in mapping(value).items()}
        elif key == "triton":
            found["Triton kernels"] = {"interpreter": "ran in the interpreter"}.get(
                str(value), plain(value, 80))  # fmt: skip
        elif key not in ("gpus", "executable"):
            found[plain(key, 60).replace("_", " ")] = _deep(value)
    found["started"] = plain(record.get("started"), 60)
    if record.get("commit"):
        found["commit"] = plain(record.get("commit"), 80)
    return found


def _server(record: Record | None) -> list[list[str]]:
    """What the server said of itself; of several the name before it."""
    if record is None:
        return []
    several = mapping(record.get("sweeps"))
    servers = {str(n): mapping(mapping(s).get("server")) for n, s in several.items()} \
        or {"": mapping(record.get("server"))}  # fmt: skip
    rows = []
    for name, server in list(servers.items())[:8]:
        before = f"{plain(name, 60)}: " if name else ""
        for key in ("url", "model", "endpoint", "max_tokens", "died_at"):
            if server.get(key) is not None:
                rows.append([before + key.replace("_", " "), whole(server[key])])
        for key, value in mapping(server.get("facts")).items():
            known = mapping(value).get("value", None if isinstance(value, dict) else value)
            if known not in (None, [], "") and key not in ("asked", "evidence"):
                rows.append([before + plain(key, 60).replace("_", " "), _deep(known)])
        rows += [
            [f"{before}note", plain(n, 300)] for n in listed(server.get("notes"))
            if not str(n).startswith(UNREMARKABLE)
        ]  # fmt: skip
    return rows


def _deep(value: Any, depth: int = 0) -> str:
    """A nested value in one text, no deeper than a reader follows."""
    if isinstance(value, dict):
        if depth >= DEEP:
            return "..."
        return plain("; ".join(f"{k} {_deep(v, depth + 1)}" for k, v in value.items()), 1500)
    if isinstance(value, list):
        shown = ", ".join(_deep(v, depth + 1) for v in value[:20]) if depth < DEEP else "..."
        return plain(f"{shown}, ... ({len(value)} in all)" if len(value) > 20 else shown, 1500)
    return whole(value) if number(value) is not None else plain(value)
