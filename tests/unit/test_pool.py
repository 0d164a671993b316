"""The worker pool against kernels that die, hang, fork and print: one crash stays one crash."""

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from verify_attn.conformance import pool as pool_module
from verify_attn.conformance.pool import Pool, Task
from verify_attn.tracebacks import last_words

KERNELS = """
import os, signal, sys, time
from pathlib import Path
from verify_attn.kernels.torch_kernel import torch_verify

HERE = Path(__file__).parent

def count():
    calls = HERE / "calls"
    with calls.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return len(calls.read_text().splitlines())

def right(batch, out, lse):
    count()
    torch_verify(batch, out, lse)

def killed_once(batch, out, lse):
    if count() == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    torch_verify(batch, out, lse)

def crashes_in_shrinking(batch, out, lse):
    if count() == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    raise ValueError("mine")

def hangs(batch, out, lse):
    time.sleep(600)

def needs_company(batch, out, lse):
    count()
    until = time.monotonic() + 60
    while len(set((HERE / "calls").read_text().splitlines())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    if time.monotonic() < until:
        torch_verify(batch, out, lse)

def prints(batch, out, lse):
    print("x" * 100_000, flush=True)
    os.write(1, b"\\x00\\xff{]")
    os.write(2, b"\\xfe")
    torch_verify(batch, out, lse)

def reads_and_closes_stdin(batch, out, lse):
    try:
        input()
    except (EOFError, ValueError, OSError):
        pass
    sys.stdin.close()
    torch_verify(batch, out, lse)

def closes_outputs(batch, out, lse):
    sys.stdout.close()
    sys.stderr = None
    torch_verify(batch, out, lse)

def changes_directory(batch, out, lse):
    os.chdir("/")
    torch_verify(batch, out, lse)

def forks(batch, out, lse):
    os.fork()  # both go on
    torch_verify(batch, out, lse)

def forks_and_crashes(batch, out, lse):
    child = os.fork()
    if child == 0:
        time.sleep(600)  # it holds what it has inherited
    (HERE / "child").write_text(str(child))
    os.kill(os.getpid(), signal.SIGABRT)

def sys_exit(batch, out, lse):
    sys.exit(3)

def os_exit(batch, out, lse):
    os._exit(5)

def interrupts(batch, out, lse):
    raise KeyboardInterrupt("mine")

def memory(batch, out, lse):
    raise MemoryError("mine")

def skips(batch, out, lse):
    import pytest
    pytest.skip("mine")

def real_time_signal(batch, out, lse):
    os.kill(os.getpid(), signal.SIGRTMIN + 3)

class crashes_with_pages:
    def run(self, batch, plan, out, lse):
        os.kill(os.getpid(), signal.SIGSEGV)
"""
MODULES = {
    "exits_at_import": "import os; os._exit(7)",
    "sys_exits_at_import": "import sys; sys.exit('no licence')",
    "crashes_at_import": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "slow_to_import": "import time; time.sleep(2)\nfrom user_kernels import right",
    "never_imported": "import time; time.sleep(600)",
}


@pytest.fixture
def user(tmp_path, monkeypatch):
    (tmp_path / "user_kernels.py").write_text(KERNELS)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*tasks, workers=1, limit=60.0, checks=("written",)):
    with closing(Pool(workers, limit)) as pool:
        return [event for _, event in pool.run(list(tasks), lambda task: list(checks))]


def fuzz(name, examples=4, **options):
    return run(Task(f"user_kernels:{name}", ["written"], 1, examples), **options)


def of(events, kind):
    return [e for e in events if e["event"] == kind and e.get("final", True)]


def test_a_killed_worker_is_replaced_and_the_rest_runs(user):
    events = fuzz("killed_once", 9)
    (failure,) = of(events, "failure")
    assert "the kernel's process died of SIGKILL" in failure["text"]
    assert json.loads(failure["case"])["requests"]
    assert failure["kind"] == "crash"
    assert len(of(events, "example")) + 1 == 9
    assert len(of(events, "done")) == 1
    assert len(set((user / "calls").read_text().split())) == 2


def test_a_crash_in_shrinking_keeps_the_best_so_far(user):
    events = fuzz("crashes_in_shrinking", 1)
    (failure,) = of(events, "failure")
    assert "the kernel raised" in failure["text"]
    assert "SIGSEGV" not in failure["text"]
    drafts = [e for e in events if e["event"] == "failure" and not e["final"]]
    assert failure["case"] == drafts[-1]["case"]
    assert len(of(events, "done")) == 1


def test_a_hang_names_the_case(user):
    events = fuzz("hangs", 1, limit=2.0)
    (failure,) = of(events, "failure")
    assert failure["text"].startswith("written: the kernel's process hung: no answer in 2 s\n")
    assert failure["case"] in failure["text"]
    assert failure["kind"] == "hang"


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("exits_at_import", ["its process ended with exit code 7 before the first case"]),
        ("sys_exits_at_import", ["importing it raised", "line 1, in <module>", "no licence"]),
        ("crashes_at_import", ["died of SIGSEGV before the first case", "line 1 in <module>"]),
    ],
)
def test_death_at_import(user, module, says):
    (event,) = of(run(Task(f"{module}:f", ["written"], 1, 4)), "unusable")
    assert module in event["text"]
    for words in says:
        assert words in event["text"]
    for harness in ("hypothesis", "importlib", "runpy", "verify_attn", "Extension modules"):
        assert harness not in event["text"].replace("test_death_at_import", "")


def test_importing_is_not_held_to_the_limit_of_a_check(user):
    events = run(Task("slow_to_import:right", ["written"], 1, 2), limit=1.5)
    assert len(of(events, "example")) == 2


def test_importing_has_a_limit_too(user, monkeypatch):
    monkeypatch.setattr(pool_module, "START_S", 5.0)
    (event,) = of(run(Task("never_imported:f", ["written"], 1, 2), limit=0.1), "unusable")
    assert "its process hung: no answer in 5 s before the first case" in event["text"]


def test_two_tasks_run_on_two_workers(user):
    tasks = [Task("user_kernels:needs_company", ["written"], seed, 2) for seed in (1, 2)]
    events = run(*tasks, workers=2, limit=90.0)
    assert not of(events, "failure")
    assert len(of(events, "done")) == 2


@pytest.mark.parametrize(
    "name",
    ["prints", "reads_and_closes_stdin", "closes_outputs", "changes_directory", "forks"],
)
def test_the_protocol_is_out_of_a_kernels_way(user, name):
    events = fuzz(name, 4)
    assert not of(events, "failure")
    assert len(of(events, "example")) == len(of(events, "check")) == 4
    assert len(of(events, "done")) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sys_exit", "SystemExit: 3"),
        ("os_exit", "ended with exit code 5"),
        ("interrupts", "KeyboardInterrupt: mine"),
        ("memory", "MemoryError: mine"),
        ("skips", "Skipped: mine"),
        ("real_time_signal", "died of signal "),
    ],
)
def test_ways_to_leave(user, name, says):
    events = fuzz(name, 1)
    (failure,) = of(events, "failure")
    assert says in failure["text"]
    assert "hypothesis" not in failure["text"]
    assert "conformance" not in failure["text"]
    assert len(of(events, "done")) == 1


def gone(pid):
    status = Path(f"/proc/{pid}/stat")  # in a container without an init it stays a zombie
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_child_that_outlives_the_worker_hides_no_crash_and_is_ended(user):
    (failure,) = of(fuzz("forks_and_crashes", 1), "failure")
    assert "died of SIGABRT" in failure["text"]
    until = time.monotonic() + 30
    while not gone((user / "child").read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    assert gone((user / "child").read_text())


def test_one_given_case_goes_through_all_checks_though_each_crashes(user):
    checks = ["oracle", "written", "lse"]
    task = Task("user_kernels:crashes_with_pages", list(checks), case='{"requests":[[3,"[-1,0]"]]}')
    events = run(task, checks=checks)
    assert [e["check"] for e in of(events, "failure")] == checks
    assert all("SIGSEGV" in e["text"] for e in of(events, "failure"))
    assert len(of(events, "done")) == 1


def test_workers_stay_between_runs_and_end_with_close(user):
    with closing(Pool(1, 60.0)) as pool:
        for seed in (1, 2):
            task = Task("user_kernels:right", ["written"], seed, 1)
            assert of((e for _, e in pool.run([task], lambda t: ["written"])), "done")
        (pid,) = set((user / "calls").read_text().split())
        os.kill(int(pid), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_last_words_are_the_users():
    log = "\n".join([
        "printed", "Fatal Python error: Segmentation fault", "",
        "Current thread 0x1 (most recent call first):", '  File "/me/mine.py", line 3 in f',
        f'  File "{pool_module.__file__}", line 7 in run', '  File "<frozen runpy>", line 1 in x',
        "", "Extension modules: numpy (total: 1)", "",
    ])  # fmt: skip
    assert last_words(log)[-1] == '  File "/me/mine.py", line 3 in f'
    assert len(last_words(log)) == 4
    assert len(last_words("x\n" * 500)) == 12
