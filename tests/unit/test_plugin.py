"""The pytest plugin, run in pytests of its own."""

import os

import pytest

from tests.unit.user_kernels import USER
from verify_attn.conformance import CHECK_NAMES
from verify_attn.pytest_plugin import asks_for_gpu

TESTS = """
import pytest

@pytest.mark.gpu
def test_on_gpu(): pass

@pytest.mark.gpu
@pytest.mark.perf
def test_timed(): pass

@pytest.mark.e2e
def test_server(): pass

def test_plain(): pass
"""
# A plugin, loaded before xdist workers choose their GPU.
FAKE = """
import os
import verify_attn.pytest_plugin as plugin
from verify_attn.environment import Gpu, _visible

def gpus():
    found = [Gpu(i, "Fake", f"GPU-{i}", "1", "9.0", 1, None, None, None, None) for i in range(4)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else _visible(found, visible)

plugin.gpus = gpus
plugin.summary = lambda: "4 fakes"
"""
NOTHING = "*verify-attn: nothing was tested on a GPU*"
TOO_FEW = "*verify-attn: too few GPU tests*"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run an inner pytest, strict and with warnings as errors; ``fake``: with four GPUs."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # no GPU, wherever this runs
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    pytester.makepyfile(fakegpus=FAKE, mine=USER)

    def start(*args, fake=False, tests=TESTS):
        if fake:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
            args = ("-p", "fakegpus", *args)
        if tests:
            pytester.makepyfile(test_inner=tests)
        # pytest-benchmark, where it is installed, warns under xdist
        options = (
            "--strict-markers",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:benchmark",
        )
        return pytester.runpytest_subprocess(*options, *args)

    return start


@pytest.mark.parametrize(
    ("expression", "asks"),
    [
        ("gpu", True), ("(gpu)", True), ("gpu and not perf", True), ("perf or gpu", True),
        ("not (perf or not gpu)", True), (" gpu ", True), ("gpu(kind='x')", True),
        ("", False), ("not gpu", False), ("not (gpu)", False), ("not (gpu or perf)", False),
        ("perf", False), ("not not gpu", True), ("gpu_slow", False), ("gpu and", False),
        ("e2e and not gpu", False),
    ],
)  # fmt: skip
def test_asks_for_gpu(expression, asks):
    assert asks_for_gpu(expression) is asks


# -- a run without a GPU -------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_only_gpu_tests_without_a_gpu(run, workers):
    result = run("-m", "gpu", *workers)
    result.assert_outcomes(skipped=2, deselected=0 if workers else 2)
    result.stdout.fnmatch_lines([NOTHING, "2 GPU tests were skipped. no GPU;*"])
    assert result.ret == 5


def test_header_and_a_run_of_everything(run):
    result = run("-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["verify-attn: no GPU;*", "*needs a GPU, and there is none here*"])
    result.stdout.no_fnmatch_line(NOTHING)
    assert result.ret == 0


@pytest.mark.parametrize("expression", ["not gpu", "not (gpu)", "not (gpu or perf)", "e2e"])
def test_other_selections_are_left_alone(run, expression):
    result = run("-m", expression)
    result.stdout.no_fnmatch_line(NOTHING)
    assert result.ret == 0


@pytest.mark.parametrize("args", [("-m", "gpu"), ("--verify-attn-require-gpu",)])
def test_collecting_is_left_alone(run, args):
    result = run("--collect-only", "-q", *args)
    result.stdout.fnmatch_lines(["*test_on_gpu*"])
    result.stdout.no_fnmatch_line("*verify-attn: *GPU*!*")
    assert result.ret == 0


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize("tests", [TESTS, TESTS.partition("@pytest.mark.e2e")[0]])
def test_required_gpu_tests_that_were_all_skipped(run, workers, tests):
    result = run("--verify-attn-require-gpu", *workers, tests=tests)
    result.stdout.fnmatch_lines([TOO_FEW, "0 GPU tests passed and 2 were skipped; *asks for 1.*"])
    assert result.ret == 1


def test_required_gpu_tests_where_there_is_none_to_select(run):
    assert run("--verify-attn-require-gpu", tests="def test_plain(): pass").ret == 1
    assert run("--verify-attn-require-gpu", "-k", "nothing").ret == 1


def test_a_failure_stays_a_failure(run):
    tests = TESTS + "\ndef test_bad(): assert False\n"
    assert run("-m", "gpu or not gpu", tests=tests).ret == 1


# -- a run with GPUs -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
@pytest.mark.parametrize(("required", "code"), [("=1", 0), ("=2", 0), ("=3", 1), ("", 0)])
def test_required_gpu_tests_with_gpus(run, workers, required, code):
    result = run(f"--verify-attn-require-gpu{required}", "-m", "gpu", *workers, fake=True)
    result.assert_outcomes(passed=2, deselected=0 if workers else 2)
    (result.stdout.fnmatch_lines if code else result.stdout.no_fnmatch_line)(
        [TOO_FEW] if code else TOO_FEW
    )
    result.stdout.no_fnmatch_line(NOTHING)
    assert result.ret == code


def test_failing_on_a_gpu_is_not_testing_nothing(run):
    tests = "import pytest\n@pytest.mark.gpu\ndef test_bad(): assert False\n"
    result = run("-m", "gpu", fake=True, tests=tests)
    result.stdout.no_fnmatch_line(NOTHING)
    assert result.ret == 1


def test_a_directory_called_gpu_makes_no_gpu_test(run, pytester):
    inner = pytester.mkdir("gpu")
    (inner / "test_there.py").write_text("class Testgpu:\n    def test_gpu(self): pass\n")
    result = run("--verify-attn-require-gpu", "gpu", tests=None)
    result.stderr.fnmatch_lines(["*not a whole number from 1 up*"])  # 'gpu' was taken for N
    assert result.ret == 4
    result = run("--verify-attn-require-gpu=1", "gpu", tests=None)
    result.assert_outcomes(passed=1)
    assert result.ret == 1


def test_each_worker_has_a_gpu_of_the_callers(run, monkeypatch):
    tests = """
        import os, pytest
        @pytest.mark.parametrize("n", range(4))
        def test_env(n):
            mine = {"gw0": "3", "gw1": "1"}[os.environ["PYTEST_XDIST_WORKER"]]
            assert os.environ["CUDA_VISIBLE_DEVICES"] == mine
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    result = run("-p", "fakegpus", "-n", "2", tests=tests)
    result.assert_outcomes(passed=4)


# -- options, profiles, the suite ----------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    ["examples=0", "examples=x", "require-gpu=0", "require-gpu=-1", "time-limit=0",
     "time-limit=nan", "time-limit=x", "seed=x"],
)  # fmt: skip
def test_bad_options(run, option):
    result = run(f"--verify-attn-{option}")
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*--verify-attn-{option.partition('=')[0]}*"])
    assert "_positive" not in result.stderr.str()


def test_hypothesis_profiles_also_where_ci_is_set(run, monkeypatch):
    monkeypatch.setenv("CI", "1")
    tests = """
        from hypothesis import settings
        def test_profiles():
            for name in ("verify-attn", "verify-attn-ci"):
                profile = settings.get_profile(name)
                assert profile.deadline is None
                assert profile.derandomize is False
            assert settings.get_profile("verify-attn-ci").database is None
            assert settings.default.derandomize is False
    """
    assert run("--hypothesis-profile=verify-attn", tests=tests).ret == 0


SUITE = ("--pyargs", "verify_attn.conformance.suite", "--verify-attn-examples=2", "-rf")


def test_suite_passes_a_right_kernel(run):
    result = run(*SUITE, "--verify-attn-kernel", "mine:right", tests=None)
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed", "skipped"}
    assert sum(outcomes.values()) == len(CHECK_NAMES)
    assert result.ret == 0


def test_suite_says_what_is_wrong(run, pytester):
    pytester.mkdir("lib")
    (pytester.path / "mine.py").rename(pytester.path / "lib" / "theirs.py")
    pytester.makeini("[pytest]\npythonpath = lib")  # of this process, and the worker's too
    selected = ("-k", "written", "--verify-attn-kernel=theirs:returns")
    result = run(*SUITE, *selected, "--verify-attn-kernel=theirs:crashes", tests=None)
    result.assert_outcomes(failed=2, deselected=2 * len(CHECK_NAMES) - 2)
    result.stdout.fnmatch_lines([
        "written: out still holds what stood there before the run", "first: *", "case: *",
        "reproduce: verify-attn check theirs:returns --only written --case '{*}'",
        "written: the kernel's process died of SIGSEGV",
        "reproduce: verify-attn check theirs:crashes --only written --case '{*}'",
    ])  # fmt: skip
    assert result.ret == 1


def test_suite_with_what_is_no_kernel(run):
    result = run(*SUITE, "-k", "written", "--verify-attn-kernel=mine:nope", tests=None)
    result.assert_outcomes(failed=1, deselected=len(CHECK_NAMES) - 1)
    result.stdout.fnmatch_lines(["'mine:nope': no 'nope' in mine; it has: *"])
    result.stdout.no_fnmatch_line("*Traceback*")
