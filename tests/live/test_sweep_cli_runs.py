"""`verify-attn sweep` over whole runs: exit codes, what it keeps, what it sends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.live.test_sweep_cli import FLOOR, QUICK, SMALL, record, statuses, sweep
from tests.live.truth import Decode, Fault, Scenario, Side, Tokenizer, TruthServer, Wire
from tests.unit.user_kernels import COMMAND

pytestmark = pytest.mark.timing


def test_a_pass_a_fail_and_the_floors(tmp_path: Path) -> None:
    """Exit codes 0 and 1; then the first record to compare with, and the reads kept."""
    with TruthServer(Scenario(decode=QUICK)) as server:
        for floor, code in ((100, 0), (5000, 1)):
            (tmp_path / "floors.toml").write_text(FLOOR.format(floor, floor))
            args = ("--floors", "floors.toml", "--budget", "1", "--json", f"{code}.json")
            done = sweep(server.url, *SMALL, *args, cwd=tmp_path)
            assert done.exit_code == code, done.stdout + done.stderr
            status = {0: "pass", 1: "fail"}[code]
            assert set(statuses(tmp_path / f"{code}.json").values()) == {status}
        (tmp_path / "floors.toml").write_text(FLOOR.format(100, 100))
        held = ("--floors", "floors.toml", "--against", "0.json")
        args = (*held, "--reads", "--json", "again.json")
        again = sweep(server.url, *SMALL, *args, cwd=tmp_path)
    assert again.exit_code == 0, again.stdout + again.stderr
    found = record(tmp_path / "again.json")
    assert {s["against"] for case in found["cases"] for s in case["attribution"]} >= {"0.json"}
    assert len(found["reads"]) == 2
    for answer in found["reads"]:
        assert sum(events for _, _, events, _ in answer["reads"]) > 100
    for case in found["cases"]:
        assert case["metrics"]["decode_tok_s"] == pytest.approx(500, rel=0.2)
    unread = sweep("http://127.0.0.1:9", "--against", "floors.toml", cwd=tmp_path)
    assert unread.exit_code == 2
    assert "floors.toml is no record" in unread.stderr


def test_inconclusive(tmp_path: Path) -> None:
    with TruthServer(Scenario(decode=QUICK, wire=Wire(usage="never"))) as server:
        done = sweep(server.url, *SMALL, "--json", "r.json", cwd=tmp_path)
    assert done.exit_code == 3, done.stdout
    assert set(statuses(tmp_path / "r.json").values()) == {"inconclusive"}
    assert "usage" in done.stdout


@pytest.mark.parametrize(
    "form", ["sglang", "sglang-generate", "vllm", "vllm-old", "llamacpp", "llamacpp-old", "detail",
             "tgi"],
)  # fmt: skip
def test_contexts_beyond_the_limit(form: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(context_limit=2000, overflow=form)  # type: ignore[arg-type]
    scenario = Scenario(decode=QUICK, tokenizer=tokenizer, side=Side(max_model_len=False))
    args = ("--contexts", "500,4k", "--max-tokens", "100", "--no-flush", "--json", "r.json")
    with TruthServer(scenario) as server:
        done = sweep(server.url, *args, cwd=tmp_path)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert statuses(tmp_path / "r.json") == {"ctx=500": "pass", "ctx=4k": "skipped"}
    assert "skipped ctx=4k: context overflow: " in done.stdout


def test_interrupt_keeps_the_finished_points(tmp_path: Path) -> None:
    slow = Scenario(decode=Decode(step_s=0.01))
    args = ("--contexts", "500,1k,2k", "--max-tokens", "200", "--no-flush", "--json", "r.json")
    with TruthServer(slow) as server:
        process = subprocess.Popen(
            [*COMMAND, "sweep", "--url", server.url, *args], cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until = time.monotonic() + 60
        while len(server.generations()) < 2:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert len(server.generations()) == 2
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert "interrupted" in out
    found = record(tmp_path / "r.json")
    assert found["cases"][0]["status"] == "pass"
    assert found["cases"][0]["metrics"]["decode_tok_s"] == pytest.approx(100, rel=0.1)
    assert all(case["status"] != "pass" for case in found["cases"][1:])


def test_an_interrupt_before_anything_was_measured_costs_no_record(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("good")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*COMMAND, "sweep", "--url", url, "--json", "r.json"], cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == 130, out + err
    assert "interrupted before anything was measured: nothing is written" in out
    assert (tmp_path / "r.json").read_text() == "good"


def test_dry_run_sends_nothing(tmp_path: Path) -> None:
    with TruthServer(Scenario()) as server:
        (tmp_path / "floors.toml").write_text(FLOOR.format(5, 5))
        args = ("--dry-run", "--floors", "floors.toml", "--json", "r.json")
        done = sweep(server.url, *args, cwd=tmp_path)
        assert server.requests() == []
    assert done.exit_code == 0
    assert "ctx=64k: about" in done.stdout
    assert not (tmp_path / "r.json").exists()


def test_a_death_keeps_earlier_points_and_attaches_the_log(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("loaded\n" * 50 + "RuntimeError: CUDA out of memory\n")
    scenario = Scenario("sglang", decode=QUICK, fault=Fault(die_on=2, die_after=40))
    args = ("--contexts", "500,1k,2k,4k", "--max-tokens", "100", "--log", "server.log")
    with TruthServer(scenario) as server:
        began = time.monotonic()
        done = sweep(server.url, *args, "--json", "r.json", cwd=tmp_path)
        assert time.monotonic() - began < 30
    assert done.exit_code == 4, done.stdout + done.stderr
    found = record(tmp_path / "r.json")
    assert [case["status"] for case in found["cases"]] == ["pass", "error", "skipped", "skipped"]
    assert found["cases"][0]["metrics"]["decode_tok_s"] == pytest.approx(500, rel=0.2)
    assert [case["died"] for case in found["cases"]] == [False, True, False, False]
    assert found["server"]["died_at"] == "ctx=1k"
    assert "log: RuntimeError: CUDA out of memory" in found["cases"][1]["notes"]
    assert "CUDA out of memory" in done.stdout
    assert "the server died at ctx=1k" in done.stdout


def test_request_file(tmp_path: Path) -> None:
    """The user's own body, as it is, and once; neither ignore_eos nor a cache switch is added."""
    messages = [{"role": "user", "content": "why is the sky blue " * 40}]
    body = {"messages": messages, "temperature": 0.7, "max_tokens": 77, "stream": False}
    (tmp_path / "body.json").write_text(json.dumps(body))
    with TruthServer(Scenario(decode=QUICK)) as server:
        done = sweep(server.url, "--request", "body.json", "--json", "r.json", cwd=tmp_path)
        [sent] = [r.body for r in server.generations()]
    assert done.exit_code == 0, done.stdout + done.stderr
    assert (sent["messages"], sent["temperature"], sent["max_tokens"]) == (messages, 0.7, 77)
    assert sent["stream"] is True
    assert not {"ignore_eos", "cache_prompt"} & set(sent)
    [case] = record(tmp_path / "r.json")["cases"]
    assert case["id"] == "request"
    assert case["answers"][0]["metrics"]["completion_tokens"] == 77


def test_what_is_sent(tmp_path: Path) -> None:
    """No proxy of the environment, no compression, one measured request a point."""
    dead = "http://127.0.0.1:9"
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), dead)
    with TruthServer(Scenario(decode=QUICK)) as server:
        done = sweep(server.url, *SMALL, cwd=tmp_path, **proxies)
        requests, measured = server.requests(), server.generations()
    # 3: a busy machine lets steps of 2 ms arrive together, and that is said.
    assert done.exit_code in (0, 3), done.stdout + done.stderr
    assert {r.headers["accept-encoding"] for r in requests} == {"identity"}
    assert len(measured) == 2
    prompts = [json.dumps(r.body) for r in requests if r.body]
    assert len(set(prompts)) == len(prompts)


def test_a_request_that_fails_is_not_sent_again(tmp_path: Path) -> None:
    scenario = Scenario(decode=QUICK, fault=Fault(reset_at=40, on=(1,)))
    with TruthServer(scenario) as server:
        done = sweep(server.url, *SMALL, "--json", "r.json", cwd=tmp_path)
        assert len(server.generations()) == 2
    assert done.exit_code == 1, done.stdout
    assert list(statuses(tmp_path / "r.json").values()) == ["error", "pass"]
