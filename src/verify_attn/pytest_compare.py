"""The gate under pytest: one test a case of a saved run, which fails where the case got worse."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from verify_attn.perf.gate import COMPARED, CaseVerdict, Comparison, compare, load_cases
from verify_attn.perf.saved import KEY, Saved, from_pytest_benchmark
from verify_attn.perf.thresholds import ThresholdError, find_pyproject, read_thresholds
from verify_attn.pytest_perf import MEASURED
from verify_attn.record import RecordError

NAME = "verify-attn-compare"
NOTHING = "nothing was compared"


class GotWorse(Exception):
    """A case that does not pass the gate."""


class CompareItem(pytest.Item):
    """A case of the baseline."""

    fixturenames = ("benchmark",)  # so that --benchmark-only does not skip it

    def __init__(self, *, case_id: str, gate: Gate, **rest: Any) -> None:
        super().__init__(**rest)
        self.case_id, self.gate = case_id, gate
        # As the perf tests themselves; the mark gpu is for selection only, see `Gate`.
        self.add_marker("perf")
        self.add_marker("gpu")

    def runtest(self) -> None:
        """Raises `GotWorse` with the figures."""
        verdict = self.gate.verdicts[self.case_id]
        told = "; ".join(filter(None, [verdict.reason, *_figures(verdict)]))
        self.user_properties.append((NAME, verdict.outcome))
        self.user_properties.append((f"{NAME}-figures", told))
        if verdict.outcome == "not compared":
            pytest.skip(told)
        if verdict.outcome not in COMPARED:
            raise GotWorse(f"{verdict.outcome}: {self.case_id}: {told}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        """The figures alone."""
        if isinstance(excinfo.value, GotWorse):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The baseline's file."""
        return self.gate.path, None, self.name


class _Baseline(pytest.Collector):
    """The items' parent: in JUnit their class."""

    def collect(self) -> list[pytest.Item]:
        return []


class Gate:
    """A plugin, registered where --verify-attn-compare is given.

    Raises UsageError for a file that is none of pytest-benchmark's with our times.
    """

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config, self.path = config, path
        try:
            self.thresholds = read_thresholds(find_pyproject(config.rootpath))
            self.saved = load_cases(path)
        except (RecordError, ThresholdError) as wrong:
            raise pytest.UsageError(f"--verify-attn-compare: {wrong}") from None
        if "benchmarks" not in json.loads(path.read_text()):
            raise pytest.UsageError(
                f"--verify-attn-compare: {path} is a record of verify-attn bench, whose cases are "
                "no tests: give a file of pytest --benchmark-save or --benchmark-json, or compare "
                "two records with verify-attn compare"
            )
        target = config.getoption("benchmark_json")
        if target is not None and Path(target).resolve() == path.resolve():
            raise pytest.UsageError(
                f"--verify-attn-compare: --benchmark-json writes over {path}, the baseline; give "
                "another path"
            )
        if not self.saved.cases:
            raise pytest.UsageError(f"--verify-attn-compare: {path} holds no case to compare with")
        self.chosen: list[str] = []
        self.ran = 0

    @cached_property
    def comparison(self) -> Comparison:
        """Of what was chosen; asked for when all tests have run."""
        cases = {i: case for i, case in self.saved.cases.items() if i in self.chosen}
        return compare(replace(self.saved, cases=cases), self._now(), self.thresholds)

    @cached_property
    def verdicts(self) -> dict[str, CaseVerdict]:
        """By case."""
        return {case.id: case for case in self.comparison.cases}

    def _now(self) -> Saved:
        measured = self.config.stash[MEASURED]
        return from_pytest_benchmark(
            {
                "machine_info": {KEY: measured.about},
                "benchmarks": [
                    {"fullname": name, "extra_info": {KEY: case}}
                    for name, case in measured.cases.items()
                ],
            },
            "this run",
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None]:
        """Add one item a case, at the end.

        A case whose test was collected goes with it: it is compared if that test is to run.  One
        whose test is not there, which is what the gate is for, is subject to -k and -m itself.
        """
        parent = _Baseline.from_parent(session, name=NAME, nodeid=NAME)
        ours = {
            case_id: CompareItem.from_parent(
                parent, name=f"compare[{case_id}]", case_id=case_id, gate=self
            )
            for case_id in self.saved.cases
        }
        collected = {item.nodeid for item in items}
        items += [item for case_id, item in ours.items() if case_id not in collected]
        yield
        left = {item.nodeid for item in items}
        items[:] = [item for item in items if not isinstance(item, CompareItem)]
        lost = []
        for case_id, item in ours.items():
            # Without a GPU a test is skipped, and its case then missing: it must not be skipped.
            item.own_markers = [mark for mark in item.own_markers if mark.name != "gpu"]
            if case_id in left or item.nodeid in left:
                items.append(item)
                self.chosen.append(case_id)
            elif case_id in collected:
                lost.append(item)
        if lost:
            self.config.hook.pytest_deselected(items=lost)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what was compared."""
        if report.when == "call" and not report.skipped:
            self.ran += NAME in dict(report.user_properties)

    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """With -v the verdict in place of PASSED."""
        outcome = dict(getattr(report, "user_properties", ())).get(NAME)
        if report.when != "call" or not report.passed or outcome is None:
            return None
        return "passed", ".", str(outcome).upper()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A gate that has compared nothing is not passed."""
        empty = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if empty and self.hollow:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def hollow(self) -> bool:
        """Should something have been compared, and was not?"""
        return not self.ran and not self.config.option.collectonly

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What needs a word besides the failures."""
        if self.hollow:
            title = f"verify-attn: {NOTHING}"
            terminalreporter.section(title, sep="!", red=True, bold=True)
            terminalreporter.line(
                f"none of the {len(self.saved.cases)} cases of {self.path} was selected and run"
            )
        if not self.ran:
            return
        terminalreporter.section("verify-attn compare")
        for case in self.comparison.cases:
            if case.outcome == "new":
                terminalreporter.line(f"new: {case.id}: {case.reason}")
        for note in self.comparison.notes:
            terminalreporter.line(f"note: {note}")
        counts = ", ".join(f"{n} {o}" for o, n in self.comparison.counts.items())
        terminalreporter.line(f"{self.path}: {counts}")


def _figures(verdict: CaseVerdict) -> list[str]:
    """Every figure that the reason does not name."""
    return [text for text in map(str, verdict.changes.values()) if text not in verdict.reason]
