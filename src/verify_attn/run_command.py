"""What `verify-attn run` does: the steps in order, one folder of records, one verdict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from verify_attn.environment import gpus
from verify_attn.file_errors import file_error, why
from verify_attn.record import (
    BAD_USAGE,
    INTERRUPTED,
    SERVER_DEAD,
    RecordError,
    check_writable,
    new_record,
    read_record,
    write_record,
)
from verify_attn.report.folder import (
    RUN_RECORD,
    STEPS,
    FolderError,
    machine_of,
    read_run,
    read_step,
    record_name,
)
from verify_attn.run_ahead import look_ahead, shown
from verify_attn.run_lock import FolderInUse, take
from verify_attn.run_outcome import FINISHED, outcome
from verify_attn.run_plan import (
    CLI,
    Asked,
    BadRun,
    bench_line,
    check_line,
    chosen_folder,
    sweep_line,
)
from verify_attn.run_server import Embedded
from verify_attn.run_steps import Steps
from verify_attn.run_written import write_all
from verify_attn.terminal import STATUS_STYLE, error, printable

DOCTOR = "verify_attn.doctor_record"
Record = dict[str, Any]


def run_run(asked: Asked, out: Path | None, resume: bool) -> int:
    """`verify-attn run`; returns the exit code."""
    with ExitStack() as stack:
        try:
            run = Run(asked, chosen_folder(out, resume), resume, stack)
        except (BadRun, FolderInUse, RecordError) as wrong:
            return error(str(wrong))
        except OSError as wrong:
            return error(file_error(wrong))
        steps = stack.enter_context(Steps(run.lock))
        unwritten = run.go(steps)
        return write_all(run.folder, steps, unwritten, asked.against)


class Run:
    """One folder, taken until ``stack`` ends, and the steps that are done in it; nothing is written
    before `go`."""

    def __init__(self, asked: Asked, folder: Path, resume: bool, stack: ExitStack) -> None:
        self.asked, self.folder = asked, folder
        self.gpu = bool(gpus())
        self.record = new_record(["verify-attn", *sys.argv[1:]])
        self.record |= {"asked": asked.as_record(), "finished": False, "interrupted": False}
        self._console = Console(stderr=True, highlight=False, emoji=False)
        if folder.exists() and not folder.is_dir():
            raise BadRun(f"--out {folder} is no folder; give one, or a name that is not there yet")
        there = folder.exists()
        locked = take(folder, stack) if there else None
        if resume:
            self._resume()
        elif there:
            self._refuse_full()
        self._plan = look_ahead(asked, folder, self.gpu)
        if not there:
            _make(folder)
            locked = take(folder, stack)
            self._refuse_full()  # another run may have been quicker, and be done
        check_writable(folder / RUN_RECORD)
        self.lock = [] if locked is None else [locked]

    def _refuse_full(self) -> None:
        if any(self.folder.iterdir()):
            raise BadRun(
                f"{self.folder} is not empty; --resume goes on with the run in it, another --out "
                "makes a new one"
            )

    def _resume(self) -> None:
        """Take the steps that are done from the run in the folder."""
        path = self.folder / RUN_RECORD
        try:
            before = read_run(self.folder)
        except FolderError as wrong:
            raise BadRun(f"{wrong}; make a new run with another --out") from None
        was, now = before.get("asked"), self.record["asked"]
        if was != now:
            names = [n for n in now if not isinstance(was, dict) or was.get(n) != now[n]]
            raise BadRun(
                f"{path} was made by {before.get('command')!r}, which differs in "
                f"{', '.join(names)}; to resume give the same, or make a new run with another --out"
            )
        there, here = machine_of(before), machine_of(self.record)
        if there != here:
            raise BadRun(
                f"{path} was made with {there}, here is {here}; one run tells of one machine: make "
                "a new one with another --out"
            )
        old, new = before.get("commit"), self.record["commit"]
        if None not in (old, new) and old != new:
            raise BadRun(
                f"{path} was made at commit {old}, here is {new}; one run tells of one commit: "
                "make a new one with another --out"
            )
        for case in before["cases"]:
            if case.get("id") in STEPS and case.get("exit_code") in FINISHED:
                if problem := read_step(self.folder, case["id"], before).problem:
                    self._say(f"{case['id']} runs again: {problem}", result=True)
                    continue
                self.record["cases"].append(case)
        self.record["started"] = before.get("started", self.record["started"])

    def _path(self, step: str) -> Path:
        return self.folder / record_name(step)

    def go(self, steps: Steps) -> str | None:
        """Take the steps that are not done; returns why something could not be written, if so."""
        try:
            self._save()
            done = {case["id"] for case in self.record["cases"]}
            for line in shown(self._plan, [s for s in STEPS if s not in done]):
                self._say(line, result=True)
            for step in STEPS:
                if step in done:
                    self._say(f"{step}: done before", result=True)
                    continue
                if steps.stopped:
                    self.record["interrupted"] = True
                    break
                self._take(step, steps)
                self._save()
                code = self.record["cases"][-1]["exit_code"]
                if code == INTERRUPTED:
                    self.record["interrupted"] = True
                if code == BAD_USAGE:
                    break  # its input is to be mended first
            self.record["finished"] = not self.record["interrupted"]
            self._save()
        except RecordError as wrong:
            return str(wrong)
        except OSError as wrong:
            return file_error(wrong)
        return None

    def _take(self, step: str, steps: Steps) -> None:
        reason = self._impossible(step)
        if reason is not None:
            self._add(step, None, "skipped", reason)
        elif step == "doctor":
            self._child(step, DOCTOR, [str(self._path(step))], steps)
        elif step == "check":
            self._child(
                step, CLI, check_line(self.asked, self.folder, self.gpu, self.record), steps
            )
        elif step == "bench":
            self._child(step, CLI, bench_line(self.asked, self.folder), steps)
        else:
            self._take_sweep(steps)

    def _impossible(self, step: str) -> str | None:
        if step == "bench" and not self.gpu:
            return "no GPU here: kernels were not timed"
        if step == "sweep" and self.asked.url is None:
            return Embedded.missing()
        return None

    def _take_sweep(self, steps: Steps) -> None:
        if self.asked.url is not None:
            line = sweep_line(self.asked, self.folder, self.asked.url, {})
            self._child("sweep", CLI, line, steps)
            return
        log = self.folder / "server.log"
        embedded = Embedded(self.gpu, *self._served(), log)
        self._say("sweep: starting the package's own server")
        with ExitStack() as stack:
            url = embedded.start(stack, steps)
            if url is None:
                code = INTERRUPTED if steps.stopped else SERVER_DEAD
                self._add("sweep", code, "inconclusive" if steps.stopped else "error",
                          embedded.problem, notes=embedded.notes)  # fmt: skip
                return
            own = embedded.model.sweep(self.asked.quick)
            line = sweep_line(self.asked, self.folder, url, own, log)
            self._child("sweep", CLI, line, steps, notes=embedded.notes)
            self.record["cases"][-1]["parameters"]["server"] = embedded.command

    def _served(self) -> tuple[list[str], list[str]]:
        """On a GPU the user's kernels that passed their check, the first first; and what is to be
        said of the others."""
        asked = self.asked.kernels
        if not self.gpu:
            note = "without a GPU the server runs its default kernel, none of those that were named"
            return [], [note] if asked else []
        try:
            cases = read_record(self._path("check"))["cases"]
        except RecordError:
            return [], ["the server runs its default kernel: there is no record of the check"]
        wrong = {c["parameters"]["kernel"] for c in cases if c["status"] in ("fail", "error")}
        notes = [f"{kernel} failed its check and was not served" for kernel in asked
                 if kernel in wrong]  # fmt: skip
        return [kernel for kernel in asked if kernel not in wrong], notes

    def _child(
        self,
        step: str,
        module: str,
        arguments: Sequence[str],
        steps: Steps,
        notes: Sequence[str] = (),
    ) -> None:
        path = self._path(step)
        if path.exists() and "--resume" not in arguments:
            before = path.with_name(f"{path.name}.before")
            path.replace(before)  # no step shows an earlier one's
            self._say(f"{step} begins anew: what was there is {before}", result=True)
        self._say(f"{step} ...")
        shown = ["doctor"] if module == DOCTOR else arguments
        ended = steps.take(module, arguments, self.folder / f"{step}.txt")
        code, status, reason = outcome(path, ended)
        command = shlex.join(["verify-attn", *shown])
        self._add(step, code, status, reason, command, ended.seconds, notes)

    def _add(
        self,
        step: str,
        code: int | None,
        status: str,
        reason: str | None,
        command: str | None = None,
        seconds: float | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        parameters = {} if command is None else {"command": command, "record": record_name(step)}
        self.record["cases"].append({
            "id": step, "parameters": parameters, "status": status, "reason": reason,
            "metrics": {} if seconds is None else {"seconds": seconds},
            "exit_code": code, "notes": list(notes),
        })  # fmt: skip
        took = "" if seconds is None else f", {seconds:.0f} s"
        style = STATUS_STYLE[status]
        words = "" if reason is None else f": {reason.splitlines()[0]}"
        line = f"{step}: [{style}]{status}[/{style}]{took}{printable(words)}"
        self._say(line, markup=True, result=True)

    def _save(self) -> None:
        write_record(self.folder / RUN_RECORD, self.record)

    def _say(self, line: str, markup: bool = False, result: bool = False) -> None:
        """A line on standard error; in a pipe those alone that are more than progress."""
        if result or self._console.is_terminal:
            try:
                self._console.print(line if markup else printable(line), soft_wrap=True)
            except (OSError, SystemExit):  # nobody reads any more; the run goes on
                self._console = Console(file=StringIO())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise BadRun(f"--out {folder} cannot be made: {why(wrong)}") from None
