"""What `verify-attn run` does: the steps in order, one folder of records, one verdict."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from verify_attn.environment import gpus
from verify_attn.record import (
    BAD_USAGE,
    FAILED,
    INCONCLUSIVE,
    INTERRUPTED,
    PASSED,
    SERVER_DEAD,
    RecordError,
    check_writable,
    new_record,
    read_record,
    write_record,
)
from verify_attn.report.folder import RUN_RECORD, STEPS, record_name
from verify_attn.run_plan import (
    CLI,
    Asked,
    BadRun,
    bench_line,
    check_line,
    check_plan,
    chosen_folder,
    sweep_line,
)
from verify_attn.run_server import Embedded
from verify_attn.run_steps import Ended, Steps
from verify_attn.run_written import write_all
from verify_attn.terminal import STATUS_STYLE, error, printable

DOCTOR = "verify_attn.doctor_record"
STATUS = {
    PASSED: "pass", FAILED: "fail", INCONCLUSIVE: "inconclusive", SERVER_DEAD: "error",
    BAD_USAGE: "error",
}  # fmt: skip
FINISHED = (PASSED, FAILED, INCONCLUSIVE)
Record = dict[str, Any]


def run_run(asked: Asked, out: Path | None, resume: bool) -> int:
    """`verify-attn run`; returns the exit code."""
    try:
        run = Run(asked, chosen_folder(out, resume), resume)
    except (BadRun, RecordError, OSError) as wrong:
        return error(str(wrong))
    with Steps() as steps:
        unwritten = run.go(steps)
        return write_all(run.folder, steps, unwritten)


class Run:
    """One folder and the steps that are done in it; nothing is written before `go`."""

    def __init__(self, asked: Asked, folder: Path, resume: bool) -> None:
        self.asked, self.folder = asked, folder
        self.gpu = bool(gpus())
        self.record = new_record(["verify-attn", *sys.argv[1:]])
        self.record |= {"asked": asked.as_record(), "finished": False, "interrupted": False}
        self._console = Console(stderr=True, highlight=False, emoji=False)
        if folder.exists() and not folder.is_dir():
            raise BadRun(f"--out {folder} is no folder; give one, or a name that is not there yet")
        if resume:
            self._resume()
        elif folder.exists() and any(folder.iterdir()):
            raise BadRun(
                f"{folder} is not empty; --resume goes on with the run in it, another --out makes "
                "a new one"
            )
        check_plan(asked, folder)
        check_writable(folder / RUN_RECORD)

    def _resume(self) -> None:
        """Take the steps that are done from the run in the folder."""
        path = self.folder / RUN_RECORD
        before = read_record(path)
        was, now = before.get("asked"), self.record["asked"]
        if was != now:
            names = [n for n in now if not isinstance(was, dict) or was.get(n) != now[n]]
            raise BadRun(
                f"{path} was made by {before.get('command')!r}, which differs in "
                f"{', '.join(names)}; to resume give the same, or make a new run with another --out"
            )
        there, here = _machine(before), _machine(self.record)
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
                try:
                    read_record(self._path(case["id"]))
                except RecordError as wrong:
                    self._say(f"{case['id']} runs again: {wrong}")
                    continue
                self.record["cases"].append(case)
        self.record["started"] = before.get("started", self.record["started"])

    def _path(self, step: str) -> Path:
        return self.folder / record_name(step)

    def go(self, steps: Steps) -> str | None:
        """Take the steps that are not done; returns why something could not be written, if so."""
        try:
            self._save()
            for step in STEPS:
                if any(case["id"] == step for case in self.record["cases"]):
                    self._say(f"{step}: done before")
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
        except (RecordError, OSError) as wrong:
            return str(wrong)
        return None

    def _take(self, step: str, steps: Steps) -> None:
        why = self._impossible(step)
        if why is not None:
            self._add(step, None, "skipped", why)
        elif step == "doctor":
            self._child(step, DOCTOR, [str(self._path(step))], steps)
        elif step == "check":
            self._child(step, CLI, check_line(self.asked, self.folder, self.gpu), steps)
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
            line = sweep_line(self.asked, self.folder, self.asked.url)
            self._child("sweep", CLI, line, steps)
            return
        log = self.folder / "server.log"
        embedded = Embedded(*self._served(), log)
        self._say("sweep: starting the package's own server")
        with ExitStack() as stack:
            url = embedded.start(stack, steps)
            if url is None:
                code = INTERRUPTED if steps.stopped else SERVER_DEAD
                self._add("sweep", code, "inconclusive" if steps.stopped else "error",
                          embedded.problem, notes=embedded.notes)  # fmt: skip
                return
            line = sweep_line(self.asked, self.folder, url, log)
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
            path.replace(path.with_name(f"{path.name}.before"))  # no step shows an earlier one's
        self._say(f"{step} ...")
        shown = ["doctor"] if module == DOCTOR else arguments
        ended = steps.take(module, arguments, self.folder / f"{step}.txt")
        code, status, reason = self._outcome(step, ended)
        command = shlex.join(["verify-attn", *shown])
        self._add(step, code, status, reason, command, ended.seconds, notes)

    def _outcome(self, step: str, ended: Ended) -> tuple[int, str, str | None]:
        """(exit code, status, reason) of a step that ended."""
        written = self._path(step).exists()
        if ended.code == INTERRUPTED or (
            ended.interrupted and not (written and ended.code in FINISHED)
        ):
            return INTERRUPTED, "inconclusive", f"interrupted after {ended.seconds:.0f} s"
        if ended.code not in STATUS:
            how = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
            return ended.code, "error", f"it ended with {how}: {ended.error}"
        status = STATUS[ended.code]
        try:
            cases = read_record(self._path(step))["cases"]
        except RecordError:
            return ended.code, status, None if ended.code == PASSED else ended.error
        if ended.code == PASSED:
            return ended.code, status, None
        if ended.code in (BAD_USAGE, SERVER_DEAD):
            return ended.code, status, ended.error
        return ended.code, status, _counts(cases)

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
        self._say(f"{step}: [{style}]{status}[/{style}]{took}{printable(words)}", markup=True)

    def _save(self) -> None:
        write_record(self.folder / RUN_RECORD, self.record)

    def _say(self, line: str, markup: bool = False) -> None:
        """A line a step, on a terminal."""
        if self._console.is_terminal:
            self._console.print(line if markup else printable(line), soft_wrap=True)


def _machine(record: Record) -> Record | None:
    """What must stay the same within a run: the GPUs and the versions."""
    try:
        environment = record["environment"]
        names = [gpu["name"] for gpu in environment["gpus"]]
        return {"gpus": names, "versions": environment["versions"]}
    except (KeyError, TypeError):
        return None


def _counts(cases: list[Record]) -> str:
    counts: dict[str, int] = {}
    for case in cases:
        counts[case["status"]] = counts.get(case["status"], 0) + 1
    return f"of {len(cases)} cases " + ", ".join(f"{n} {status}" for status, n in counts.items())
