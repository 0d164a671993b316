"""verify_benchmark and the gate, in pytests of their own, on a device that follows a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

# Imported here, they are not imported anew by each of the pytests below.
import tests.perf.scripted  # noqa: F401
import verify_attn.perf.pedantic
import verify_attn.pytest_compare  # noqa: F401
from verify_attn.generate import Case
from verify_attn.perf.bench import LEAST_ROUNDS, MOST_ROUNDS
from verify_attn.perf.own_case import cell_of

pytest.importorskip("pytest_benchmark")

CONFTEST = """
import json, pathlib
import pytest
from tests.perf.scripted import IDENTITY, ScriptedDevice
from verify_attn.perf.roofline import Rates
from verify_attn.perf.tested import Tested

HERE = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def verify_attn_device():
    told = json.loads((HERE / "script.json").read_text())

    def script(name, number):
        kernel, _, rest = name.partition(" | ")
        with open(HERE / "order", "a") as file:
            print(kernel, rest.split()[-1], file=file)
        seconds = float(told["seconds"][kernel])
        if number >= told.get("from", {}).get(kernel, 1 << 30):
            seconds = float(told["then"])
        jitter = told.get("jitter", 0.001) * ((number * 7) % 5 - 2)
        return seconds * (1 + jitter) * (1.5 if rest.endswith("prepare_run") else 1)

    device = ScriptedDevice(script, IDENTITY | told.get("identity", {}))
    rates = Rates(told.get("rate", 1.0), 1.0, "scripted")
    return Tested(device, rates, {"copy_gb_per_s": 1.0}, {"timers": {"events": {}}})

@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info():
    return {"node": "here"}  # reading the CPU's takes a second
"""
MINE = """
from verify_attn.kernels.base import declare
from verify_attn.kernels.torch_kernel import torch_verify

def base(batch, out, lse):
    torch_verify(batch, out, lse)

def fast(batch, out, lse):
    torch_verify(batch, out, lse)

def wrong(batch, out, lse):
    torch_verify(batch, out, lse)
    out.mul_(1.5)

kept = {}
def cheat(batch, out, lse):
    torch_verify(batch, out, lse)
    known = kept.setdefault(batch.q.data_ptr(), (out.clone(), lse.clone()))
    out.copy_(known[0])
    lse.copy_(known[1])

calls = []
def tired(batch, out, lse):
    torch_verify(batch, out, lse)
    calls.append(1)
    if len(calls) > 30:
        raise SystemExit(3)

def early(batch, out, lse):
    torch_verify(batch, out, lse)
    calls.append(1)
    if len(calls) > 5:
        raise SystemExit(3)

class Fresh:
    # Works only where its prepare was just called.
    fresh = True
    def prepare(self, batch, plan):
        self.fresh = True
    def run(self, batch, plan, out, lse):
        if self.fresh:
            torch_verify(batch, out, lse)
        self.fresh = False

@declare(page_sizes=(64,))
def picky(batch, out, lse):
    torch_verify(batch, out, lse)
"""
TESTS = """
import pytest
from verify_attn.perf.axes import Cell

CELL = Cell(context=40, nodes=5, heads=4, geometry="tiny", dtype="float32")

@pytest.mark.perf
@pytest.mark.parametrize("kernel", KERNELS)
def test_it(verify_benchmark, kernel):
    verify_benchmark(f"mine:{kernel}", CELL, PART)
"""
QUICK = ("fast", "cheat", "Fresh", "tired", "early", "picky", "wrong")
SECONDS = {f"mine:{k}": 1e-3 for k in QUICK}
SECONDS |= {"mine:base": 4e-3}
SAVED: dict[tuple[str, ...], bytes] = {}
FAST = "test_inner.py::test_it[fast]"


class Inner:
    """A directory with kernels, tests and the script of their times."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = Path(pytester.path)
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(mine=MINE)
        self.tests()
        self.script()

    def tests(self, *kernels: str, part: str = "run", more: str = "", **files: str) -> None:
        """Write the tests."""
        text = TESTS.replace("KERNELS", repr(list(kernels or ("fast",))))
        self.pytester.makepyfile(test_inner=text.replace("PART", repr(part)) + more, **files)

    def script(self, seconds: dict[str, Any] | None = None, **told: Any) -> None:
        """Write the times."""
        told["seconds"] = SECONDS | (seconds or {})
        (self.path / "script.json").write_text(json.dumps(told))

    def __call__(self, *args: str) -> pytest.RunResult:
        """Run pytest, strict."""
        options = (
            "--strict-markers", "-W", "error", "-p", "no:cacheprovider",
            "--verify-attn-baseline", "mine:base",
        )  # fmt: skip
        return self.pytester.runpytest_inprocess(*options, *args)

    def saved(self, *args: str) -> tuple[Path, dict[str, Any]]:
        """Run, save, read."""
        path = self.path / "saved.json"
        result = self(f"--benchmark-json={path}", *args)
        assert result.ret == 0
        return path, json.loads(path.read_text())

    def baseline(self, *kernels: str) -> Path:
        """A run saved before; measured once for all tests."""
        path = self.path / "saved.json"
        if kernels not in SAVED:
            self.tests(*kernels)
            SAVED[kernels] = self.saved()[0].read_bytes()
            (self.path / "order").unlink()
            self.tests()
        path.write_bytes(SAVED[kernels])
        return path

    def compared(self, baseline: Path, *args: str) -> pytest.RunResult:
        """Run with the gate."""
        return self(f"--verify-attn-compare={baseline}", "--junit-xml=junit.xml", *args)

    @property
    def junit(self) -> dict[str, str]:
        """Name of each test in the JUnit file -> its failure, or nothing."""
        found = {}
        for case in ElementTree.parse(self.path / "junit.xml").iter("testcase"):
            failure = case.find("failure")
            found[case.attrib["name"]] = "" if failure is None else failure.attrib["message"]
        return found


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, str(pytester.path)]))
    return Inner(pytester)


# -- a time --------------------------------------------------------------------------------------


def test_what_a_saved_run_holds(inner: Inner) -> None:
    _, data = inner.saved()
    (bench,) = data["benchmarks"]
    ours, metrics = bench["extra_info"], bench["extra_info"]["verify_attn"]["metrics"]
    assert bench["fullname"] == FAST
    assert LEAST_ROUNDS <= bench["stats"]["rounds"] == metrics["samples"] <= MOST_ROUNDS
    assert bench["stats"]["median"] == pytest.approx(1e-3, rel=0.01)
    assert metrics["run_ms"] == bench["stats"]["median"] * 1e3  # nothing else is in the time
    assert ours["speedup"] == metrics["speedup"] == pytest.approx(4, rel=0.01)
    assert ours["gb_per_s"] == metrics["gb_per_s"]
    assert ours["share_of_limit"] == metrics["limit_share"]
    assert ours["method"] == "events, L2 flushed by the script, GPU time alone"
    assert set(ours["verify_attn"]) == {"parameters", "metrics", "methods", "notes"}
    assert ours["verify_attn"]["parameters"]["kernel"] == "mine:fast"
    assert bench["options"]["timer"] == "device_clock"
    about = data["machine_info"]["verify_attn"]
    assert about["identity"]["name"] == "Scripted GPU"
    assert about["ceilings"] == {"copy_gb_per_s": 1.0}
    assert about["self_test"] == {"timers": {"events": {}}}
    assert about["baseline"] == "mine:base"
    assert "torch" in about["versions"]


def test_prepare_and_run_apart_from_run(inner: Inner) -> None:
    inner.tests(part="prepare_run")
    _, data = inner.saved()
    (bench,) = data["benchmarks"]
    metrics = bench["extra_info"]["verify_attn"]["metrics"]
    assert bench["stats"]["median"] == pytest.approx(1.5e-3, rel=0.01)
    assert metrics["prepare_run_ms"] == bench["stats"]["median"] * 1e3
    assert metrics["run_ms"] == pytest.approx(1, rel=0.01)
    assert bench["extra_info"]["method"].endswith("host time inside")


def test_no_time_of_run_beside_another_that_is_wrong(inner: Inner) -> None:
    inner.tests("Fresh", part="prepare_run")
    result = inner()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the answer of a timed call is wrong*"])


def test_the_baseline_takes_turns_and_neither_always_goes_first(inner: Inner) -> None:
    inner.saved()
    order = [line.split()[0] for line in (inner.path / "order").read_text().splitlines()]
    rounds = order[2 * LEAST_ROUNDS :]  # after the pilot
    pairs = list(zip(rounds[::2], rounds[1::2], strict=True))
    assert set(pairs) == {("mine:fast", "mine:base"), ("mine:base", "mine:fast")}
    assert abs(pairs.count(pairs[0]) - len(pairs) / 2) <= 1


def test_the_baseline_itself_and_a_failing_one_give_no_speedup(inner: Inner) -> None:
    inner.tests("base", "fast")
    inner.script({"mine:base": 4e-3}, **{"from": {"mine:base": 60}, "then": "nan"})
    _, data = inner.saved()
    base, fast = (bench["extra_info"] for bench in data["benchmarks"])
    assert "speedup" not in base
    assert "speedup" not in fast
    assert any("no speedup: mine:base" in note for note in fast["verify_attn"]["notes"])


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ("wrong", "*fail: the kernel differs from the reference: * of out, the first at*"),
        ("cheat", "*fail: the answer of a timed call is wrong*"),
        ("tired", "*error: the kernel raised while it was timed*"),
        ("early", "*error: the kernel raised while it was timed*"),
    ],
)
def test_no_time_for_a_kernel_that_fails(inner: Inner, kernel: str, told: str) -> None:
    inner.tests(kernel, "fast")
    result = inner("--benchmark-json=saved.json")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line(f"test_it?{kernel}? * *")
    (bench,) = json.loads((inner.path / "saved.json").read_text())["benchmarks"]
    assert bench["name"] == "test_it[fast]"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ({"seconds": {"mine:fast": "nan"}}, "*error: a time of nan s*"),
        ({"from": {"mine:fast": 20}, "then": "nan"}, "*error: a time of nan s*"),
        ({"from": {"mine:fast": 20}, "then": 0}, "*error: a time of 0.0 s*"),
        ({"rate": 1e-9}, "*error: *times the ceiling*"),
        ({"jitter": 0.2}, "*inconclusive: the interval of run is wider than 5%*"),
    ],
)
def test_times_that_are_none(inner: Inner, script: dict[str, Any], told: str) -> None:
    inner.script(**script)
    result = inner("--benchmark-json=saved.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])
    assert json.loads((inner.path / "saved.json").read_text())["benchmarks"] == []


def test_what_a_kernel_does_not_declare_is_skipped(inner: Inner) -> None:
    inner.tests("picky")
    result = inner("-rs", "--benchmark-json=saved.json")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*page sizes*"])
    assert json.loads((inner.path / "saved.json").read_text())["benchmarks"] == []


USAGE = """
def test_part(verify_benchmark):
    verify_benchmark("mine:fast", CELL, "prepare")

def test_kernel(verify_benchmark):
    verify_benchmark("mine:none", CELL)

def test_problem(verify_benchmark):
    verify_benchmark("mine:fast", 7)

def test_twice(verify_benchmark):
    verify_benchmark("mine:fast", CELL)
    verify_benchmark("mine:fast", CELL)

@pytest.mark.parametrize("cell", [CELL], ids=["cell"])
def test_cell(verify_benchmark, cell):
    verify_benchmark("mine:fast", cell)

@pytest.mark.benchmark(group="mine")
def test_group(verify_benchmark, benchmark):
    assert benchmark.group == "mine"
    verify_benchmark("mine:fast", CELL)

def test_other_timer(benchmark, verify_benchmark):
    verify_benchmark("mine:fast", CELL)

def test_case(verify_benchmark):
    from verify_attn.generate import Case
    case = verify_benchmark("mine:fast", Case(((9, "chain:3"), (8, "star:4")), shared_pages=1))
    assert case["parameters"]["requests"] == 2
"""


def test_use_and_misuse(inner: Inner) -> None:
    inner.tests(more=USAGE)
    result = inner(
        "-k", "not test_it", "--benchmark-json=saved.json", "--benchmark-cprofile=cumtime"
    )
    result.assert_outcomes(failed=5, passed=3, deselected=1)
    result.stdout.fnmatch_lines_random(
        [
            "*ValueError: part is 'prepare'; it must be one of run, prepare_run",
            "*KernelError: 'mine:none': no 'none' in mine*",
            "*RuntimeError: verify_benchmark was called twice*",
            "*TypeError: 7 is no problem; give a Cell or a Case",
            "*error: pytest-benchmark took its times from another timer*",
        ]
    )
    data = json.loads((inner.path / "saved.json").read_text())
    assert [bench["name"] for bench in data["benchmarks"]] == [
        "test_twice", "test_cell[cell]", "test_group", "test_case",
    ]  # fmt: skip


def test_a_case_is_told_as_what_it_is() -> None:
    case = Case(((9, "chain:3"), (8, "star:4")), geometry="tiny/2", shared_pages=1)
    cell = cell_of(case)
    assert cell.case() == case
    assert (cell.context, cell.nodes, cell.requests, cell.heads) == (9, 4, 2, 2)
    assert (cell.geometry, cell.tree) == ("tiny", "chain:3, star:4")


# -- pytest-benchmark as people know it ----------------------------------------------------------


def test_benchmark_compare(inner: Inner) -> None:
    assert inner("--benchmark-save=first").ret == 0
    result = inner("--benchmark-compare=0001", "--benchmark-compare-fail=median:5%")
    result.stdout.fnmatch_lines(["test_it?fast? (*0001_first)*"])
    assert result.ret == 0
    inner.script({"mine:fast": 2e-3}, identity={"name": "Other GPU"})
    result = inner("--benchmark-compare=0001", "--benchmark-compare-fail=median:5%")
    told = "verify-attn: --benchmark-compare is with another GPU's times (name Scripted*Other GPU)"
    result.stdout.fnmatch_lines([told])
    assert result.ret != 0


def test_only_skip_and_disable(inner: Inner) -> None:
    inner.tests("fast", "wrong", more="\ndef test_plain(): pass\n")
    inner("--benchmark-only").assert_outcomes(passed=1, failed=1, skipped=1)
    inner("--benchmark-skip").assert_outcomes(passed=1, skipped=2)
    (inner.path / "order").unlink()
    inner("--benchmark-disable").assert_outcomes(passed=2, failed=1)  # checked all the same
    assert not (inner.path / "order").exists()


def test_without_pytest_benchmark(inner: Inner) -> None:
    result = inner("-p", "no:benchmark")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pytest-benchmark is not here: pip install*"])


def test_without_a_gpu(inner: Inner) -> None:
    (inner.path / "conftest.py").unlink()
    result = inner()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["there is no GPU here*mark the test with pytest.mark.gpu*"])


TORCHLESS = """
def test_it(verify_benchmark): pass
def test_plain():
    import sys
    assert not {"torch", "triton"} & set(sys.modules)
"""


def test_under_xdist(inner: Inner) -> None:
    path = inner.baseline()
    inner.pytester.makeconftest("")
    inner.pytester.makepyfile(test_inner=TORCHLESS)
    quiet = ("-W", "ignore:Benchmarks are automatically disabled")
    result = inner(*quiet, "-n", "2")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["times are taken one at a time: run perf tests with -n 0*"])
    assert result.ret == 1
    result = inner.compared(path, "-n", "2")
    result.stderr.fnmatch_lines(["*--verify-attn-compare: times are taken one at a time*"])
    assert result.ret == 4
    inner.pytester.makeconftest(CONFTEST)
    inner.tests()
    assert inner("-n", "0").ret == 0


def test_it_is_light_to_import() -> None:
    code = (
        "import sys, verify_attn.pytest_perf, verify_attn.pytest_compare\n"
        "heavy = {'torch', 'triton', 'numpy', 'pytest_benchmark', 'pynvml'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# -- the gate ------------------------------------------------------------------------------------


def test_the_same_again(inner: Inner) -> None:
    path = inner.baseline()
    inner.tests("fast", "base")
    result = inner.compared(path, "-v", "--benchmark-only")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "test_inner.py::test_it?base? PASSED*",
            f"verify-attn-compare::compare[[]{FAST.replace('[', '[[]')}] SAME*",
            "new: test_inner.py::test_it?base?: the baseline has no such case",
            "*saved.json: 1 same, 1 new",
        ]
    )
    assert inner.junit[f"compare[{FAST}]"] == ""
    properties = ElementTree.parse(inner.path / "junit.xml").iter("property")
    told = {p.attrib["name"]: p.attrib["value"] for p in properties}
    assert told["verify-attn-compare"] == "same"
    assert "GB/s" in told["verify-attn-compare-figures"]
    assert result.ret == 0


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(1.2e-3, "worse"), (0.8e-3, ""), (1.05e-3, "unclear")]
)
def test_a_change(inner: Inner, seconds: float, outcome: str) -> None:
    path = inner.baseline()
    inner.script({"mine:fast": seconds})
    result = inner.compared(path)
    result.assert_outcomes(passed=1 if outcome else 2, failed=1 if outcome else 0)
    message = inner.junit[f"compare[{FAST}]"]
    assert message.startswith(f"{outcome}: {FAST}: run 1.000 -> " if outcome else "")
    assert bool(message) == bool(outcome)
    assert inner.junit["test_it[fast]"] == ""
    assert result.ret == bool(outcome)


def test_thresholds_of_pyproject(inner: Inner) -> None:
    path = inner.baseline()
    inner.script({"mine:fast": 1.2e-3})
    pyproject = inner.path / "pyproject.toml"
    pyproject.write_text(f"[tool.verify-attn.compare.cases]\n'{FAST}' = 0.5\n")
    assert inner.compared(path).ret == 0
    pyproject.write_text("[tool.verify-attn.compare]\nthreshhold = 0.5\n")
    result = inner.compared(path)
    result.stderr.fnmatch_lines(["*--verify-attn-compare: *unknown key 'threshhold'*"])
    assert result.ret == 4


def test_a_vanished_and_a_renamed_case(inner: Inner) -> None:
    path = inner.baseline("fast", "base")
    inner.tests("fast")
    result = inner.compared(path, "--benchmark-only")
    result.assert_outcomes(passed=2, failed=1)
    assert "missing" in inner.junit["compare[test_inner.py::test_it[base]]"]
    (inner.path / "test_inner.py").rename(inner.path / "test_other.py")
    result = inner.compared(path)
    result.assert_outcomes(passed=1, failed=2)
    message = inner.junit[f"compare[{FAST}]"]
    assert message.startswith("renamed")
    assert "test_other.py::test_it[fast]" in message
    assert result.ret == 1


def test_another_gpu(inner: Inner) -> None:
    path = inner.baseline()
    inner.script(identity={"power_limit_w": 500.0})
    result = inner.compared(path)
    result.assert_outcomes(passed=1, failed=1)
    assert "not the same GPU (power_limit_w 700.0 -> 500.0)" in inner.junit[f"compare[{FAST}]"]
    assert result.ret == 1


def test_a_kernel_that_is_wrong_now(inner: Inner) -> None:
    path = inner.baseline()
    inner.script({"mine:fast": "nan"})
    inner.compared(path).assert_outcomes(failed=2)
    assert "failed: " in inner.junit[f"compare[{FAST}]"]
    assert "a time of nan s" in inner.junit[f"compare[{FAST}]"]


def test_a_run_without_a_time(inner: Inner) -> None:
    path = inner.baseline()
    inner.tests(more="\n@pytest.mark.gpu\ndef test_gpu(verify_benchmark): pass\n")
    result = inner.compared(path, "-m", "gpu")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["*verify-attn: nothing was compared*"])
    assert result.ret == 1
    inner.pytester.makepyfile(test_inner="")
    result = inner.compared(path)
    result.assert_outcomes(failed=1)
    assert "missing" in inner.junit[f"compare[{FAST}]"]


def test_skipped_for_want_of_a_gpu_is_missing(inner: Inner) -> None:
    path = inner.baseline()
    tests = (inner.path / "test_inner.py").read_text()
    (inner.path / "test_inner.py").write_text(tests.replace("mark.perf\n", "mark.gpu\n"))
    result = inner.compared(path, "-m", "gpu")
    result.assert_outcomes(skipped=1, failed=1)
    assert result.ret == 1


def test_selection(inner: Inner) -> None:
    path = inner.baseline("fast", "base")
    inner.tests("fast", "base")
    inner.compared(path, "-k", "fast").assert_outcomes(passed=2, deselected=2)
    inner.tests("fast")
    inner.compared(path, "-k", "fast").assert_outcomes(passed=2, deselected=1)
    result = inner.compared(path, "-k", "base")  # vanished, and asked for
    result.assert_outcomes(failed=1, deselected=2)
    inner.compared(path, "-m", "gpu or perf").assert_outcomes(passed=2, failed=1)
    result = inner.compared(path, "-m", "not perf")
    result.stdout.fnmatch_lines(["none of the 2 cases of *saved.json was selected and run"])
    assert result.ret == 1
    result = inner.compared(path, "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["verify-attn-compare::compare*base*"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no record at*"),
        ("{", "*is no record*"),
        ('{"benchmarks": [], "machine_info": {}}', "*holds no case to compare with"),
        ('{"benchmarks": [{"fullname": "a", "extra_info": {}}]}', "*host times only*"),
        (
            '{"schema_version": 1, "command": "verify-attn bench", "environment": {}, "cases": []}',
            "*is a record of verify-attn bench*",
        ),
        ('{"benchmarks": [{"fullname": "a", "extra_info": {"verify_attn": {"metrics": {"run_ms": '
         'NaN}}}}]}', "*is nan*"),
    ],
)  # fmt: skip
def test_a_baseline_that_is_none(inner: Inner, content: str | None, told: str) -> None:
    path = inner.path / "bad.json"
    if content is not None:
        path.write_text(content)
    result = inner(f"--verify-attn-compare={path}")
    result.stderr.fnmatch_lines([f"*--verify-attn-compare: {told}"])
    assert result.ret == 4
    assert not (inner.path / "order").exists()


def test_no_times_to_compare_and_a_baseline_written_over(inner: Inner) -> None:
    path = inner.baseline()
    before = path.read_bytes()
    for option in (
        "--benchmark-disable", "--benchmark-skip", "-pno:benchmark", f"--benchmark-json={path}",
    ):  # fmt: skip
        assert inner.compared(path, option).ret == 4
    assert path.read_bytes() == before
