"""`verify-attn compare` as a user and a CI meet it: exit codes, the table, the files."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from tests.perf.saved_runs import case, pytest_file, record, saved, unmeasured
from verify_attn.cli import main
from verify_attn.compare_command import run_compare
from verify_attn.record import read_record

COMMAND = Path(sys.executable).with_name("verify-attn")
ID = case()["id"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, so that no pyproject.toml is found but the test's."""
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "pyproject.toml", "[project]\nname = 'x'\n")
    return tmp_path


def run(here: Path, a: object, b: object, *options: str) -> Result:
    saved(here / "a.json", a)
    saved(here / "b.json", b)
    return CliRunner().invoke(main, ["compare", "a.json", "b.json", *options])


# -- exit codes of the real command --------------------------------------------------------------

NAN = case()
NAN["metrics"] = NAN["metrics"] | {"run_ms": math.nan}


@pytest.mark.parametrize(
    ("b", "code", "says"),
    [
        (record(case(ms=0.112), case(1427)), 1, r"1 worse, 1 same"),
        (record(case()), 1, r"missing, triton-split \| kimi-k2.6-tp8 r1 c1427"),
        (record(case(), case(1427, kernel="mine")), 1, r"has the same problem as mine \|"),
        (record(case(), case(1427), name="NVIDIA H100"), 3, r"name NVIDIA H200 -> NVIDIA H100"),
        (record(), 1, "2 missing"),
        (record(NAN, case(1427)), 2, "run_ms is nan"),
    ],
    ids=["slower", "vanished", "renamed", "other GPU", "empty", "NaN"],
)
def test_exit_codes_of_the_installed_command(here, b, code, says):
    saved(here / "a.json", record(case(), case(1427)))
    saved(here / "b.json", b)
    found = subprocess.run(
        [COMMAND, "compare", "a.json", "b.json"], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == code, found.stdout + found.stderr
    assert re.search(says, found.stderr if code == 2 else found.stdout)
    assert "Traceback" not in found.stderr
    if code == 2:
        assert found.stdout == ""


def test_comparing_imports_no_torch(here):
    saved(here / "a.json", record(case()))
    code = (
        "import sys; from pathlib import Path; from verify_attn.compare_command import *\n"
        "a = Path('a.json'); assert run_compare(a, a, record=Path('r.json')) == 0\n"
        "loaded = {'torch', 'triton', 'numpy', 'scipy', 'pytest'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("a", "b", "code", "says"),
    [
        (record(case()), record(case(ms=0.101)), 0, "1 case: 1 same"),
        (record(case()), record(case(ms=0.08)), 0, "1 better"),
        (record(case()), record(case(half=0.06)), 3, "take more samples"),
        (record(case()), record(unmeasured("error", "crashed")), 1, "error now: crashed"),
        (record(), record(), 3, "no cases; nothing was compared"),
        (record(), record(case()), 3, "1 case: 1 new; nothing was compared"),
        (pytest_file(case()), pytest_file(case(ms=0.112)), 1, "test_mine.py::test_kernel[31952]"),
    ],
)
def test_exit_codes(here, a, b, code, says):
    found = run(here, a, b)
    assert found.exit_code == code, found.output
    assert says in found.stdout


def test_a_run_that_is_worse_and_unclear_fails(here):
    b = record(case(ms=0.112), case(1427, half=0.06))
    assert run(here, record(case(), case(1427)), b).exit_code == 1


# -- bad usage -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--threshold", "-1"], "--threshold is -1.0; it must be a number above 0"),
        (["--threshold", "nan"], "--threshold is nan"),
        (["--threshold", "5"], "0.05 is 5 %"),
        (["--threshold", "5%"], "not a valid float"),
        (["--junit", "/proc/none/j.xml"], "to /proc/none/j.xml"),
        (["--json", "/proc/none/r.json"], "to /proc/none/r.json"),
        (["--json", "."], "no regular file"),
        (["--junit", "/dev/null"], "no regular file"),
        (["--json", "b.json"], "--json b.json is one of the files compared"),
        (["--junit", "./a.json"], "is one of the files compared"),
        (["--json", "x", "--junit", "./x"], "give each its own path"),
        (["c.json"], "unexpected extra argument"),
    ],
)
def test_bad_usage_before_anything_is_printed(here, options, says):
    found = run(here, record(case()), record(case()), *options)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    assert says in found.stderr.replace("\n", " ")
    assert json.loads((here / "b.json").read_text()) == record(case())


@pytest.mark.parametrize("which", ["a.json", "b.json"])
def test_a_file_that_is_no_record_is_named(here, which):
    saved(here / "a.json", record(case()))
    saved(here / "b.json", record(case()))
    saved(here / which, record(case()) | {"command": "verify-attn sweep", "environment": {}})
    found = CliRunner().invoke(main, ["compare", "a.json", "b.json"])
    assert found.exit_code == 2
    assert f"{which} is a record of 'verify-attn sweep', which has no bench cases" in found.stderr


def test_thresholds_of_the_project_above(here):
    saved(here / "pyproject.toml", "[tool.verify-attn.compare]\nthreshold = 0.2\n")
    worse = record(case(ms=0.112))
    found = run(here, record(case()), worse)
    assert found.exit_code == 0
    assert re.search(r"note: thresholds \(.*pyproject.toml\): 20 % unless told", found.stdout)
    assert run(here, record(case()), worse, "--threshold", "0.05").exit_code == 1
    saved(here / "pyproject.toml", "[tool.verify-attn.compare]\nlimit = 0.2\n")
    found = run(here, record(case()), worse)
    assert found.exit_code == 2
    assert "unknown key 'limit'" in found.stderr


# -- what is shown -------------------------------------------------------------------------------


def test_the_table_in_a_pipe_has_no_edge(here):
    long = case() | {"id": "x" * 300}
    lines = run(here, record(case(), long), record(case(ms=0.112), long)).stdout.splitlines()
    assert lines[0] == "baseline a.json (NVIDIA H200, driver 580.95.05), new b.json"
    titles = ["case", "baseline ms", "new ms", "ratio", "GB/s", "speedup", "verdict"]
    assert re.split(r"  +", lines[1].strip()) == titles
    assert re.split(r"  +", lines[2].strip()) == [
        ID, "0.1000", "0.1120", "1.120 (1.109-1.131)", "400.0 -> 357.1", "50.00 -> 44.64", "worse",
    ]  # fmt: skip
    assert lines[3].startswith("x" * 300 + " ")


def test_reasons_that_are_the_same_are_told_once(here):
    found = run(here, record(case(), case(1427)), record(case(), case(1427), driver="1"))
    assert found.stdout.count("not the same GPU") == 1
    assert "unclear, 2 cases: not the same GPU (driver 580.95.05 -> 1)" in found.stdout


HOSTILE = "[red]x[/red] :fire: \x1b[31m\n9 cases: 9 same\u202e\ud800 \\"


def test_text_of_others_is_shown_and_not_obeyed(here):
    a, b = case() | {"id": HOSTILE}, case(ms=0.112) | {"id": HOSTILE}
    a["notes"] = b["notes"] = ["[bold]note\x07"]
    found = run(here, record(a), record(b), "--junit", "j.xml", "--json", "r.json")
    assert found.exit_code == 1
    shown = r"[red]x[/red] :fire: \x1b[31m\n9 cases: 9 same\u202e\ud800 \ "
    assert any(line.startswith(shown) for line in found.stdout.splitlines())
    assert not any(line.startswith("9 cases") for line in found.stdout.splitlines())
    assert r"baseline: [bold]note\x07" in found.stdout
    case_element = ElementTree.parse(here / "j.xml").find(".//testcase")
    assert case_element.get("name") == shown.rstrip(" ")
    assert read_record(here / "r.json")["cases"][0]["id"] == HOSTILE


# -- files ---------------------------------------------------------------------------------------


def test_junit_counts_and_names(here):
    a = record(case(), case(1427), case(8), case(64), unmeasured("skipped", "why", 9))
    b = record(case(ms=0.112), case(1427, half=0.06), case(64), case(5, kernel="new"))
    assert run(here, a, b, "--junit", "j.xml").exit_code == 1
    root = ElementTree.parse(here / "j.xml").getroot()
    suite = root.find("testsuite")
    for element in (root, suite):
        assert [element.get(k) for k in ("tests", "failures", "errors", "skipped")] == [
            "6", "3", "0", "2",
        ]  # fmt: skip
    failures = {c.get("name"): c.find("failure") for c in suite if c.find("failure") is not None}
    assert [f.get("type") for f in failures.values()] == ["worse", "unclear", "missing"]
    worse = failures[ID]
    assert worse.text == worse.get("message")
    assert f"worse: {ID}: run 0.1000 -> 0.1120 ms, x1.120 (1.109-1.131)" in worse.text
    assert worse.text.count("0.1120 ms") == 1
    passed = next(c for c in suite if c.find("system-out") is not None)
    assert "same: run 0.1000 -> 0.1000 ms" in passed.findtext("system-out")
    assert len(suite.findall("testcase/skipped")) == 2


def test_junit_of_nothing_fails(here):
    assert run(here, record(), record(case()), "--junit", "j.xml").exit_code == 3
    suite = ElementTree.parse(here / "j.xml").find("testsuite")
    assert suite.get("failures") == "1"
    assert suite.find("testcase/failure/..").get("name") == "nothing was compared"


def test_the_record_holds_verdicts_and_ratios(here):
    a = record(case(), case(1427), case(8), case(64))
    b = record(case(ms=0.112), case(1427), case(8, half=0.06), case(65))
    b["cases"][3]["parameters"]["nodes"] = 33
    assert run(here, a, b, "--json", "new/r.json", "--threshold", "0.04").exit_code == 1
    found = read_record(here / "new" / "r.json")
    assert [c["status"] for c in found["cases"]] == [
        "fail", "pass", "inconclusive", "fail", "skipped",
    ]  # fmt: skip
    assert [c["verdict"] for c in found["cases"]] == ["worse", "same", "unclear", "missing", "new"]
    metrics = found["cases"][0]["metrics"]
    assert metrics["run_ratio"] == pytest.approx(1.12)
    assert metrics["run_ratio_low"] < metrics["run_ratio"] < metrics["run_ratio_high"]
    assert metrics["bandwidth_ratio"] == pytest.approx(1 / 1.12)
    assert metrics["run_new_ms"] == pytest.approx(0.112)
    assert found["cases"][3]["metrics"] == {}
    assert found["cases"][0]["threshold"] == 0.04
    assert found["compared"]["new"]["identity"]["name"] == "NVIDIA H200"


def test_a_record_of_compare_is_nothing_to_compare(here):
    run(here, record(case()), record(case()), "--json", "r.json")
    content = read_record(here / "r.json") | {"command": "verify-attn compare a.json b.json"}
    saved(here / "r.json", content)
    assert run_compare(Path("a.json"), Path("r.json")) == 2
