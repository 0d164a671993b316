"""The pytest plugin for times: ``verify_benchmark`` on top of pytest-benchmark, and the gate.

Light to import, since every pytest run of the environment imports it: neither torch nor
pytest-benchmark, which may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from verify_attn.environment import gpus, versions

if TYPE_CHECKING:
    from verify_attn.generate import Case
    from verify_attn.kernels.base import VerifyKernel
    from verify_attn.perf.axes import Cell
    from verify_attn.perf.pedantic import Pedantic
    from verify_attn.perf.tested import Tested

KEY = "verify_attn"  # in pytest-benchmark's files
ALONE = (
    "times are taken one at a time: run perf tests with -n 0 or -p no:xdist, and leave them out of "
    'a parallel run with -m "not perf"'
)
NO_BENCHMARK = (
    "pytest-benchmark is not here: pip install 'verify-attn[perf]', and leave out -p no:benchmark"
)
NO_GPU = (
    "there is no GPU here to take times on: mark the test with pytest.mark.gpu, and it is skipped "
    "where there is none"
)


@dataclass
class Measured:
    """What the session measured.

    ``cases``     by test id, as run records hold them, failures too
    ``about``     the GPU and how it was tested; goes to machine_info
    ``compared``  GPUs of the files given to --benchmark-compare, by machine
    """

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    compared: list[dict[str, Any]] = field(default_factory=list)


MEASURED = pytest.StashKey[Measured]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all of them ``--verify-attn-...``."""
    add = parser.getgroup("verify-attn-perf", "times of tree-verify attention kernels").addoption
    text = "the kernel that speedups are against [triton-unsplit]"
    add("--verify-attn-baseline", default="triton-unsplit", metavar="KERNEL", help=text)
    text = "fail what got worse since this file of --benchmark-save or --benchmark-json"
    add("--verify-attn-compare", type=Path, metavar="FILE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Bad input of the gate ends the session before anything runs."""
    config.stash[MEASURED] = Measured()
    option = config.getoption
    baseline: Path | None = option("verify_attn_compare")
    if baseline is None or hasattr(config, "workerinput"):
        return
    given = "--verify-attn-compare"
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(f"{given}: {NO_BENCHMARK}")
    if option("dist", "no") != "no" or option("numprocesses", None):
        raise pytest.UsageError(f"{given}: {ALONE}")
    disabled = option("benchmark_disable") and not option("benchmark_enable")
    if disabled or (option("benchmark_skip") and not option("benchmark_only")):
        raise pytest.UsageError(
            f"{given} compares times, and none is taken: leave out --benchmark-disable and "
            "--benchmark-skip"
        )
    from verify_attn.pytest_compare import Gate

    config.pluginmanager.register(Gate(config, baseline), "verify-attn-compare")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """So that --benchmark-only and --benchmark-skip know our tests for benchmarks."""
    if config.pluginmanager.hasplugin("benchmark"):
        for item in items:
            names = getattr(item, "fixturenames", [])
            if "verify_benchmark" in names and "benchmark" not in names:
                names.append("benchmark")  # the last: the timer must be chosen before


@pytest.fixture(scope="session")
def verify_attn_device() -> Tested:
    """What times are taken on; the GPU, after its self-test.  Override it for another one."""
    if not gpus():
        pytest.fail(NO_GPU, pytrace=False)
    from verify_attn.perf.tested import believed_cuda_device

    return believed_cuda_device()


@pytest.fixture(scope="session")
def verify_attn_pedantic(request: pytest.FixtureRequest) -> Pedantic:
    """What all times of the session have in common."""
    config = request.config
    if hasattr(config, "workerinput"):
        pytest.fail(ALONE, pytrace=False)
    if not config.pluginmanager.hasplugin("benchmark"):
        pytest.fail(NO_BENCHMARK, pytrace=False)
    tested: Tested = request.getfixturevalue("verify_attn_device")
    from verify_attn.perf.pedantic import Pedantic

    pedantic = Pedantic(tested, config.getoption("verify_attn_baseline"))
    config.stash[MEASURED].about = {
        "identity": tested.device.identity(), "versions": versions(),
        "ceilings": dict(tested.ceilings), "self_test": dict(tested.self_test),
        "baseline": pedantic.baseline.name,
    }  # fmt: skip
    return pedantic


@pytest.fixture
def verify_benchmark(
    request: pytest.FixtureRequest, verify_attn_pedantic: Pedantic
) -> Callable[..., dict[str, Any]]:
    """``verify_benchmark(kernel, problem, part="run")``: checks the kernel, then times it.

    ``kernel``   a built-in's name, ``package.module:name``, or an object
    ``problem``  a ``verify_attn.perf.axes.Cell``, or a ``verify_attn.generate.Case``
    ``part``     ``run``, or ``prepare_run``: host work and the GPU's start are inside

    Fails the test where the kernel is wrong, its time cannot be believed or its interval is wide;
    skips it where the kernel does not declare the problem.  Once a test.  Returns the case.
    """
    from verify_attn.perf.rounds import Clock

    clock, node = Clock(), request.node
    given = node.get_closest_marker("benchmark")
    options = {**(given.kwargs if given else {}), "timer": clock}
    node.add_marker(pytest.mark.benchmark(**options), append=False)  # the first one counts
    benchmark = request.getfixturevalue("benchmark")
    cases = request.config.stash[MEASURED].cases
    called = False

    def measure(
        kernel: str | VerifyKernel, problem: Cell | Case, part: str = "run"
    ) -> dict[str, Any]:
        __tracebackhide__ = True
        nonlocal called
        if called:
            raise RuntimeError(
                "verify_benchmark was called twice: a test has one time, so parametrize it"
            )
        called = True
        case = verify_attn_pedantic.measure(benchmark, clock, kernel, problem, part)
        if benchmark.disabled and case["status"] == "skipped":
            return case
        cases[node.nodeid] = case
        if case["status"] == "skipped":
            pytest.skip(case["reason"])
        if case["status"] != "pass":
            pytest.fail(f"{case['id']}: {case['status']}: {case['reason']}", pytrace=False)
        return case

    return measure


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """The GPU, which pytest-benchmark knows nothing of."""
    if about := config.stash[MEASURED].about:
        machine_info[KEY] = about


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, compared_benchmark: dict[str, Any]
) -> None:
    """pytest-benchmark compares machines before any GPU was looked at, and would always warn."""
    about = compared_benchmark.get("machine_info", {}).pop(KEY, {})
    config.stash[MEASURED].compared.append(about.get("identity", {}))


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark, which may raise there
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Times of another GPU stand in pytest-benchmark's table like any other's."""
    measured = config.stash[MEASURED]
    now = measured.about.get("identity", {})
    for then in measured.compared:
        differ = [k for k in now if now[k] != then.get(k)]
        if differ:
            told = ", ".join(f"{k} {then.get(k, 'not told')} -> {now[k]}" for k in differ)
            terminalreporter.line(
                f"verify-attn: --benchmark-compare is with another GPU's times ({told})",
                yellow=True,
            )
