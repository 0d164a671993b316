"""One run a folder; and nothing of a run stays when it is killed.  Real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.test_run import NOBODY, begin, begun, cases, until
from tests.unit.user_kernels import user, verify_attn

__all__ = ["user"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_second_run_in_a_folder_is_refused_and_a_killed_one_leaves_it(user: Path) -> None:
    begun(user, {"doctor": 0}, kernels=("mine:slow",), examples=25, url=NOBODY)
    line = ("mine:slow", "--examples", "25", "--url", NOBODY, "--out", "r")
    first = begin(*line, "--resume", cwd=user, SLOW="0.1")
    calls, before = user / "calls", (user / "r/run.json").read_text()
    until(lambda: calls.exists() and len(calls.read_text()) > 8, first)
    ours = children(first.pid)
    for more in ((), ("--resume",)):
        refused = verify_attn("run", *line, *more, cwd=user)
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert refused.stderr == (
            "error: another verify-attn run is at work in r, and a folder is one run's; wait until "
            "it ends, or give another --out\n"
        )
    assert json.loads((user / "r/run.json").read_text())["cases"] == json.loads(before)["cases"]
    assert first.poll() is None
    first.kill()
    first.communicate(timeout=30)
    assert ours
    wait_for(lambda: not any(map(alive, ours)))
    again = verify_attn("run", *line, "--resume", cwd=user)
    assert again.returncode == 4, again.stderr  # nobody serves there
    assert cases(user / "r")["check"]["status"] == "pass"


def test_of_two_runs_that_begin_at_once_one_does(user: Path) -> None:
    line = ("mine:slow", "--examples", "3", "--url", NOBODY, "--out", "new")
    both = [begin(*line, cwd=user) for _ in range(2)]
    told = [process.communicate(timeout=90)[1] for process in both]
    assert sorted(p.returncode for p in both) == [2, 4], told
    assert sum("another verify-attn run is at work in new" in err for err in told) == 1


@pytest.mark.timing
def test_the_servers_end_is_its_runs_even_by_sigkill(tmp_path: Path) -> None:
    asked = {"contexts": "2k,3k", "max_tokens": 900}
    begun(tmp_path, {"doctor": 0, "check": 0, "bench": None}, **asked)
    line = ("--contexts", "2k,3k", "--max-tokens", "900", "--out", "r", "--resume")
    process = begin(*line, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    log = tmp_path / "r/server.log"
    until(lambda: log.exists() and "ready after" in log.read_text(), process)
    until(lambda: len(children(process.pid)) == 2, process)  # the server and the sweep
    both = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for(lambda: not any(map(alive, both)))


def test_a_child_ends_as_on_ctrl_c_when_its_parent_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a_child.py").write_text(
        "import os, sys, time\n"
        "open('pid', 'w').write(f'{os.getpid()} {sys.argv[1:]} {sys.stdin.read()!r}')\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    open('kept', 'w').close()\n"
    )
    parent = (
        "import subprocess, time\nfrom verify_attn.child import command\n"
        "p = subprocess.Popen(command('a_child', ['x']), stdin=subprocess.PIPE)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], cwd=tmp_path, env=os.environ | {"PYTHONPATH": "."}
    )
    told = tmp_path / "pid"
    wait_for(lambda: told.exists() and told.read_text().count("'") == 4)
    pid, rest = told.read_text().split(" ", 1)
    assert rest == "['x'] ''"  # its own arguments; nothing to read
    process.kill()
    process.wait()
    wait_for(lambda: not alive(int(pid)))
    assert (tmp_path / "kept").exists()
