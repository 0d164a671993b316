"""`verify-attn run` as a user runs it: child processes, a real server, signals, pipes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.live.truth import Decode, Scenario, TruthServer
from tests.report.folders import RESULTS, folder, run_record, swept
from tests.unit.user_kernels import COMMAND, PYTHONPATH, user, verify_attn
from verify_attn.embedded import serving
from verify_attn.environment import environment
from verify_attn.run_plan import Asked

__all__ = ["user"]

NOBODY = "http://127.0.0.1:9"


def cases(path: Path) -> dict[str, Any]:
    return {case["id"]: case for case in json.loads((path / "run.json").read_text())["cases"]}


def begin(*arguments: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", *COMMAND[1:], "run", *arguments], cwd=cwd,
        env=os.environ | {"PYTHONPATH": PYTHONPATH} | env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def until(true: Any, process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


# -- whole runs ----------------------------------------------------------------------------------


@pytest.mark.timing
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    """The main job, small: every step, the package's own server, everything that is written."""
    small = ("torch", "--examples", "2", "--contexts", "256", "--max-tokens", "40", "--out", "r")
    github = {"GITHUB_STEP_SUMMARY": str(tmp_path / "job.md"), "CUDA_VISIBLE_DEVICES": ""}
    (tmp_path / "job.md").write_text("earlier\n")
    (tmp_path / "random.py").write_text("raise RuntimeError('shadows the standard library')\n")
    done = verify_attn("run", *small, cwd=tmp_path, **github)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stderr
    assert [line.split(",")[0] for line in done.stderr.splitlines()[-4:]] == [
        "doctor: pass", "check: pass", "bench: skipped: no GPU here: kernels were not timed",
        "sweep: pass",
    ]  # fmt: skip
    assert done.stderr.startswith("plan: check: torch, 2 cases each: about ")
    assert "plan: sweep: the package's own server, tiny, at 256 tokens: about " in done.stderr
    assert done.stdout.startswith("PASS: torch right in ")
    assert len(done.stdout.splitlines()) <= 20
    assert "not tested: no GPU: no kernel was timed" in done.stdout
    assert "report: r/report.html" in done.stdout
    made = {path.name for path in (tmp_path / "r").iterdir()}
    steps = {f"{step}.{kind}" for step in ("doctor", "check", "sweep") for kind in ("json", "txt")}
    assert made == steps | {"run.json", "server.log", "summary.md", "junit.xml", "report.html"}
    assert "ready after" in (tmp_path / "r/server.log").read_text()
    summary = (tmp_path / "r/summary.md").read_text()
    assert (tmp_path / "job.md").read_text() == f"earlier\n{summary}"
    ElementTree.parse(tmp_path / "r/junit.xml")
    found = cases(tmp_path / "r")
    assert [c["status"] for c in found.values()] == ["pass", "pass", "skipped", "pass"]
    assert found["sweep"]["parameters"]["server"] == "verify-attn serve tiny"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("*.txt")}
    again = verify_attn("run", *small, "--resume", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert again.stdout == done.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("*.txt")} == before


@pytest.mark.timing
def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    fault = ("tiny", "--no-prefix-cache", "--inject", "die-in-prefill=3000")
    small = ("torch", "--examples", "1", "--contexts", "256,4k", "--max-tokens", "40")
    with serving(fault) as url:
        done = verify_attn("run", *small, "--url", url, "--out", "r", cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stdout.startswith("DEAD: the server died at ctx=4k before the first token: ")
    assert "tok/s at 256 tokens before" in done.stdout
    assert "the server died at ctx=4k before" in (tmp_path / "r/summary.md").read_text()


@pytest.mark.gpu
def test_on_a_gpu_kernels_are_timed_and_served(tmp_path: Path) -> None:
    small = ("triton-split", "--quick", "--examples", "5", "--contexts", "256", "--out", "r")
    process = begin(*small, cwd=tmp_path)
    out, err = process.communicate(timeout=540)
    assert process.returncode in (0, 3), out + err
    found = cases(tmp_path / "r")
    assert found["bench"]["exit_code"] in (0, 3)
    assert (tmp_path / "r/bench.json").exists()
    server = found["sweep"]["parameters"]["server"]
    assert server.startswith("verify-attn serve k2.6-rank ") or "do not fit" in str(found["sweep"])
    assert server.endswith("--kernel triton-split")
    assert "plan: bench: 3 cells, " in err
    assert "no GPU" not in out


# -- stopped and gone on with --------------------------------------------------------------------


def begun(cwd: Path, steps: dict[str, int | None], **asked: Any) -> Path:
    """A run in ``cwd/r`` that was stopped after these steps: no doctor is waited for again."""
    (cwd / "r").mkdir()
    about = {"asked": Asked(**asked).as_record(), "environment": environment()}
    run = run_record(steps, finished=False) | about
    records = {"doctor": {"schema_version": 1, "cases": []}, "check": RESULTS / "cpu/check.json"}
    return folder(cwd / "r", run, **{name: records[name] for name in steps if name in records})


def test_ctrl_c_in_the_check_and_resume(user: Path) -> None:
    begun(user, {"doctor": 0}, kernels=("mine:slow",), examples=25, url=NOBODY)
    line = ("mine:slow", "--examples", "25", "--url", NOBODY, "--out", "r")
    process = begin(*line, "--resume", cwd=user, SLOW="0.1")
    calls = user / "calls"
    until(lambda: calls.exists() and len(calls.read_text()) > 8, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert out.startswith("INTERRUPTED in check: interrupted after ")
    assert "not tested: sweep: not begun" in out
    assert out.endswith("records: r; go on with --resume --out r\n")
    for name in ("report.html", "summary.md", "junit.xml"):
        assert "interrupted after" in (user / "r" / name).read_text()
    ran = json.loads((user / "r/check.json").read_text())["progress"]["mine:slow"]["examples"]
    assert 0 < ran < 25

    again = verify_attn("run", *line, "--resume", cwd=user)
    assert again.returncode == 4  # nobody serves there
    assert again.stdout.startswith("DEAD: sweep: no answer from http://127.0.0.1:9")
    check = json.loads((user / "r/check.json").read_text())
    assert check["progress"]["mine:slow"]["examples"] == 25
    assert "--resume" in check["command"]
    assert cases(user / "r")["doctor"]["metrics"]["seconds"] > 0


@pytest.mark.timing
def test_sigterm_in_the_sweep_keeps_its_points(tmp_path: Path) -> None:
    with TruthServer(Scenario(decode=Decode(step_s=0.01))) as server:
        asked = {"url": server.url, "contexts": "500,1k,2k", "max_tokens": 100}
        begun(tmp_path, {"doctor": 0, "check": 0, "bench": 3}, **asked)
        (tmp_path / "r/bench.json").write_text(json.dumps({"schema_version": 1, "cases": []}))
        line = ("--url", server.url, "--contexts", "500,1k,2k", "--max-tokens", "100")
        process = begin(*line, "--out", "r", "--resume", cwd=tmp_path)
        until(lambda: len(server.generations()) >= 2, process)
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert out.startswith("INTERRUPTED in sweep: interrupted after ")
    kept = json.loads((tmp_path / "r/sweep.json").read_text())["cases"]
    assert len(kept) == 3
    assert kept[0]["metrics"]["decode_tok_s"] > 0  # its status is the machine's too, if it is busy
    assert kept[2]["status"] == "skipped"
    assert "not tested: sweep: ctx=2k: not reached: interrupted" in out


# -- bad input, before anything runs -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--floors", "no.toml"), "no.toml"), (("--sweep", "'"), "No closing quotation"),
        (("--sweep=--nothing",), "No such option"),
        (("--url", "http://u:secret@h"), "VERIFY_ATTN_API_KEY"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = verify_attn("run", *arguments, "--out", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "secret" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_kernel_that_there_is_not(tmp_path: Path) -> None:
    begun(tmp_path, {"doctor": 0}, kernels=("no_such:kernel",), url=NOBODY)
    line = ("no_such:kernel", "--url", NOBODY, "--out", "r", "--resume")
    done = verify_attn("run", *line, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: 'no_such:kernel': no module 'no_such' on the path")
    assert list(cases(tmp_path / "r")) == ["doctor"]
    assert verify_attn("run", "no_such:kernel", "--out", "new", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "new").exists()


# -- where the output goes -----------------------------------------------------------------------


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A run that is done, so that resuming it only tells the verdict: 3."""
    about = {"asked": Asked(url=NOBODY).as_record(), "environment": environment()}
    run = run_record({"doctor": 0, "check": 0, "bench": None, "sweep": 3}) | about
    run["cases"][2]["exit_code"] = 3  # done as well, wherever this test runs
    (tmp_path / "r").mkdir()
    empty = {"schema_version": 1, "cases": []}
    check = RESULTS / "cpu/check.json"
    folder(tmp_path / "r", run, doctor=empty, bench=empty, check=check, sweep=swept("stall"))
    return tmp_path


RESUME = " ".join((sys.executable, "-P", *COMMAND[1:], "run", "--url", NOBODY, "--out", "r"))


@pytest.mark.parametrize(
    "shell",
    ["{run} 2>&1 | head -c 1", "{run} > /dev/full", "{run} >&-"],
)
def test_an_output_that_is_closed_early(done: Path, shell: str) -> None:
    line = shell.format(run=f"{RESUME} --resume")
    told = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], cwd=done, capture_output=True, text=True,
        timeout=60, env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    assert told.returncode == 3, told.stderr
    assert "Traceback" not in told.stderr
    assert "BrokenPipe" not in told.stderr
    assert "183 times usual" in (done / "r/summary.md").read_text()


def test_no_space_left(done: Path) -> None:
    """As a full disk: no file may grow beyond 600 bytes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))

    before = (done / "r/run.json").read_text()
    told = subprocess.run(
        f"{RESUME} --resume".split(), cwd=done, capture_output=True, text=True, timeout=60,
        preexec_fn=limit, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert told.returncode == 2, told.stdout + told.stderr
    assert "run.json is not written: it would be larger than files may be here" in told.stderr
    assert "raise that limit (ulimit -f), or give a path elsewhere (File too large)" in told.stderr
    assert "Errno" not in told.stderr
    assert "Traceback" not in told.stderr
    assert "183 times usual" in told.stdout  # the verdict is told all the same
    assert (done / "r/run.json").read_text() == before


def test_without_the_extra_there_is_no_report_and_that_is_said(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from verify_attn.run_steps import Steps
    from verify_attn.run_written import write_all

    monkeypatch.setattr("verify_attn.run_written.NEEDED", ("no_such_package",))
    assert write_all(done / "r", Steps(), None) == 3
    out = capsys.readouterr().out
    assert "report.html needs pip install 'verify-attn[report]' (no_such_package)" in out
    assert not (done / "r/report.html").exists()


def test_the_report_draws_the_run_that_it_is_held_against(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from verify_attn.run_steps import Steps
    from verify_attn.run_written import write_all

    saved = RESULTS / "cpu/burst_prose.json"
    assert write_all(done / "r", Steps(), None, str(saved)) == 3
    assert '"name":"saved 2026-11-30 18:33' in (done / "r/report.html").read_text()
    assert write_all(done / "r", Steps(), None, str(done / "gone.json")) == 2
    assert "report.html is not written: no record at" in capsys.readouterr().err


def test_a_mistake_in_the_report_does_not_cost_the_verdict(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from verify_attn.run_steps import Steps
    from verify_attn.run_written import write_all

    def wrong(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("verify_attn.report.html.write_report", wrong)
    assert write_all(done / "r", Steps(), None) == 2
    printed = capsys.readouterr()
    assert "183 times usual" in printed.out
    assert "report.html is not written: KeyError: 'x'" in printed.err
