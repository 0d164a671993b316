"""A step is a process of its own: its end, its words, its progress, and signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from verify_attn.run_steps import Ended, Steps, last_error

STEP = """
import os, signal, sys, time
what = sys.argv[1]
if what == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if what == "fail":
    print("a table")
    print("error: no such kernel\\n  because", file=sys.stderr)
    sys.exit(2)
if what == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
open("ready", "w").close()
told = 0
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("record written")
    sys.exit(130)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_step.py").write_text(STEP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def signals(here: Path, *numbers: signal.Signals) -> None:
    """Send them to this process, each a moment after the other, once the step is ready."""

    def send() -> None:
        until = time.monotonic() + 20
        while not (here / "ready").exists() and time.monotonic() < until:
            time.sleep(0.01)
        for number in numbers:
            time.sleep(0.1)
            os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def test_what_it_printed_and_how_it_ended(here: Path) -> None:
    with Steps() as steps:
        ended = steps.take("a_step", ["fail"], here / "out.txt")
    assert (ended.code, ended.interrupted) == (2, False)
    assert ended.error == "no such kernel\n  because"
    assert "a table" in (here / "out.txt").read_text()


def test_a_crash_is_the_steps_own(here: Path) -> None:
    with Steps() as steps:
        assert steps.take("a_step", ["crash"], here / "out.txt").code == -signal.SIGSEGV


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_step_once(here: Path, number: signal.Signals) -> None:
    # Under nohup this process ignores SIGHUP, and so would the steps.
    ours = signal.signal(number, signal.SIG_DFL)
    signals(here, number)
    try:
        with Steps() as steps:
            ended = steps.take("a_step", ["wait"], here / "out.txt")
            assert steps.stopped
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, ours)
    assert (ended.code, ended.interrupted) == (130, True)
    assert "record written" in ended.words


def test_a_second_signal_kills_a_step_that_does_not_listen(here: Path) -> None:
    signals(here, signal.SIGINT, signal.SIGINT)
    with Steps() as steps:
        ended = steps.take("a_step", ["deaf"], here / "out.txt")
    assert ended.code == -signal.SIGKILL


def test_time_for_the_record_is_limited(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify_attn.run_steps.GRACE_S", 0.2)
    signals(here, signal.SIGINT)
    with Steps() as steps:
        assert steps.take("a_step", ["deaf"], here / "out.txt").code == -signal.SIGKILL


def test_on_a_terminal_progress_shows_and_errors_are_kept(here: Path) -> None:
    """The step sees a terminal, the user sees what it says, the file has its error message."""
    (here / "a_step.py").write_text(
        "import sys\n"
        "assert sys.stderr.isatty()\n"
        "print('\\x1b[2Kprogress 1/2', file=sys.stderr)\n"
        "print('\\x1b[31merror: \\x1b[0mno server', file=sys.stderr)\n"
        "sys.exit(4)\n"
    )
    code = (
        "from pathlib import Path; from verify_attn.run_steps import Steps\n"
        "with Steps() as steps: print(repr(steps.take('a_step', [], Path('out.txt')).error))"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, text=True, check=True
    )
    os.close(theirs)
    seen = os.read(ours, 4096).decode()
    os.close(ours)
    assert done.stdout == "'no server'\n"
    assert "progress 1/2" in seen
    assert (here / "out.txt").read_text() == "error: no server\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [("", "it printed nothing"), ("a\nb\n\n", "b"), ("error: a\nerror: b\n  c\n", "b\n  c")],
)
def test_last_error(words: str, error: str) -> None:
    assert last_error(words) == error
    assert Ended(1, 0.0, False, words).error == error
