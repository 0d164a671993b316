"""`verify-attn report`: the page of a run's folder, or of records, made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from verify_attn.file_errors import why
from verify_attn.record import PASSED, RecordError, check_writable, read_record
from verify_attn.report.folder import (
    RUN_RECORD,
    STEPS,
    Folder,
    FolderError,
    Record,
    Step,
    foreign,
    read_folder,
    record_name,
)
from verify_attn.report.verdict import judge
from verify_attn.terminal import error, output, printable

# What is in a run's folder, its report apart.
KEPT = (
    RUN_RECORD, *map(record_name, STEPS), *(f"{step}.txt" for step in STEPS), "server.log",
    "junit.xml", "summary.md",
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """``others``: records of no step, which some section may know."""

    folder: Folder
    others: list[Record] = field(default_factory=list)


def run_report(paths: Sequence[Path], *, out: Path | None, against: Path | None) -> int:
    """Write the page and say where; returns the exit code."""
    if find_spec("jinja2") is None:
        return error("jinja2 is not installed; a report needs pip install 'verify-attn[report]'")
    target = out or default_out(paths[0])
    try:
        inputs = read_inputs(paths)
        saved = None if against is None else _sweep_record(against)
        given = [*paths, *([] if against is None else [against])]
        taken = {path.resolve() for path in given}
        taken |= {(path if path.is_dir() else path.parent).resolve() / name
                  for path in given for name in KEPT}  # fmt: skip
        if target.resolve() in taken:
            raise RecordError(f"--out {target} is one of the run's own files; give another path")
        check_writable(target)
    except (FolderError, RecordError) as wrong:
        return error(str(wrong))
    from verify_attn.report.html import write_report

    verdict = judge(inputs.folder)
    try:
        write_report(inputs.folder, verdict, target, saved, inputs.others)
    except OSError as wrong:
        return error(f"{target} is not written: {why(wrong)}")
    console = output()
    console.print(printable(verdict.headline), soft_wrap=True)
    size_mb = target.stat().st_size / 1e6
    console.print(f"report: {printable(str(target))} ({size_mb:.1f} MB)", soft_wrap=True)
    return PASSED


def _sweep_record(path: Path) -> Record:
    """To be drawn behind this one; raises `FolderError` for a record of another command."""
    record = read_folder(path).steps["sweep"].record
    if record is None or path.is_dir():
        raise FolderError(f"--against {path} is no record of a sweep; give what sweep --json wrote")
    return record


def default_out(path: Path) -> Path:
    """Into a folder, or beside a record."""
    if path.is_file() and path.name != "run.json":
        return path.with_suffix(".html")
    return (path.parent if path.is_file() else path) / "report.html"


def read_inputs(paths: Sequence[Path]) -> Inputs:
    """A folder or a step's record, and further records that are added to it.

    Raises `FolderError` where nothing given has a step, or two have the same one, and `RecordError`
    for a file that is no record.
    """
    inputs: Inputs | None = None
    others: list[Record] = []
    for path in paths:
        try:
            found = read_folder(path)
        except FolderError:
            if not path.is_file() or len(paths) == 1:
                raise
            others.append(read_record(path))
            continue
        inputs = Inputs(found if inputs is None else _added(inputs.folder, found))
    if inputs is None:
        names = ", ".join(map(str, paths))
        raise FolderError(
            f"none of {names} is a run's folder or the record of check, bench, sweep or doctor; "
            "give one of those, other records beside it"
        )
    return replace(inputs, others=others)


def _added(folder: Folder, more: Folder) -> Folder:
    """With the steps of another; the first one's path and run are kept."""
    steps: dict[str, Step] = {}
    for name, step in folder.steps.items():
        extra = more.steps[name]
        if step.record is not None and extra.record is not None:
            raise FolderError(
                f"{folder.path} and {more.path} both have a record of {name}; a report shows one "
                "(a saved sweep to draw behind it is given with --against)"
            )
        told = folder.case(name)
        if folder.run is not None and told is not None and extra.record is not None:
            command = str(told["parameters"].get("command"))
            if why := foreign(extra.record, folder.run, command):
                raise FolderError(
                    f"{more.path} is not of the run in {folder.path}: {why}; report on it alone"
                )
        steps[name] = step if extra.record is None else extra
    return Folder(folder.path, folder.run or more.run, steps)
