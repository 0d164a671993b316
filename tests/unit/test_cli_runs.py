"""The command line over a whole run: the record, Ctrl-C and what comes after, help, doctor."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.unit.user_kernels import COMMAND, PYTHONPATH, check, user, verify_attn
from verify_attn.kernels.peers import available
from verify_attn.record import STATUSES

__all__ = ["user"]


def test_the_record(user):
    args = ["torch", "mine:returns", "--json", "sub/r.json", "--only", "written,capture,oracle"]
    done = check(*args, cwd=user, examples=3)
    assert done.returncode == 1
    record = json.loads((user / "sub" / "r.json").read_text())
    assert record["schema_version"] == 1
    assert record["command"].startswith("verify-attn check torch mine:returns --json sub/r.json")
    assert record["environment"]["triton"] in ("interpreter", "compiled")
    assert record["environment"]["device"] in ("cpu", "cuda")
    assert record["progress"]["torch"]["examples"] == 3
    statuses = {c["id"]: c["status"] for c in record["cases"]}
    assert len(statuses) == 6
    assert set(statuses.values()) <= set(STATUSES)
    assert statuses["torch/written"] == "pass"
    assert statuses["mine:returns/written"] == "fail"
    assert statuses["torch/capture"] == "skipped"
    for case in record["cases"]:
        assert case["reason"] or case["status"] == "pass"


@pytest.mark.parametrize("args", ["--help", "doctor", "roofline --gpu h200", "check torch"])
def test_a_full_standard_output_is_told(user, args):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", *COMMAND[1:], *args.split()], cwd=user,
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "error: standard output cannot be written: no space is left on its disk" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


# -- Ctrl-C --------------------------------------------------------------------------------------


def called(process, calls, times):
    """Wait until the kernel was called so often."""
    until = time.monotonic() + 60
    while not calls.exists() or len(calls.read_text()) < times:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)


def test_ctrl_c_keeps_the_record_and_resume_finishes_it(user):
    args = ["check", "mine:slow", "--only", "written,oracle,padding", "--json", "r.json"]
    args += ["--workers", "2", "--examples", "25"]
    process = subprocess.Popen(
        [sys.executable, "-P", *COMMAND[1:], *args], cwd=user,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "SLOW": "0.1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    calls = user / "calls"
    called(process, calls, 30)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "interrupted; what ran is in r.json, go on with --resume" in out
    assert "Traceback" not in out + err
    first = json.loads((user / "r.json").read_text())
    assert first["stopped_early"] == "KeyboardInterrupt"
    progress = first["progress"]["mine:slow"]
    assert 0 < progress["examples"] < 25
    assert sum(case["metrics"]["executed"] for case in first["cases"]) > 0

    other = verify_attn(*args[:-1], "26", "--resume", cwd=user)
    assert other.returncode == 2
    assert "give the same --seed, --examples and --only" in other.stderr
    missing = verify_attn("check", "torch", *args[2:], "--resume", cwd=user)
    assert missing.returncode == 2
    assert "also tells of mine:slow" in missing.stderr
    assert json.loads((user / "r.json").read_text()) == first

    assert verify_attn(*args, "--resume", cwd=user).returncode == 0
    last = json.loads((user / "r.json").read_text())
    assert last["stopped_early"] is None
    assert last["progress"]["mine:slow"]["examples"] == 25
    before = len(calls.read_text())
    assert verify_attn(*args, "--resume", cwd=user).returncode == 0
    assert json.loads((user / "r.json").read_text())["progress"] == last["progress"]
    assert len(calls.read_text()) == before  # what had run is not run again

    at_once = ["at-once.json" if arg == "r.json" else arg for arg in args]
    assert verify_attn(*at_once, cwd=user).returncode == 0
    whole = json.loads((user / "at-once.json").read_text())
    assert last["cases"] == whole["cases"]  # the same checks on the same cases
    examples = [r["progress"]["mine:slow"]["whole"]["examples"] for r in (last, whole)]
    assert examples == [25, 25]


def test_ctrl_c_before_anything_ran_costs_no_record(user):
    (user / "r.json").write_text("good")
    process = subprocess.Popen(
        [sys.executable, "-P", *COMMAND[1:], "check", "mine:slow", "--json", "r.json"], cwd=user,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "SLOW": "30"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    called(process, user / "calls", 1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "interrupted before anything was run: nothing is written" in out
    assert (user / "r.json").read_text() == "good"


# -- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--help"], ["check", "--help"], ["--version"], []])
def test_help_imports_nothing_heavy(tmp_path, args):
    code = (
        "import atexit, sys, verify_attn.cli as cli\n"
        "heavy = {'torch', 'triton', 'numpy', 'hypothesis', 'rich', 'pytest'}\n"
        "atexit.register(lambda: print('heavy:', heavy & set(sys.modules)))\n"
        f"sys.argv = ['verify-attn', *{args}]\n"
        "cli.entry()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (0 if args else 2)
    assert done.stdout.splitlines()[-1] == "heavy: set()"


def test_doctor_names_the_mode_and_every_kernel(tmp_path):
    done = verify_attn("doctor", cwd=tmp_path, COLUMNS="200")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^Triton +(interpreter|compiled|not installed)", done.stdout, re.MULTILINE)
    for kernel in ("torch", "triton-unsplit", "triton-split"):
        assert re.search(rf"^kernel {kernel} +(runs with|cannot run:) \w", done.stdout, re.M)
    for peer, why in available().items():
        assert re.search(rf"^peer {peer} +{re.escape(why or 'usable')}", done.stdout, re.M)
