"""A run's folder as it was left: whole, half-written or interrupted."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why
from verify_attn.record import not_finite, read_record

STEPS = ("doctor", "check", "bench", "sweep")  # the order in which a run takes them
RUN_RECORD = "run.json"
SCRUBBED, HIDDEN = "[API key]", "\0"  # as a sweep writes it; in its place here
Record = dict[str, Any]


class FolderError(ValueError):
    """Nothing to report on; the message says what was given and what is asked for."""


@dataclass(frozen=True)
class Step:
    """``problem``: why there is no record (missing, half-written, of another version); a record
    that was read may still be of an interrupted step."""

    name: str
    record: Record | None
    problem: str | None


@dataclass(frozen=True)
class Folder:
    """``path``: the folder, or the one record file.  ``steps`` has all of `STEPS`."""

    path: Path
    run: Record | None
    steps: dict[str, Step]
    run_problem: str | None = None

    @property
    def alone(self) -> bool:
        """One record, not a run's folder: nothing is known of the other steps."""
        return not self.path.is_dir()

    @property
    def run_lost(self) -> bool:
        """Is there a ``run.json`` that cannot be read?"""
        return bool(self.run_problem) and not str(self.run_problem).endswith("is missing")

    def case(self, step: str) -> Record | None:
        """What the run's own record says of a step."""
        cases = [] if self.run is None else self.run["cases"]
        return next((case for case in cases if case["id"] == step), None)


def record_name(step: str) -> str:
    """Of the step's record in the folder."""
    return f"{step}.json"


def read_folder(path: Path) -> Folder:
    """Read a run's folder, its ``run.json``, or one record of a step.

    A bad record in a folder is its step's problem; raises `FolderError` where there is nothing to
    read at all.
    """
    try:
        if path.name == RUN_RECORD and path.is_file():
            path = path.parent
        if path.is_file():
            return _alone(path)
        folder = path.is_dir()
    except OSError as wrong:
        raise FolderError(f"{path} cannot be read: {why(wrong)}") from None
    if not folder:
        raise FolderError(f"{path} is neither the folder of a run nor a record in one")
    run, run_problem = _read(path / RUN_RECORD)
    steps = {name: read_step(path, name, run) for name in STEPS}
    if run is None and all(step.record is None for step in steps.values()):
        problems = "; ".join(f"{name}: {step.problem}" for name, step in steps.items())
        raise FolderError(
            f"{path} holds no record of a run ({problems}); give a folder that verify-attn run made"
        )
    return Folder(path, run, steps, run_problem)


def read_step(path: Path, name: str, run: Record | None) -> Step:
    """A step's record in the folder, if it is that of this run."""
    record, problem = _read(path / record_name(name))
    if record is not None:
        with suppress(FolderError):  # of another program that asked the same of the same parts
            if (kind := kind_of(record)) != name:
                return Step(name, None, f"{record_name(name)} is a record of {kind}")
        cases = [] if run is None else run["cases"]
        command = next((c["parameters"].get("command") for c in cases if c["id"] == name), None)
        if run is not None and command is not None and (why := foreign(record, run, str(command))):
            return Step(name, None, f"{record_name(name)} is not of this run: {why}")
    return Step(name, record, problem)


def foreign(record: Record, run: Record, command: str) -> str | None:
    """Why a record is not what this command wrote within this run; None where it may be."""
    made_by = str(record.get("command"))
    if not _alike(_words(made_by), _words(command)):
        return f"it was made by {made_by!r}, the run's by {command!r}"
    there, here = record.get("commit"), run.get("commit")
    if None not in (there, here) and not _alike(_words(str(there)), _words(str(here))):
        return f"it was made at commit {there}, the run at {here}"
    other, own = machine_of(record), machine_of(run)
    if None not in (other, own) and other != own:
        return f"it was made with {other}, the run with {own}"
    return None


def _words(command: str) -> list[str]:
    """Of a command line, but for what a step that goes on has in addition, and for the way to the
    run's folder, which may have been moved."""
    command = command.replace(SCRUBBED, HIDDEN)  # it has a space
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    own = {*map(record_name, STEPS), "server.log"}
    names = [Path(word).name for word in words]
    kept = (name if name in own else word for name, word in zip(names, words, strict=True))
    return [word for word in kept if word != "--resume"]


def _alike(told: Sequence[str], words: Sequence[str]) -> bool:
    """The same words; where a sweep's record hides the API key, any part of one may have been."""
    return len(told) == len(words) and all(
        re.fullmatch(".+".join(map(re.escape, one.split(HIDDEN))), other)
        for one, other in zip(told, words, strict=True)
    )


def machine_of(record: Record) -> Record | None:
    """What must stay the same within a run: the GPUs and the versions; None: it does not say."""
    try:
        environment = record["environment"]
        names = [gpu["name"] for gpu in environment["gpus"]]
        return {"gpus": names, "versions": environment["versions"]}
    except (KeyError, TypeError):
        return None


def read_run(path: Path) -> Record:
    """The run's own record in a folder, whole; raises `FolderError`."""
    record, problem = _read(path / RUN_RECORD)
    if record is None:
        raise FolderError(f"{path}: {problem}")
    return record


def _alone(path: Path) -> Folder:
    record, problem = _read(path)
    if record is None:
        raise FolderError(problem)
    kind = kind_of(record)
    steps = {name: Step(name, None, f"{path.name} is a record of {kind}") for name in STEPS}
    return Folder(path, None, steps | {kind: Step(kind, record, None)})


def kind_of(record: Record) -> str:
    """Which step's record this is, by what it holds; raises `FolderError` for another's."""
    words = str(record.get("command", "")).split()
    if words[:1] == ["verify-attn"] and words[1:2] and words[1] in STEPS:
        return words[1]
    cases = record["cases"]
    if any("answers" in case for case in cases):
        return "sweep"
    if any("check" in case["parameters"] for case in cases):
        return "check"
    if any("run_ms" in case["metrics"] for case in cases):
        return "bench"
    raise FolderError(
        f"a record of {str(record.get('command'))!r} has no report; one of {', '.join(STEPS)} has"
    )


def _read(path: Path) -> tuple[Record | None, str | None]:
    """(record, None), or (None, why there is none)."""
    try:
        record = read_record(path)
        json.dumps(record)
    except (ValueError, RecursionError) as wrong:
        if str(wrong) == f"no record at {path}":
            return None, f"{path.name} is missing"
        return None, str(wrong).replace(str(path), path.name)
    damage = not_finite(record) or _damage(record)
    return (record, None) if damage is None else (None, f"{path.name} is damaged: {damage}")


# What every reader of a record relies on, beyond its cases' statuses.
CASE_HAS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "reason": (str, type(None)),
    "metrics": (dict,),
    "parameters": (dict,),
}
CASE_MAY: dict[str, tuple[type, ...]] = {
    "notes": (list,), "failures": (list,), "floors": (list,), "findings": (list,),
    "attribution": (list,), "answers": (list,), "absent": (dict,), "exit_code": (int, type(None)),
}  # fmt: skip
ITEM_MAY: dict[str, tuple[type, ...]] = {"metrics": (dict,), "windows": (list,)}
FIGURES = (
    "prompt_tokens", "decode_tok_s", "committed_per_step", "step_ms", "first_token_s", "executed",
    "limit_share", "run_ms", "speedup", "seconds",
)  # fmt: skip
METRICS_MAY: dict[str, tuple[type, ...]] = dict.fromkeys(FIGURES, (int, float))
RECORD_MAY: dict[str, tuple[type, ...]] = {
    "environment": (dict,), "findings": (list,), "overview": (dict,), "server": (dict,),
    "progress": (dict,), "parameters": (dict,),
}  # fmt: skip
ENVIRONMENT_MAY: dict[str, tuple[type, ...]] = {
    "gpus": (list,), "versions": (dict,), "bench": (dict,),
}  # fmt: skip
BENCH_MAY: dict[str, tuple[type, ...]] = {"left_out": (dict, type(None))}
LISTED = ("failures", "floors", "findings", "attribution", "answers")


def _damage(record: Record) -> str | None:
    """The first thing that is not of its type: a record may come from anywhere."""
    wrong = _types(record, {}, RECORD_MAY) or _findings(record)
    environment = record.get("environment", {}) if wrong is None else {}
    wrong = wrong or _types(environment, {}, ENVIRONMENT_MAY)
    wrong = wrong or _types(environment.get("bench", {}), {}, BENCH_MAY)
    for number, case in enumerate(record["cases"]):
        wrong = wrong or _types(case, CASE_HAS, CASE_MAY) or _findings(case)
        wrong = wrong or _types(case["metrics"], {}, METRICS_MAY)
        for name in LISTED:
            for item in case.get(name) or () if wrong is None else ():
                wrong = wrong or _types(item, {}, ITEM_MAY)
                wrong = wrong or _types(item.get("metrics", {}), {}, METRICS_MAY)
        if wrong is not None:
            return f"in case {number}, {wrong}"
    return wrong


def _types(
    value: object, must: dict[str, tuple[type, ...]], may: dict[str, tuple[type, ...]]
) -> str | None:
    if not isinstance(value, dict):
        return f"there is {_kind(value)} where an object should be"
    for name, kinds in (must | may).items():
        if name not in value:
            if name in may:
                continue
            return f"{name} is absent"
        found = value.get(name)
        if not isinstance(found, kinds) or isinstance(found, bool):
            return f"{name} is {_kind(found)}"
    return None


def _findings(value: Record) -> str | None:
    for finding in value.get("findings", ()):
        wrong = _types(finding, {"cause": (str,)}, {"points": (list,)})
        if wrong is not None:
            return f"of a finding, {wrong}"
        if not all(isinstance(point, str) for point in finding.get("points", ())):
            return "a finding has points that are no names"
    return None


def _kind(value: object) -> str:
    return "absent" if value is None else type(value).__name__
