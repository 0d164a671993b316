"""ci/: the workflow is valid, says who may run where, and its steps do what they are for."""

import json
import os
import re
import subprocess
import sys

import click
import pytest

from tests.unit.workflow import ROOT, WORKFLOW, Runner, evaluate, event, started, workflow
from verify_attn.cli import main

GPU_JOBS = {"gpu", "perf", "nightly"}
PYTEST = 'for a; do case $a in --benchmark-json=*) cp "$CALLS.d/times" "${a#*=}";; esac; done'
TIMES = {
    "machine_info": {"verify_attn": {"identity": {"name": "NVIDIA H200"}}}, "benchmarks": [],
}  # fmt: skip


@pytest.fixture
def runner(tmp_path):
    made = Runner(tmp_path, {"pytest": PYTEST})
    (tmp_path / "calls.d" / "times").write_text(json.dumps(TIMES))
    return made


def does(runner, name, body):
    runner._script(runner.folder / "calls.d" / name, f"#!/usr/bin/env bash\n{body}\n")


# -- the file --------------------------------------------------------------------------------------


def test_the_workflow_is_valid():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-workflows", str(WORKFLOW)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_pinned_and_nothing_may_write_but_what_keeps_records():
    loaded = workflow()
    assert loaded["permissions"] == {"contents": "read"}
    for name, job in loaded["jobs"].items():
        assert job["timeout-minutes"]
        if name.startswith("keep-"):
            assert job["permissions"] == {"contents": "write"}
            assert job["runs-on"] == "ubuntu-latest"
        else:
            assert "permissions" not in job
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"])
            else:
                assert "${{" not in step["run"], "an expression there is code for whoever names it"


def test_only_the_gpu_jobs_are_on_the_gpu_machine():
    jobs = workflow()["jobs"]
    assert {n for n, j in jobs.items() if j["runs-on"] == ["self-hosted", "linux", "gpu"]} == (
        GPU_JOBS
    )
    assert {j["runs-on"] for n, j in jobs.items() if n not in GPU_JOBS} == {"ubuntu-latest"}


@pytest.mark.parametrize(
    ("known", "jobs"),
    [
        (event("pull_request", "refs/pull/1/merge"), {"no-gpu"}),
        (event("push", "refs/heads/mine"), {"no-gpu", "gpu", "perf"}),
        (event("push"), {"no-gpu", "gpu", "perf", "keep-perf"}),
        (event("schedule"), {"nightly", "keep-nightly"}),
        (event("workflow_dispatch"), set(workflow()["jobs"])),
        (event("workflow_dispatch", "refs/heads/mine"), {"no-gpu", "gpu", "perf", "nightly"}),
    ],
    ids=["pull request", "branch", "main", "night", "by hand", "by hand on a branch"],
)
def test_which_jobs_an_event_starts(known, jobs):
    assert set(started(known)) == jobs
    if known["github.event_name"] == "pull_request":
        assert not jobs & GPU_JOBS


def test_what_failed_is_not_built_upon():
    assert "perf" not in started(event("push"), {"gpu": "failure"})
    assert "keep-perf" not in started(event("push"), {"perf": "failure"})
    assert "keep-nightly" in started(event("schedule"), {"nightly": "failure"})


def test_the_evaluator_itself():
    known = {"github.ref": "refs/heads/x", "cancelled()": False}
    assert evaluate("${{ !cancelled() && github.ref != 'refs/heads/main' }}", known) is True
    assert evaluate("github.ref == 'true' || false", known) is False
    with pytest.raises(KeyError):
        evaluate("github.typo == 'x'", known)


# -- the jobs, step by step ------------------------------------------------------------------------


def test_every_command_line_is_one_that_the_real_command_takes(runner):
    runner.git("push", "-q", "origin", "main:refs/heads/records")
    does(runner, "verify-attn", '[[ $1 != run ]] || { mkdir -p "$3"; echo {} > "$3/run.json"; }')
    server = {"vars.VERIFY_ATTN_URL": "http://127.0.0.1:8000", "vars.VERIFY_ATTN_CONTEXTS": "1k"}
    for job in ("no-gpu", *sorted(GPU_JOBS)):
        ended, said = runner.run(job, event("workflow_dispatch", **server))
        assert ended, said
    called = runner.commands()
    assert {words[0] for words in called} == {"nvidia-smi", "pip", "pytest", "verify-attn"}
    verbs = set()
    for words in called:
        if words[0] == "verify-attn":
            verbs.add(words[1])
            parsed(words[1:])
    assert verbs == {"compile", "doctor", "check", "run", "history"}
    lines = {tuple(words[1:]) for words in called if words[0] == "pytest"}
    assert len(lines) == 4
    for line in lines:
        collected(line, runner.folder)


def parsed(words):
    """Has the real command line parse it; raises for an unknown command, option or value."""
    command = main.commands[words[0]]
    try:
        command.make_context(words[0], list(words[1:]))
    except click.ClickException as wrong:
        pytest.fail(f"verify-attn {' '.join(words)}: {wrong.format_message()}")


def collected(words, folder):
    """Has the real pytest take its options, on a folder with one test and no settings."""
    (folder / "test_one.py").write_text("def test_one(): pass\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    words = [word for word in words if not word.startswith("tests/")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--collect-only", "test_one.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
    )  # fmt: skip
    assert done.returncode in (0, 5), (words, done.stdout, done.stderr)


def test_the_job_without_a_gpu_is_the_readmes_command(runner):
    assert runner.run("no-gpu", event("push"))[0]
    lines = [" ".join(words) for words in runner.commands()]
    readme = (ROOT / "README.md").read_text()
    after = readme.split("<!-- tests -->")[1].splitlines()[2]
    for line in lines[:3]:
        plain = line.replace(".venv/bin/", "")
        assert plain in after.replace("'", "").replace(".venv/bin/", "")


def test_a_failing_gpu_test_fails_its_job_and_the_checks_run_all_the_same(runner):
    does(runner, "pytest", "exit 1")
    ended, _ = runner.run("gpu", event("push"))
    assert not ended
    assert runner.commands()[-1][:2] == ["verify-attn", "check"]


def test_perf_without_a_baseline_passes_and_says_so(runner):
    ended, said = runner.run("perf", event("push"))
    assert ended, said
    for text in (said, runner.summary.read_text()):
        assert "Nothing was compared" in text
        assert "has no perf/nvidia-h200.json yet" in text
    assert not any(words[:2] == ["verify-attn", "compare"] for words in runner.commands())


def test_then_main_keeps_its_times_and_the_next_run_is_held_to_them(runner):
    ended, said = runner.run("perf", event("push"))
    assert ended, said
    ended, said = runner.run("keep-perf", event("push"))
    assert ended, said
    tree = runner.git("ls-tree", "-r", "--name-only", "records", at=runner.remote).split()
    assert tree == ["perf/nvidia-h200.json"]  # nothing else is on the branch

    does(runner, "verify-attn", 'echo "1 cases: $VERDICT"; exit "$CODE"')
    for code, accept, passes in ((0, "", True), (1, "", False), (3, "", False), (1, True, True)):
        runner.environment |= {"CODE": str(code), "VERDICT": f"verdict {code}"}
        ended, said = runner.run("perf", event("push", accept=accept))
        assert ended is passes, said
        assert runner.commands()[-1][:4] == ["verify-attn", "compare", "main.json", "perf.json"]
        parsed(runner.commands()[-1][1:])
        assert f"verdict {code}" in runner.summary.read_text()
    assert "Accepted by hand, although the comparison ended with 1" in said


HOSTILE = "case x\n```\n<h1>out</h1>\n````` more `inline`\n![picture](http://elsewhere/x)"


def fenced(summary):
    """What stands between a fence and the first line that ends it, as Markdown has it."""
    lines = summary.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("```"))
    end = next(i for i in range(start + 1, len(lines))
               if re.fullmatch(f"{lines[start]}`*", lines[i]))  # fmt: skip
    return lines[start + 1 : end], lines[end + 1 :]


@pytest.mark.parametrize("text", [HOSTILE, HOSTILE + "\n", "plain", "", "`" * 50, "\n```"])
def test_no_text_ends_the_block_that_it_is_put_in(text):
    done = subprocess.run(["bash", "ci/fenced.sh"], cwd=ROOT, input=text, text=True, check=True,
                          capture_output=True)  # fmt: skip
    assert fenced(done.stdout) == (text.splitlines(), [])


def test_a_case_that_is_named_like_markdown_stays_in_the_summarys_block(runner):
    ended, said = runner.run("perf", event("push"))
    assert ended, said
    ended, said = runner.run("keep-perf", event("push"))
    assert ended, said
    does(runner, "verify-attn", 'echo "$VERDICT"; exit 1')
    runner.environment["VERDICT"] = HOSTILE
    runner.summary.write_text("")
    runner.run("perf", event("push"))
    assert fenced(runner.summary.read_text())[0] == HOSTILE.splitlines()
    runner.summary.write_text("")
    does(runner, "verify-attn", RUNS.replace('exit "${HISTORY', 'echo "$VERDICT"; exit "${HISTORY'))
    runner.run("nightly", event("schedule"))
    assert fenced(runner.summary.read_text())[0][-5:] == HOSTILE.splitlines()


def test_times_that_were_not_taken_are_no_pass(runner):
    does(runner, "pytest", "exit 1")
    ended, said = runner.run("perf", event("push"))
    assert not ended
    assert "perf.json is not there, so nothing was compared" in said
    (runner.work / "perf.json").write_text('{"benchmarks": []}')
    ended, said = runner.run("perf", event("push"))
    assert not ended
    assert "perf.json has no times of verify_benchmark: KeyError" in said


def test_a_remote_that_cannot_be_read_is_not_taken_for_one_without_records(runner):
    runner.git("remote", "set-url", "origin", str(runner.folder / "nowhere"))
    ended, said = runner.run("perf", event("push"))
    assert not ended
    assert "Nothing was compared" not in said


def test_a_gpu_that_is_not_free_times_nothing(runner):
    does(runner, "nvidia-smi", 'echo "4711, python, 900 MiB"')
    ended, said = runner.run("perf", event("push"))
    assert not ended
    assert "GPU 0 is not free, nothing is timed:\n4711, python, 900 MiB" in said
    assert not any(words[0] == "pytest" for words in runner.commands())


def test_jobs_wait_for_each_other_by_the_lock(runner):
    lock = runner.folder / "lock"
    does(runner, "pytest", f"flock --nonblock {lock} true && echo free || echo held; {PYTEST}")
    for job in ("gpu", "perf"):
        _, said = runner.run(job, event("push"))
        assert "held" in said
        assert "free\n" not in said.replace("is free\n", "")


# -- the night -------------------------------------------------------------------------------------

RUNS = """case $1 in
run) mkdir -p "$3"; echo '{"a": 1}' > "$3/sweep.json"; echo "key=${VERIFY_ATTN_API_KEY-unset}"
     exit "${CODE:-0}";;
history) find "$2" -name '*.json' | sort; exit "${HISTORY:-0}";;
esac"""


def test_the_night_without_a_server_of_its_own(runner):
    does(runner, "verify-attn", RUNS)
    runner.environment["HISTORY"] = "3"  # too few records yet
    ended, said = runner.run("nightly", event("schedule"))
    assert ended, said
    words = next(w for w in runner.commands() if w[:2] == ["verify-attn", "run"])
    assert words[2:] == ["--out", "nightly", "--floors", "tests/e2e/embedded_floors.toml"]
    assert (ROOT / words[-1]).exists()
    assert "key=unset" in said


def test_the_night_with_a_server(runner):
    does(runner, "verify-attn", RUNS)
    known = event(
        "schedule",
        **{"vars.VERIFY_ATTN_URL": "http://10.0.0.1:8000", "secrets.VERIFY_ATTN_API_KEY": "k"},
    )
    ended, said = runner.run("nightly", known)
    assert ended, said
    assert "::warning::VERIFY_ATTN_FLOORS is not set" in said
    assert "key=k" in said
    known |= {"vars.VERIFY_ATTN_FLOORS": "floors.toml", "vars.VERIFY_ATTN_CONTEXTS": "1k,64k"}
    _, said = runner.run("nightly", known)
    assert "::warning::" not in said
    words = [w for w in runner.commands() if w[:2] == ["verify-attn", "run"]][-1]
    assert words[2:] == [
        "--out", "nightly", "--url", "http://10.0.0.1:8000", "--floors", "floors.toml",
        "--contexts", "1k,64k",
    ]  # fmt: skip


def test_a_bad_night_is_red_and_kept_and_part_of_the_next_ones_history(runner):
    does(runner, "verify-attn", RUNS)
    runner.environment["CODE"] = "1"
    ended, said = runner.run("nightly", event("schedule"))
    assert not ended
    assert said.count("/now/sweep.json") == 1  # the history is asked all the same
    ended, said = runner.run("keep-nightly", event("schedule"))
    assert ended, said
    runner.environment |= {"CODE": "0", "HISTORY": "1"}
    ended, said = runner.run("nightly", event("schedule"))
    assert not ended  # something got worse and stayed so
    assert re.search(r"/runs/20\S+Z/sweep\.json", said)
    assert "/now/sweep.json" in said


def test_a_push_that_comes_second_is_made_again(runner, tmp_path):
    race = tmp_path / "remote" / "hooks" / "pre-receive"
    # The first push is refused, as where another one came in between.
    runner._script(race, f"#!/bin/sh\n[ -e {tmp_path}/again ] && exit 0\ntouch {tmp_path}/again\n"
                   "exit 1\n")  # fmt: skip
    (runner.work / "perf.json").write_text(json.dumps(TIMES))
    ended, said = runner.run("keep-perf", event("push"))
    assert ended, said
    assert "try 1 of 3 was not pushed" in said
    ended, said = runner.run("keep-perf", event("push"))
    assert ended
    assert "is there already" in said
    (runner.work / "perf.json").write_text("")
    assert not runner.run("keep-perf", event("push"))[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["../../elsewhere", "a.json"], "is no place on a branch"),
        (["/elsewhere", "a.json"], "is no place on a branch"),
        (["one.json", "a.json", "b.json"], "one.json is one file, 2 were given"),
    ],
)
def test_what_keep_would_put_elsewhere_or_leave_out_is_refused(tmp_path, words, says):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    done = subprocess.run(
        ["bash", str(ROOT / "ci/keep.sh"), *words], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
