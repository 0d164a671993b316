"""The pytest plugin: the checks as tests, and honesty about GPUs.

Light to import, since every pytest run of the environment imports it: neither torch nor CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from verify_attn.environment import gpus, summary

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
    add("--verify-attn-time-limit", type=float, default=120.0, metavar="SECONDS", help=text)
    text = "fail unless at least N (1) GPU tests passed; give N with an ="
    add("--verify-attn-require-gpu", nargs="?", type=_positive, const=1, metavar="N", help=text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(f"{text} is not a whole number from 1 up")
    return value


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
    entries = [str(i) for i in range(count)] if visible is None else visible.split(",")
    return entries[worker % count].strip()


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


class GpuCount:
    """Counts GPU tests, and keeps a run without any from looking like one with."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.passed = 0
        self.skipped = 0
        self.required: int | None = config.getoption("verify_attn_require_gpu")

    @property
    def asked_for(self) -> bool:
        """Were GPU tests selected by ``-m``?"""
        expression = str(self.config.getoption("markexpr", ""))
        return "gpu" in expression.split() and "not gpu" not in expression

    @property
    def too_few(self) -> bool:
        """Fewer than --verify-attn-require-gpu asks for."""
        return self.required is not None and self.passed < self.required

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the controller for every worker's reports too."""
        if "gpu" in report.keywords:
            self.passed += report.when == "call" and report.passed
            self.skipped += report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn a hollow success into a failure; a worker's session is not the whole."""
        if hasattr(self.config, "workerinput") or session.config.option.collectonly:
            return
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if self.too_few:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif self.asked_for and not self.passed:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say loudly what was not tested."""
        if self.config.option.collectonly:
            return
        if self.too_few:
            terminalreporter.section("verify-attn: too few GPU tests", sep="!", red=True, bold=True)
            terminalreporter.line(
                f"{self.passed} GPU tests passed and {self.skipped} were skipped; "
                f"--verify-attn-require-gpu asks for {self.required}. {summary()}"
            )
        elif self.asked_for and not self.passed:
            terminalreporter.section(
                "verify-attn: nothing was tested on a GPU", sep="!", red=True, bold=True
            )
            terminalreporter.line(f"{self.skipped} GPU tests were skipped. {summary()}")
