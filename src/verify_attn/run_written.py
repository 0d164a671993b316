"""What a run leaves for people: the report, the job summary, JUnit, and 20 lines of terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from verify_attn.file_errors import file_error, why
from verify_attn.record import INTERRUPTED, RecordError, read_record
from verify_attn.report.folder import Folder, FolderError, read_folder
from verify_attn.report.junit import junit
from verify_attn.report.markdown import summary
from verify_attn.report.text import lines
from verify_attn.report.verdict import Verdict, judge
from verify_attn.run_steps import Steps
from verify_attn.terminal import error
from verify_attn.whole_file import write_whole

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
STYLE = {"pass": "green", "fail": "red", "dead": "red"}  # the others are yellow
NEEDED = ("plotly", "jinja2")


def write_all(path: Path, steps: Steps, unwritten: str | None, against: str | None = None) -> int:
    """Judge the folder, write everything into it, print; returns the exit code.

    ``unwritten``: a record of the run that could not be written, and why.  ``against``: a saved
    sweep's record, which the report draws behind this run's.
    """
    problems = [] if unwritten is None else [f"{unwritten}; what was measured is in {path}"]
    try:
        folder = read_folder(path)
    except FolderError as wrong:
        return error(unwritten or str(wrong))
    verdict = judge(folder)
    md = summary(folder, verdict)
    problems += _failed(lambda: write_whole(path / "summary.md", md.encode(errors="replace")))
    problems += _failed(lambda: write_whole(path / "junit.xml", junit(folder, verdict)))
    if given := os.environ.get(STEP_SUMMARY):
        problems += _failed(lambda: _append(Path(given), md))
    report, failed = _report(folder, verdict, against)
    go_on = f"; go on with --resume --out {path}" if verdict.status == "interrupted" else ""
    _print(verdict, [report, f"records: {path}{go_on}"])
    code = verdict.exit_code
    for problem in problems + failed:
        code = error(problem)
    return INTERRUPTED if steps.stopped else code


def _report(folder: Folder, verdict: Verdict, against: str | None) -> tuple[str, list[str]]:
    """(where the report is, what went wrong)."""
    out = folder.path / "report.html"
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        return f"report.html needs pip install 'verify-attn[report]' ({missing[0]})", []
    try:
        from verify_attn.report.html import write_report

        saved = None if against is None else read_record(Path(against))
        write_report(folder, verdict, out, saved)
    except Exception as wrong:  # a mistake in the report must not cost the verdict
        return "report.html is not written", [f"{out} is not written: {_told(wrong)}"]
    return f"report: {out}", []


def _told(wrong: Exception) -> str:
    known = isinstance(wrong, OSError | RecordError)
    return why(wrong) if known else f"{type(wrong).__name__}: {wrong}"


def _failed(write: Callable[[], object]) -> list[str]:
    """Why writing failed: nothing, or one line."""
    try:
        write()
    except OSError as wrong:
        return [f"not written: {file_error(wrong)}"]
    return []


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(text)


def _print(verdict: Verdict, where: Sequence[str]) -> None:
    """Onto standard output; a reader that left early (| head) is no error."""
    console = Console(highlight=False, emoji=False)  # a kernel may be called right:a
    width = console.width if console.is_terminal else None
    style = STYLE.get(verdict.status, "yellow")
    try:
        for number, line in enumerate(lines(verdict, where, width)):
            console.print(line, style="" if number else style, markup=False, soft_wrap=True)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, SystemExit) as wrong:
        if isinstance(wrong, OSError) and not isinstance(wrong, BrokenPipeError):
            error(f"cannot write to standard output: {why(wrong)}")
        with suppress(OSError):  # so that the interpreter's own last flush has somewhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
