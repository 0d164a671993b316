"""The support itself: nothing half made counts, and no server outlives its tests."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live.real import process, venvs
from tests.live.real.bpe import SPECIAL, Vocabulary, byte_letters
from tests.live.real.models import Model, Spec
from tests.live.real.process import ServerFailed, ask, cores, off_the_servers_core, running
from tests.live.real.venvs import Environment, NotMade

ANSWERS = """
import http.server, subprocess, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
http.server.HTTPServer.allow_reuse_address = False
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
server.serve_forever()
"""
NO_MODEL = Model(Spec("hf"), Path())


def stub(port: int) -> Sequence[object]:
    """A server that says yes to everything and has a child process."""
    return sys.executable, "-c", ANSWERS, port


def is_there(pid: int) -> bool:
    """Does the process exist, and not as a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int], limit_s: float = 10) -> list[int]:
    """Those still there after the time."""
    deadline = time.monotonic() + limit_s
    while (left := [pid for pid in pids if is_there(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


class TestServers:
    def test_it_ends_with_its_children(self, tmp_path: Path) -> None:
        with running(tmp_path, stub, NO_MODEL, "tiny", limit_s=30) as server:
            assert ask(server.port, "/anything")[0] == 200
            group = list(server.processes())
            assert len(group) == 2
            assert server.pid in group
            assert server.log_tail().startswith("ready")
            assert os.sched_getaffinity(server.pid) == cores()[0]
        assert wait_until_gone(group) == []

    def test_stopped_between_tests_it_still_ends(self, tmp_path: Path) -> None:
        with running(tmp_path, stub, NO_MODEL, "tiny", limit_s=30) as server:
            group = list(server.processes())
            with server.awake():
                assert ask(server.port, "/")[0] == 200
            with pytest.raises(TimeoutError):
                ask(server.port, "/", timeout_s=0.2)
        assert wait_until_gone(group) == []

    def test_it_ends_when_the_tests_are_killed(self, tmp_path: Path) -> None:
        program = f"""
            import os, signal
            from pathlib import Path
            from tests.live.real.process import running
            from tests.live.real.test_support import NO_MODEL, stub
            with running(Path({str(tmp_path)!r}), stub, NO_MODEL, "tiny", limit_s=30) as server:
                print(*server.processes(), server.supervisor.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        root = Path(__file__).parents[3]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        pids = [int(pid) for pid in done.stdout.split()]
        assert len(pids) == 3
        assert wait_until_gone(pids) == []

    def test_an_early_exit_shows_the_log(self, tmp_path: Path) -> None:
        program = "import sys; sys.exit('no such model')"

        def command(port: int) -> Sequence[object]:
            return sys.executable, "-c", program

        with (
            pytest.raises(ServerFailed, match=r"ended with 1 (?s:.*)no such model"),
            running(tmp_path, command, NO_MODEL, "tiny", limit_s=30),
        ):
            pass

    def test_one_that_never_answers_is_given_up(self, tmp_path: Path) -> None:
        def command(port: int) -> Sequence[object]:
            return sys.executable, "-c", "import time; time.sleep(600)"

        with (
            pytest.raises(ServerFailed, match="is too slow"),
            running(tmp_path, command, NO_MODEL, "tiny", limit_s=0.5),
        ):
            pass

    def test_a_lost_port_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running(tmp_path, stub, NO_MODEL, "tiny", limit_s=30) as first:
            ports = [first.port, process.free_port()]
            monkeypatch.setattr(process, "free_port", lambda: ports.pop(0))
            with running(tmp_path, stub, NO_MODEL, "tiny", limit_s=30) as second:
                assert second.port != first.port
                assert ports == []

    def test_a_client_off_the_servers_core(self) -> None:
        before, apart = os.sched_getaffinity(0), cores()[1]
        with off_the_servers_core():
            assert os.sched_getaffinity(0) == apart
        assert os.sched_getaffinity(0) == before


class TestEnvironments:
    @pytest.fixture
    def empty(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
        """One that installs nothing."""
        monkeypatch.setattr(venvs, "HOME", tmp_path)
        return Environment("llamacpp", ("-c", "constraints-llamacpp.txt", "pip"), 0)

    def test_half_made_is_made_again_and_made_is_kept(self, empty: Environment) -> None:
        left_over = empty.directory / "bin" / "left-over"
        left_over.parent.mkdir(parents=True)
        left_over.touch()
        assert not empty.is_made
        empty.make()
        assert not left_over.exists()
        stamp = empty.directory / venvs.STAMP
        made = stamp.stat().st_mtime_ns
        empty.make()
        assert stamp.stat().st_mtime_ns == made
        subprocess.run([empty.python, "-c", ""], check=True)

    def test_a_failed_installation_is_not_made(self, empty: Environment) -> None:
        broken = Environment("llamacpp", ("no/such/directory",), 0)
        with pytest.raises(RuntimeError, match="no/such/directory"):
            broken.make()
        assert not broken.is_made

    def test_pip_holds_the_lock_itself(self, empty: Environment) -> None:
        with venvs.locked("one") as lock:
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, pass_fds=(lock,))
        with (venvs.HOME / "one.lock").open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child.communicate(b"\n")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_missing_is_a_reason_to_skip_unless_required(
        self, empty: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(venvs.REQUIRE, raising=False)
        with pytest.raises(NotMade, match=r"python -m tests\.live\.real\.venvs vllm"):
            venvs.environment("vllm")
        broken = Environment("vllm", ("no/such/directory",), 0)
        monkeypatch.setitem(venvs.ENVIRONMENTS, "vllm", broken)
        monkeypatch.setenv(venvs.REQUIRE, "1")
        with pytest.raises(RuntimeError):
            venvs.environment("vllm")

    @pytest.mark.parametrize("name", list(venvs.ENVIRONMENTS))
    def test_pins_are_exact(self, name: str) -> None:
        lines = venvs.ENVIRONMENTS[name].pins.read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins
        assert all(pin.count("==") == 1 and "/" not in pin for pin in pins)


class TestVocabulary:
    def test_every_text_can_be_encoded_and_most_tokens_are_printable(self) -> None:
        vocabulary = Vocabulary(512)
        assert len(set(vocabulary.tokens)) == 512
        assert sorted(vocabulary.byte_of.values()) == list(range(256))
        assert set(byte_letters()) <= set(vocabulary.tokens)
        assert len(vocabulary.printable()) > 300
        assert not {vocabulary.text(t) for t in vocabulary.printable()} & set(SPECIAL)
