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
class Progress:
    """How far a kernel is."""

    examples: int = 0
    long_examples: int = 0
    chunks: list[int] = field(default_factory=list)


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
        self.tallies = {k: {c: Tally() for c in self.checks} for k in self.kernels}
        self.progress = {k: Progress() for k in self.kernels}
        self.stopped_early: str | None = None
        self._record, self._path = new_record(command), record
        if resume and record is not None and record.exists():
            self._load(read_record(record))

    @property
    def cases(self) -> list[dict[str, Any]]:
        """The cases of the run record so far."""
        return [t.case(k, c) for k, row in self.tallies.items() for c, t in row.items()]

    def run(self, pool: Pool) -> Iterator[str]:
        """Work; yields the kernel that something happened to.  The record is kept throughout."""
        try:
            for task, event in pool.run(self._tasks(), self._enabled):
                self._take(task, event)
                yield task.kernel
        except BaseException as error:
            self.stopped_early = type(error).__name__
            pool.close()  # a worker may be in the middle of a task
            raise
        finally:
            self.save()

    def save(self) -> None:
        """Write the record, where one was asked for."""
        if self._path is None:
            return
        progress = {
            k: {"examples": p.examples, "long_examples": p.long_examples, "chunks": p.chunks}
            for k, p in self.progress.items()
        }
        self._record |= {
            "parameters": {"seed": self.seed, "examples": self.examples, "checks": self.checks},
            "progress": progress,
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
                if chunk not in self.progress[kernel].chunks:
                    seed = self.seed * 1_000_003 + chunk
                    tasks.append(Task(kernel, list(self.checks), seed, examples, chunk=chunk))
        return tasks

    def _enabled(self, task: Task) -> list[str]:
        """A check that failed is not run again: its first failure is the one to mend."""
        tallies = self.tallies[task.kernel]
        return [c for c in self.checks if not tallies[c].failures or task.case is not None]

    def _take(self, task: Task, event: dict[str, Any]) -> None:
        progress = self.progress[task.kernel]
        match event["event"]:
            case "check":
                tally = self.tallies[task.kernel][event["check"]]
                if event["status"] == "pass":
                    tally.executed += 1
                    tally.worst = max(tally.worst, event["worst"])
                else:
                    tally.skipped[event["reason"]] += 1
            case "example":
                progress.examples += 1
                progress.long_examples += event["tokens"] >= LONG_TOKENS
            case "failure" if event["final"]:
                tally = self.tallies[task.kernel][event["check"]]
                tally.executed += 1
                progress.examples += 1
                known = {"text": event["text"], "case": json.loads(event["case"])}
                tally.failures.append(known | {k: event[k] for k in ("kind",) if k in event})
            case "unusable":
                raise UnusableKernel(event["text"])
            case "done":
                if task.case is None:
                    progress.chunks.append(task.chunk)
                self.save()

    def _load(self, record: dict[str, Any]) -> None:
        """Go on from an earlier record of the same command line."""
        if record.get("parameters") != {
            "seed": self.seed, "examples": self.examples, "checks": self.checks,
        }:  # fmt: skip
            raise UnusableKernel(
                f"{self._path} was made with {record.get('parameters')}; to resume, give the same "
                "--seed, --examples and --only"
            )
        for case in record["cases"]:
            kernel, check = case["parameters"]["kernel"], case["parameters"]["check"]
            if kernel in self.tallies:
                tally = self.tallies[kernel][check]
                tally.executed = case["metrics"]["executed"]
                tally.skipped.update(case["metrics"].get("skipped", {}))
                tally.worst = case["metrics"].get("worst_over_bound", 0.0)
                tally.failures = case.get("failures", [])
        for kernel, seen in record["progress"].items():
            if kernel in self.progress:
                self.progress[kernel] = Progress(**seen)
