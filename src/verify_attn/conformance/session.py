"""A whole check: kernels times checks, fuzzed on all workers, tallied into a run record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verify_attn.conformance import CHECK_NAMES
from verify_attn.conformance.pool import Pool, Task
from verify_attn.environment import gpus
from verify_attn.record import new_record, read_record, write_record

LONG_TOKENS = 100_000
CHUNK_CPU, CHUNK_GPU = 10, 125


class UnusableKernel(RuntimeError):
    """A kernel that cannot be loaded; the message is for the user."""


@dataclass
class Tally:
    """What became of one check on one kernel."""

    executed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def case(self, kernel: str, check: str) -> dict[str, Any]:
        """This tally as a case of a run record."""
        if self.failures:
            status, reason = "fail", self.failures[0]["text"]
        elif self.executed:
            status, reason = "pass", None
        else:
            status = "skipped"
            reason = self.skipped.most_common(1)[0][0] if self.skipped else "no case was drawn"
        metrics: dict[str, Any] = {"executed": self.executed}
        if self.skipped:
            metrics["skipped"] = dict(self.skipped.most_common(5))
        if self.worst:
            metrics["worst_over_bound"] = self.worst
        case = {
            "id": f"{kernel}/{check}", "parameters": {"kernel": kernel, "check": check},
            "status": status, "reason": reason, "metrics": metrics,
        }  # fmt: skip
        if self.failures:
            case["failures"] = self.failures
        return case


@dataclass
class Ran:
    """What ran of one kernel: in all, in the chunks that are done, or in one that is not."""

    examples: int = 0
    long_examples: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)  # by check

    def take(self, event: dict[str, Any]) -> None:
        """A check or an example that ended without a failure."""
        if event["event"] == "example":
            self.examples += 1
            self.long_examples += event["tokens"] >= LONG_TOKENS
            return
        tally = self.tallies.setdefault(event["check"], Tally())
        if event["status"] == "pass":
            tally.executed += 1
            tally.worst = max(tally.worst, event["worst"])
        else:
            tally.skipped[event["reason"]] += 1

    def add(self, more: Ran) -> None:
        """A chunk that is done."""
        self.examples += more.examples
        self.long_examples += more.long_examples
        for check, tally in more.tallies.items():
            mine = self.tallies.setdefault(check, Tally())
            mine.executed += tally.executed
            mine.skipped += tally.skipped
            mine.worst = max(mine.worst, tally.worst)


@dataclass
class Progress:
    """How far a kernel is.

    A chunk that was cut off is drawn again from its first case when the check goes on, so that it
    runs what it would have run in one go; `whole` is what it goes on from.
    """

    chunks: list[int] = field(default_factory=list)  # that are done
    whole: Ran = field(default_factory=Ran)  # what those came to
    open: dict[int, Ran] = field(default_factory=dict)  # what ran of others

    def end(self, chunk: int) -> None:
        self.chunks.append(chunk)
        self.whole.add(self.open.pop(chunk, Ran()))

    def as_record(self, total: Ran) -> dict[str, Any]:
        """For the record; ``total`` is what ran in all."""
        return {
            "examples": total.examples, "long_examples": total.long_examples,
            "chunks": self.chunks, "whole": {
                "examples": self.whole.examples, "long_examples": self.whole.long_examples,
                "tallies": {
                    check: {"executed": t.executed, "skipped": dict(t.skipped), "worst": t.worst}
                    for check, t in self.whole.tallies.items()
                },
            },
        }  # fmt: skip

    @classmethod
    def of(cls, known: dict[str, Any]) -> Progress:
        """The inverse of `as_record`."""
        whole, chunks = known["whole"], [_count(chunk) for chunk in known["chunks"]]
        tallies = {
            check: Tally(
                _count(tally["executed"]), Counter(tally["skipped"]), float(tally["worst"])
            )
            for check, tally in whole["tallies"].items()
        }
        sizes = _count(whole["examples"]), _count(whole["long_examples"])
        return cls(chunks, Ran(*sizes, tallies))


class Session:
    """Kernels, checks and what they came to; `run` yields after every event."""

    def __init__(
        self,
        kernels: Sequence[str],
        checks: Sequence[str] = CHECK_NAMES,
        *,
        examples: int,
        seed: int = 0,
        case: str | None = None,
        command: Sequence[str] = ("verify-attn", "check"),
        record: Path | None = None,
        resume: bool = False,
    ) -> None:
        self.kernels, self.checks = list(dict.fromkeys(kernels)), list(checks)
        self.examples, self.seed, self.case_json = examples, seed, case
        self.ran = {k: Ran(tallies={c: Tally() for c in self.checks}) for k in self.kernels}
        self._progress = {k: Progress() for k in self.kernels}
        self._shrinking: dict[tuple[str, int], tuple[Task, dict[str, Any]]] = {}
        self.stopped_early: str | None = None
        self.device: str | None = None  # as the first worker found it
        self._record, self._path = new_record(command), record
        if resume and record is not None and record.exists():
            self._load(read_record(record))

    @property
    def started(self) -> bool:
        """Has any example ended, or any check failed?"""
        failed = any(t.failures for ran in self.ran.values() for t in ran.tallies.values())
        return failed or any(ran.examples for ran in self.ran.values())

    @property
    def _parameters(self) -> dict[str, Any]:
        asked = {"seed": self.seed, "examples": self.examples, "checks": self.checks}
        return asked if self.case_json is None else {"case": self.case_json, "checks": self.checks}

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The cases of the run record so far."""
        return [t.case(k, c) for k, ran in self.ran.items() for c, t in ran.tallies.items()]

    def run(self, pool: Pool) -> Iterator[str]:
        """Work; yields the kernel that something happened to.  The record is kept throughout."""
        try:
            for task, event in pool.run(self._tasks(), self._enabled):
                self._take(task, event)
                yield task.kernel
        except BaseException as error:
            self.stopped_early = type(error).__name__
            pool.close()  # a worker may be in the middle of a task
            for task, failure in list(self._shrinking.values()):
                self._take(task, {**failure, "final": True})  # seen is seen, if not yet small
            if self.started:
                self.save()  # neither a mistyped kernel nor haste costs the record that is there
            raise
        if self.case_json is None:
            for progress in self._progress.values():  # of a crash with no check left to run
                for chunk in list(progress.open):
                    progress.end(chunk)
        self.save()

    def save(self) -> None:
        """Write the record, where one was asked for."""
        if self._path is None:
            return
        self._record |= {
            "parameters": self._parameters,
            "progress": {k: p.as_record(self.ran[k]) for k, p in self._progress.items()},
            "stopped_early": self.stopped_early,
            "cases": self.cases,
        }
        write_record(self._path, self._record)

    def _tasks(self) -> list[Task]:
        if self.case_json is not None:
            return [Task(k, list(self.checks), case=self.case_json) for k in self.kernels]
        size = CHUNK_GPU if gpus() else CHUNK_CPU
        tasks = []
        for chunk, start in enumerate(range(0, self.examples, size)):
            examples = min(size, self.examples - start)
            for kernel in self.kernels:
                if chunk not in self._progress[kernel].chunks:
                    seed = self.seed * 1_000_003 + chunk
                    tasks.append(Task(kernel, list(self.checks), seed, examples, chunk=chunk))
        return tasks

    def _enabled(self, task: Task) -> list[str]:
        """A check that failed is not run again: its first failure is the one to mend."""
        tallies = self.ran[task.kernel].tallies
        return [c for c in self.checks if not tallies[c].failures or task.case is not None]

    def _take(self, task: Task, event: dict[str, Any]) -> None:
        ran, progress = self.ran[task.kernel], self._progress[task.kernel]
        match event["event"]:
            case "check" | "example":
                ran.take(event)
                progress.open.setdefault(task.chunk, Ran()).take(event)
            case "device":
                self._record["environment"]["device"] = self.device = event["device"]
            case "failure" if not event["final"]:
                self._shrinking[task.kernel, task.chunk] = task, event
            case "failure":
                self._shrinking.pop((task.kernel, task.chunk), None)
                tally = ran.tallies[event["check"]]
                tally.executed += 1
                if task.case is None:
                    ran.examples += 1
                    progress.open.setdefault(task.chunk, Ran()).examples += 1
                known = {"text": event["text"], "case": json.loads(event["case"])}
                known |= {k: event[k] for k in ("kind",) if k in event} | {"chunk": task.chunk}
                # Workers may find one each, in whatever order they get there: the first is that of
                # the first chunk, which always runs with every check.
                tally.failures = sorted([*tally.failures, known], key=lambda f: f.get("chunk", 0))
            case "unusable":
                raise UnusableKernel(event["text"])
            case "done":
                if task.case is None:
                    progress.end(task.chunk)
                self.save()

    def _load(self, record: dict[str, Any]) -> None:
        """Go on from an earlier record of the same command line, on the same machine."""
        if record.get("parameters") != self._parameters:
            raise UnusableKernel(
                f"{self._path} was made with {record.get('parameters')}; to resume, give the same "
                "--seed, --examples and --only"
            )
        try:
            here, there = self._record["environment"], record["environment"]
            if _machine(there) != _machine(here):
                raise UnusableKernel(
                    f"{self._path} was made with {_machine(there)}, here is {_machine(here)}; "
                    "one record tells of one machine"
                )
            old, new = record.get("commit"), self._record["commit"]
            if None not in (old, new) and old != new:
                raise UnusableKernel(
                    f"{self._path} was made at commit {old}, here is {new}; one record tells of "
                    "one commit: give --json another path"
                )
            if "device" in there:
                here["device"] = self.device = there["device"]
            missing = set(record["progress"]) - set(self.kernels)
            if missing:
                raise UnusableKernel(
                    f"{self._path} also tells of {', '.join(sorted(missing))}; to resume, name "
                    "those kernels too"
                )
            for kernel, known in record["progress"].items():
                self._progress[kernel] = progress = Progress.of(known)
                self.ran[kernel].add(progress.whole)
            asked = {(k, c) for k in record["progress"] for c in self.checks}
            if {
                (c["parameters"]["kernel"], c["parameters"]["check"]) for c in record["cases"]
            } != asked:
                raise KeyError("cases")
            for case in record["cases"]:  # a failure counts, in whatever chunk it was found
                known, failures = case["parameters"], case.get("failures", [])
                if bool(failures) != (case["status"] == "fail"):
                    raise KeyError("failures")
                tally = self.ran[known["kernel"]].tallies[known["check"]]
                tally.failures = [{"text": f["text"], "case": f["case"], **f} for f in failures]
                tally.executed += len(tally.failures)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnusableKernel(
                f"{self._path} is damaged, or of an earlier version: {error!r}"
            ) from None


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _machine(environment: dict[str, Any]) -> dict[str, Any]:
    """What must stay the same within a record; clocks and temperatures may not."""
    names = [gpu["name"] for gpu in environment["gpus"]]
    return {"gpus": names} | {k: environment[k] for k in ("triton", "versions")}
