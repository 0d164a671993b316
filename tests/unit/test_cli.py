"""The command line as a user meets it: messages and exit codes."""

import json
import re
import shlex
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.unit.user_kernels import COMMAND, ONE, check, user
from verify_attn.cli import main
from verify_attn.conformance import CHECK_NAMES

__all__ = ["user"]


# -- bad usage, before anything runs -------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--only", "orakel"], ["no check 'orakel'", *CHECK_NAMES]),
        (["--only", ""], ["no check ''"]),
        (["--only", "oracle,"], ["no check ''"]),
        (["--case", "[1"], ["not JSON"]),
        (["--case", '{"requests":[[1,"chain:1"]],"pagesize":3}'], ["page_size", "pagesize"]),
        (["--case", '{"requests":[[1,"chain:0"]]}'], ["'chain:0'", "N >= 1"]),
        (["--case", '{"requests":[[-1,"chain:1"]]}'], ["prefix_len -1"]),
        (["--case", '{"requests":[[Infinity,"chain:1"]]}'], ["--case"]),
        (["--case", '{"requests":[[1,"chain:1"]],"geometry":"huge"}'], ["'huge'", "tiny"]),
        (["--case", '{"requests":[[1,"chain:1"]],"geometry":"tiny/0"}'], ["heads is 0"]),
        (["--case", '{"requests":[[1,"chain:1"]],"geometry":5}'], ["--case"]),
        (["--resume"], ["--resume needs --json"]),
        (["--resume", "--json", "r.json", "--case", ONE], ["leave one of them out"]),
        (["--json", "/dev/null"], ["/dev/null is no regular file"]),
        (["--json", "/proc/none/r.json"], ["no record can be written to /proc/none/r.json"]),
        (["--json", ""], ["is no regular file"]),
        (["--json", "."], ["is a directory"]),
        (["--examples", "0"], ["0 is not in the range"]),
        (["--examples", "10000000000"], ["not in the range"]),
        (["--time-limit", "0"], ["0"]),
        (["--workers", "x"], ["not a valid integer"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_bad_usage(args, says):
    result = CliRunner().invoke(main, ["check", "torch", *args])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for words in says:
        assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", ["{", '{"schema_version": 1, "cases": []}', '{"cases": []}'])
def test_resume_of_something_else(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    result = CliRunner().invoke(main, ["check", "torch", "--resume", "--json", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert str(path) in result.stderr
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("kernel", "says", "trace"),
    [
        ("", "no kernel ''; give one of torch, triton-unsplit, triton-split", []),
        ("torhc", "no kernel 'torhc'", []),
        (":f", "not of the form package.module:name", []),
        ("no_such.module:f", "no module 'no_such' on the path or in ", []),
        ("mine.py:right", "give the module's name, not its file", []),
        ("needs:f", "importing it needs 'no_such_package', which is not here", []),
        ("broken:f", "importing it raised", ["line 3, in <module>", "line 2, in f", "[/import]"]),
        ("unparsable:f", "importing it raised", ["line 1", "SyntaxError"]),
        ("mine:nope", "no 'nope' in mine; it has: NeedsArguments, Path, crashes, ", []),
        ("mine:lazy", "lazy raised", ["ImportError: lazily"]),
        ("mine:three", "is a int; a kernel is a function f(batch, out, lse) or an object", []),
        ("mine:one_argument", "it is called as one_argument(batch, out, lse)", []),
        ("mine:NeedsArguments", "making it raised", ["TypeError"]),
        ("[/dim]:f", "no module '[/dim]'", []),
    ],
)
def test_no_kernel(user, kernel, says, trace):
    (user / "r.json").write_text("an older record")
    done = check(kernel, "--json", "r.json", cwd=user)
    assert done.returncode == 2, done
    assert says in done.stderr
    assert done.stderr.count("error:") == 1
    assert len(done.stdout.splitlines()) == 1  # the line that says what this machine is
    for words in trace:
        assert words in done.stderr
    assert ("line " in done.stderr) == bool(trace) or kernel in ("mine:lazy", "mine:NeedsArguments")
    for harness in ("Traceback", "site-packages", "importlib", "registry.py", "frozen"):
        assert harness not in done.stderr
    assert (user / "r.json").read_text() == "an older record"


# -- kernels that go wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (
            "raises",
            ['mine.py", line 9, in raises', r"ValueError: takes [64] heads \x1b[31m \udc80"],
        ),
        ("hangs", ["the kernel's process hung: no answer in 3 s"]),
        ("crashes", ["the kernel's process died of SIGSEGV", "in crashes"]),
        ("resizes", ["changed out from torch.", "it must write in place"]),
        ("other_type", ["to torch.float64", "it must write in place"]),
        ("returns", ["still holds what stood there before the run"]),
    ],
)
def test_wrong_kernel_and_its_reproducing_line(user, kernel, says):
    args = ["--only", "written", "--time-limit", "3", "--json", "r.json"]
    done = check(f"mine:{kernel}", *args, cwd=user, examples=1)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"FAIL mine:{kernel}\n  written: " in done.stdout
    for words in says:
        assert words in done.stdout
    for harness in ("Traceback", "hypothesis", "conformance/", "functools"):
        assert harness not in done.stdout
    (case,) = json.loads((user / "r.json").read_text())["cases"]
    assert (case["status"], case["id"]) == ("fail", f"mine:{kernel}/written")
    shown = json.dumps(case["failures"][0]["case"], separators=(",", ":"))
    assert f"  case:   {shown}\n" in done.stdout
    (line,) = re.findall(r"^  reproduce: verify-attn (.*)$", done.stdout, re.MULTILINE)
    again = subprocess.run(
        f"{shlex.join([sys.executable, '-P', *COMMAND[1:]])} {line} --time-limit 3",
        shell=True, cwd=user, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert again.returncode == 1, again
    assert says[0] in again.stdout


def test_pass_in_a_pipe_says_the_result_and_nothing_else(user):
    done = check("torch", "mine:right", "--only", "written,oracle", "--case", ONE, cwd=user)
    assert (done.returncode, done.stderr) == (0, "")
    _, *table = done.stdout.splitlines()  # the first line says what this machine is
    words = [line.split() for line in table]
    assert words == [
        ["check", "torch", "mine:right"],
        ["written", "pass", "1", "pass", "1"],
        ["oracle", "pass", "1", "pass", "1"],
    ]
    assert all(c.isprintable() or c == "\n" for c in done.stdout)


def test_a_failure_in_a_pipe_has_no_control_characters(user):
    done = check("mine:raises", "--only", "written", cwd=user, examples=1, PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert all(c.isprintable() or c == "\n" for c in done.stdout + done.stderr)


def test_all_skipped_is_no_pass(user):
    done = check("mine:refuses", "--case", ONE, "--only", "oracle", cwd=user)
    assert done.returncode == 3, done
    assert "skipped mine:refuses/oracle: declares page sizes (3,)" in done.stdout
