"""The pytest plugin: the checks as tests, and honesty about GPUs.

Light to import, since every pytest run of the environment imports it: neither torch nor CUDA.
"""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from verify_attn.environment import gpus, summary, visible_entries

if TYPE_CHECKING:
    from verify_attn.conformance.pool import Pool

MARKERS = (
    "gpu: needs a GPU; skipped, loudly, where there is none",
    "perf: measures time; runs alone on the GPU",
    "e2e: talks to a live server",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all of them ``--verify-attn-...``."""
    add = parser.getgroup("verify-attn", "checks of tree-verify attention kernels").addoption
    text = "kernel to check, package.module:name or a built-in; repeat for several"
    add("--verify-attn-kernel", action="append", default=[], metavar="KERNEL", help=text)
    text = "cases for each kernel and check [100; 6 without a GPU]"
    add("--verify-attn-examples", type=_positive, metavar="N", help=text)
    add("--verify-attn-seed", type=int, default=0, metavar="N", help="of the cases [0]")
    text = "of one check on one case [120]"
    add("--verify-attn-time-limit", type=_seconds, default=120.0, metavar="SECONDS", help=text)
    text = "fail unless at least N (1) GPU tests passed; give N with an ="
    add("--verify-attn-require-gpu", nargs="?", type=_positive, const=1, metavar="N", help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no time above 0 s")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Give each xdist worker one GPU, before anything can reach CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw"):
        devices = own_device(int(worker[2:]), os.environ.get("CUDA_VISIBLE_DEVICES"), len(gpus()))
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices


def own_device(worker: int, visible: str | None, count: int) -> str | None:
    """The CUDA_VISIBLE_DEVICES of an xdist worker: one entry of the caller's list.

    ``visible`` is the caller's variable, ``count`` the GPUs it leaves; None: leave it alone.
    """
    if count == 0:
        return None
    entries = [str(i) for i in range(count)] if visible is None else visible_entries(visible)
    return entries[worker % count]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Markers, hypothesis profiles and the counter of GPU tests."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    _register_profiles()
    config.pluginmanager.register(GpuCount(config), "verify-attn-gpu-count")


def _register_profiles() -> None:
    from hypothesis import settings

    # No deadline, since a first call compiles; new cases every time, also where CI is set (the
    # automatic profile there would run the same ones for ever).
    settings.register_profile("verify-attn", deadline=None, derandomize=False, print_blob=True)
    settings.register_profile(
        "verify-attn-ci", deadline=None, derandomize=False, database=None, print_blob=True
    )


def pytest_report_header() -> str:
    """GPU, driver, and whether Triton compiles or interprets."""
    return f"verify-attn: {summary()}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a kernel and check, for whatever asks for ``verify_attn_kernel``."""
    if "verify_attn_kernel" not in metafunc.fixturenames:
        return
    from verify_attn.conformance import CHECK_NAMES
    from verify_attn.kernels.builtin import BUILTIN

    kernels = metafunc.config.getoption("verify_attn_kernel") or list(BUILTIN)
    marks = [pytest.mark.gpu] if gpus() else []
    pairs = [(k, c) for k in dict.fromkeys(kernels) for c in CHECK_NAMES]
    metafunc.parametrize(
        ("verify_attn_kernel", "verify_attn_check"),
        [pytest.param(k, c, marks=marks, id=f"{k}-{c}") for k, c in pairs],
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A GPU test without a GPU is skipped; `GpuCount` says so in the end."""
    if item.get_closest_marker("gpu") and not gpus():
        pytest.skip("needs a GPU, and there is none here")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell by the marker whether a report is a GPU test's: a directory may be called gpu too."""
    report = yield
    report.__dict__["verify_attn_gpu"] = item.get_closest_marker("gpu") is not None
    return report


@pytest.fixture(scope="session")
def verify_attn_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One worker process for all checks of the session, so that a crash stays one crash."""
    from verify_attn.conformance.pool import Pool

    with closing(Pool(1, request.config.getoption("verify_attn_time_limit"))) as pool:
        yield pool


@pytest.fixture
def verify_attn_examples(request: pytest.FixtureRequest) -> int:
    """Cases a test."""
    given: int | None = request.config.getoption("verify_attn_examples")
    return given or (100 if gpus() else 6)


def asks_for_gpu(expression: str) -> bool:
    """Does a ``-m`` expression name ``gpu`` other than to leave it out?"""

    def wanted(node: ast.expr, sign: bool) -> bool:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return wanted(inner, not sign)
            case ast.BoolOp(values=parts):
                return any(wanted(part, sign) for part in parts)
            case ast.Call(func=inner):  # gpu(...): a marker with those arguments
                return wanted(inner, sign)
            case ast.Name(id="gpu"):
                return sign
        return False

    try:
        return wanted(ast.parse(expression.strip(), mode="eval").body, True)
    except SyntaxError:  # pytest has its own words for it
        return False


class GpuCount:
    """Counts GPU tests, and keeps a run without any from looking like one with."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # Node ids: subtests and reruns report more than once.
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.required: int | None = config.getoption("verify_attn_require_gpu")

    @property
    def asked_for(self) -> bool:
        """Were GPU tests selected by ``-m``?"""
        return asks_for_gpu(str(self.config.getoption("markexpr", "")))

    @property
    def too_few(self) -> bool:
        """Fewer than --verify-attn-require-gpu asks for."""
        return self.required is not None and len(self.passed) < self.required

    @property
    def hollow(self) -> bool:
        """GPU tests were asked for and none ran."""
        return self.asked_for and not self.passed and not self.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the controller for every worker's reports too."""
        if not getattr(report, "verify_attn_gpu", False):
            return
        if report.skipped:
            self.skipped.add(report.nodeid)
        elif report.when == "call":
            (self.passed if report.passed else self.failed).add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn a hollow success into a failure; a worker's session is not the whole."""
        if hasattr(self.config, "workerinput") or session.config.option.collectonly:
            return
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if self.too_few:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self.hollow:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say loudly what was not tested."""
        if self.config.option.collectonly:
            return
        if self.too_few:
            terminalreporter.section("verify-attn: too few GPU tests", sep="!", red=True, bold=True)
            terminalreporter.line(
                f"{len(self.passed)} GPU tests passed and {len(self.skipped)} were skipped; "
                f"--verify-attn-require-gpu asks for {self.required}. {summary()}"
            )
        elif self.hollow:
            terminalreporter.section(
                "verify-attn: nothing was tested on a GPU", sep="!", red=True, bold=True
            )
            terminalreporter.line(f"{len(self.skipped)} GPU tests were skipped. {summary()}")
