"""Servers that lie about their counts, and inputs that would let a sweep pass, hang or leak."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from tests.live.scripted import (
    DONE,
    HEAD,
    ROLE,
    Script,
    ScriptedServer,
    as_json,
    reply,
    sse,
    usage,
    word,
)
from tests.live.test_sweep_cli import record, statuses, sweep
from tests.live.truth.http import Request
from verify_attn.live import session
from verify_attn.live.bound import MIN_STEPS, Steps, decide, worst_window
from verify_attn.live.prompts import MAX_CHARS_A_TOKEN, Calibration
from verify_attn.live.settings import Settings, SettingsError

TOKENS = 60
ARGS = ("--contexts", "300,600", "--max-tokens", str(TOKENS), "--budget", "1", "--json", "r.json")
KEY = "hunter2abcdefghijklmnop"  # of no known form, so that only its own text tells
MODELS = as_json({"data": [{"id": "m"}]})
Body = dict[str, Any]


def answer(
    body: Body, *, most: int = 10_000, total: float = 1.0, prompt: int | None = None,
    event: Callable[[int], Body] | None = None,
) -> Script:  # fmt: skip
    """One token an event; ``total`` times as many by the usage."""
    chars = sum(len(message["content"]) for message in body["messages"])
    n = min(body["max_tokens"], most)
    script: list[bytes | float | str] = [HEAD + sse(ROLE), 0.005]
    for i in range(n):
        said: Body = dict(word(finish="length" if i == n - 1 else None))
        if event is not None:
            said["choices"][0].update(event(i))
        script += [sse(said), 0.001]
    prompt = chars // 4 if prompt is None else prompt
    return [*script, sse(usage(round(total * n), prompt)) + DONE]


def run(
    of: Callable[[Body], Script], tmp_path: Path, *args: str, models: Script = MODELS,
    routes: dict[str, Script] | None = None, **env: str,
) -> Result:  # fmt: skip
    def script(request: Request) -> Script:
        if "completions" in request.path:
            return of(request.body)
        if request.path == "/v1/models":
            return models
        return (routes or {}).get(request.path.split("?")[0], reply(404, b"{}"))

    with ScriptedServer(script) as server:
        return sweep(server.url, *ARGS, *args, cwd=tmp_path, **env)


def causes(path: Path) -> set[str]:
    return {finding["cause"] for finding in record(path)["findings"]}


@pytest.mark.parametrize(
    ("kind", "cause"), [("total", "counts-disagree"), ("ids", "counts-disagree"),
                        ("most", "early-stop")],
)  # fmt: skip
def test_a_count_that_lies_is_never_a_pass(kind: str, cause: str, tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "total": {"total": 2.0},  # twice what was asked for
        "ids": {"total": 2.0, "event": lambda i: {"token_ids": [7]}},
        "most": {"most": 16},  # by a limit of the server's own, as if it had been asked
    }
    done = run(lambda body: answer(body, **kinds[kind]), tmp_path)
    assert done.exit_code == 3, done.stdout
    assert set(statuses(tmp_path / "r.json").values()) == {"inconclusive"}
    assert cause in causes(tmp_path / "r.json")


def test_a_constant_count_of_the_prompt(tmp_path: Path) -> None:
    """No prompt grows without end for it, and it is no point of the axis."""
    done = run(lambda body: answer(body, prompt=10), tmp_path)
    assert done.exit_code == 0, done.stdout
    for case in record(tmp_path / "r.json")["cases"]:
        assert "no count of it" in case["absent"]["prompt_tokens"]
    calibration = Calibration([(256, 10), (4096, 10)])
    assert calibration.chars_for(131_072) <= MAX_CHARS_A_TOKEN * 131_072


def test_usage_of_the_prompt_alone_is_no_running_count(tmp_path: Path) -> None:
    def of(body: Body) -> Script:
        script = list(answer(body))
        only = [s.replace(b'"choices"', b'"usage": {"prompt_tokens": 75}, "choices"')
                if isinstance(s, bytes) and b"word" in s else s for s in script]  # fmt: skip
        end = {"choices": [], "usage": {"prompt_tokens": 75, "completion_tokens": None}}
        return [*only[:-1], sse(usage(body["max_tokens"], 75)), sse(end) + DONE]

    done = run(of, tmp_path)
    assert done.exit_code == 0, done.stdout
    found = record(tmp_path / "r.json")
    assert found["server"]["granted"]["usage"] is True
    assert found["server"]["granted"]["per_chunk_usage"] is False


@pytest.mark.parametrize("table", ['model = "*kimi*"', "concurrency = 4"])
def test_floors_that_hold_for_nothing_here(table: str, tmp_path: Path) -> None:
    floors = tmp_path / "f.toml"
    floors.write_text(f"schema_version = 1\n[[floor]]\n{table}\npoints = [[1, 1.0], [9999, 1.0]]\n")
    done = run(answer, tmp_path, "--floors", str(floors))
    assert done.exit_code == 3, done.stdout
    assert "no floor holds for model 'm' at concurrency 1" in done.stdout
    assert "no floor was given" not in done.stdout
    planned = sweep(
        "http://h:1", "--floors", str(floors), "--dry-run", "--model", "m", cwd=tmp_path
    )
    assert "no floor holds here" in planned.stdout


def test_numbers_that_json_has_no_word_for(tmp_path: Path) -> None:
    """Python's servers write NaN, which no record may hold: the run must not be lost to it."""
    info = {"internal_states": [{}], "mem_fraction_static": float("nan"), "page_size": 1,
            "speculative_num_steps": float("inf")}  # fmt: skip
    done = run(answer, tmp_path, "--no-flush", routes={"/server_info": as_json(info)})
    assert done.exit_code == 0, done.stdout + str(done.exception)
    assert record(tmp_path / "r.json")["server"]["facts"]["engine"] == "SGLang"


def test_a_record_that_cannot_be_written_loses_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = run(answer, tmp_path)
    assert done.exit_code == 2
    assert "ctx=600" in done.stdout
    assert "r.json is not written: no space is left on its disk" in done.stderr


def test_one_error_is_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PROBE_AGAIN_S", (0.01, 0.01))
    asked: list[int] = []

    def of(body: Body) -> Script:
        asked.append(body["max_tokens"])
        measured = TOKENS in asked and body["max_tokens"] == 1
        if measured and asked.count(1) == 4:  # the first after the first point
            return reply(503, b'{"error": {"message": "overloaded"}}')
        return answer(body)

    done = run(of, tmp_path)
    assert done.exit_code == 0, done.stdout
    assert "a one-token request failed (HTTP 503: overloaded), a later one did not" in done.stdout


def test_a_server_that_falls_over_unknown_fields(tmp_path: Path) -> None:
    def of(body: Body) -> Script:
        if "return_token_ids" in body:
            return reply(500, b'{"error": {"message": "unexpected keyword argument"}}')
        return answer(body)

    done = run(of, tmp_path)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert record(tmp_path / "r.json")["server"]["granted"]["usage"] is True


def test_a_compressed_answer_is_called_so(tmp_path: Path) -> None:
    def of(body: Body) -> Script:
        if body["max_tokens"] != TOKENS:
            return answer(body)
        return [HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + b"\x1f\x8b\x08"]

    done = run(of, tmp_path)
    assert done.exit_code == 1
    assert "compressed (gzip), although identity was asked for" in done.stdout


def test_the_key_is_in_no_message_of_pytest(pytester: pytest.Pytester) -> None:
    """Echoed by the server in an error: neither on the terminal nor in the JUnit file."""

    def script(request: Request) -> Script:
        if "completions" not in request.path:
            return MODELS if request.path == "/v1/models" else reply(404, b"{}")
        if request.body["max_tokens"] == TOKENS:
            said = request.headers.get("authorization", "none")
            return reply(500, json.dumps({"error": {"message": f"you said {said}"}}).encode())
        return answer(request.body)

    with ScriptedServer(script) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERIFY_ATTN_API_KEY", KEY)
        result = pytester.runpytest_subprocess(
            "--pyargs", "verify_attn.live.suite", "-p", "no:cacheprovider", "-p", "no:xdist",
            "--verify-attn-server", server.url, "--verify-attn-contexts", "300",
            "--verify-attn-max-tokens", str(TOKENS), "--junitxml", "j.xml",
        )  # fmt: skip
    result.assert_outcomes(failed=1)
    shown = result.stdout.str() + result.stderr.str() + (pytester.path / "j.xml").read_text()
    assert "HTTP 500: you said" in shown
    assert KEY not in shown


@pytest.mark.parametrize(
    ("body", "said"),
    [({"prompt": ["a", "b"]}, "holds 2 prompts"), ({"prompt": "a", "model": 5}, "must be a text")],
)
def test_a_recorded_request_of_several_answers(body: Body, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(json.dumps(body))
    done = sweep("http://h:1", "--request", "q.json", cwd=tmp_path)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize("name", ["decode_limit_s", "stall_s", "first_token_s", "budget_s"])
def test_no_limit_is_nan(name: str) -> None:
    with pytest.raises(SettingsError):
        replace(Settings(), **{name: float("nan")})
    with pytest.raises(SettingsError, match=r"1\.\.16,777,216"):
        Settings(contexts=(10**12,))


def test_a_worst_window_has_steps_enough_to_be_decided() -> None:
    """With six tokens a step, 128 tokens are 22 steps: a floor far below could never be held."""
    even = Steps(np.full(150, 0.01), np.full(150, 6.0))
    (worst,) = worst_window([even], 128)
    assert len(worst.seconds) >= MIN_STEPS
    assert decide([worst], 100.0)[0] == "pass"
    tail = Steps(np.r_[np.full(1408, 0.01), np.full(92, 0.1)], np.ones(1500))
    assert worst_window([tail], 128)[0].rate == pytest.approx(10)
