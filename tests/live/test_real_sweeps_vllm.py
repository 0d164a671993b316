"""The product's own sweep against vLLM: exact counts an event, counters, others, and its death."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path

import pytest

from tests.live.real.process import Server, ask, off_the_servers_core
from tests.live.real.sweeping import (
    PROSE,
    TRIES,
    answers,
    causes,
    command,
    ready,
    recorded,
    swept,
)
from tests.live.said import Say
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Acceptance
from verify_attn.live.run import Run
from verify_attn.live.sweep import Progress
from verify_attn.sweep_command import run_sweep

pytestmark = pytest.mark.vllm


class TestPlain:
    def test_a_healthy_sweep(self, vllm_plain: Server, say: Say) -> None:
        named: list[set[str]] = []
        for attempt in range(TRIES):  # a busy machine slows a step, and then that is what is said
            run = swept(vllm_plain, contexts=(300, 600), max_tokens=150, seed=attempt)
            server = run.record([])["server"]
            assert server["facts"]["engine"] == "vLLM"
            assert server["facts"]["context_limit"]["value"] == 16384
            assert server["granted"] == dict.fromkeys(
                ("usage", "per_chunk_usage", "token_ids"), True
            )
            assert server["extras_refused"] == {}
            for point in run.points:
                assert point.context == pytest.approx(point.asked_context, rel=0.02)
                assert point.committed_per_step == 1
            for trial, _ in answers(run):
                m = trial.measurement
                assert (m.completion_tokens, m.timeline.source) == (150, "token ids of each event")
                # By its counter of cache hits: the answer does not say.
                assert trial.cached_tokens == 0
                assert isinstance(trial.acceptance, Absent)
            named.append(causes(run))
            if not named[-1]:
                break
            say(f"a healthy server is swept anew: {named[-1]}")
        assert set() in named, named

    def test_a_context_beyond_its_limit(self, vllm_plain: Server, tmp_path: Path) -> None:
        words = ("--contexts", "300,20k", "--max-tokens", "32")
        done = command(vllm_plain, tmp_path, *words)
        assert done.exit_code == 0
        assert done.statuses == ["pass", "skipped"]
        assert done.record["cases"][1]["reason"].startswith("context overflow: not sent")
        long = recorded(tmp_path, prompt="several words of a prompt\n" * 1100, max_tokens=8)
        refused = command(vllm_plain, tmp_path, "--request", str(long))
        (case,) = refused.record["cases"]
        assert case["status"] == "skipped"
        assert "maximum context length is 16384" in case["reason"]

    def test_a_replayed_prompt_comes_out_of_the_cache(
        self, vllm_plain: Server, tmp_path: Path
    ) -> None:
        messages = [{"role": "user", "content": f"[{time.time_ns()}] {PROSE}"}]
        path = recorded(tmp_path, messages=messages, max_tokens=40, temperature=0)
        done = command(vllm_plain, tmp_path, "--request", str(path), "--repeats", "2")
        (case,) = done.record["cases"]
        first, second = (answer["metrics"] for answer in case["answers"])
        assert first["cached_tokens"] == 0
        # In whole blocks of 128, and never the last token.
        assert second["prompt_tokens"] - 129 <= second["cached_tokens"] < second["prompt_tokens"]
        assert "prefix-cache-hit" in {f["cause"] for f in case["findings"]}

    def test_somebody_elses_request_meanwhile(self, vllm_plain: Server) -> None:
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 100}
        others: list[threading.Thread] = []

        def watch(now: Progress) -> None:
            if now.point == "ctx=600" and now.tokens > 5 and not others:
                send = (vllm_plain.port, "/v1/completions", body)
                others.append(threading.Thread(target=ask, args=send))
                others[0].start()

        run = swept(vllm_plain, watch, contexts=(300, 600), max_tokens=300)
        others[0].join()
        quiet, busy = ({f.cause for f in point.findings} for point in run.points)
        assert "foreign-traffic" not in quiet
        assert "foreign-traffic" in busy
        (said,) = (f for f in run.points[1].findings if f.cause == "foreign-traffic")
        assert (
            "vllm:generation_tokens_total gained 400 generated tokens, ours are 300"
            in said.evidence
        )


class TestSpeculation:
    def test_its_own_draft_is_always_right(self, vllm_self_draft: Server, tmp_path: Path) -> None:
        run = swept(vllm_self_draft, contexts=(300,), max_tokens=400)
        ((trial, _),) = answers(run)
        m, counted = trial.measurement, trial.acceptance
        assert not isinstance(m.steps.tokens, Absent)
        assert m.steps.tokens.tolist() == [1, *[8] * 49, 7]
        assert m.steps.kind == "events"
        assert isinstance(counted, Acceptance)
        assert counted.source == "vLLM /metrics"
        # By delta: of all that it counted since it started, this answer's steps alone.
        assert counted.steps == len(m.steps.tokens) - 1
        assert counted.accepted_drafts == counted.proposed_drafts == 7 * 50
        assert m.committed_per_step == trial.committed_per_step == 8
        # Events of one size, and yet no chunk interval, since the counters say that steps are so.
        assert not causes(run) & {"chunk-interval", "acceptance-falls", "foreign-traffic"}

    def test_steps_without_drafts_count(self, vllm_ngram: Server) -> None:
        """A cycle of 32 tokens: 35 or so of one each until it is found, then six a step."""
        run = swept(vllm_ngram, contexts=(300,), max_tokens=300)
        ((trial, _),) = answers(run)
        m, counted = trial.measurement, trial.acceptance
        assert not isinstance(m.steps.tokens, Absent)
        sizes = m.steps.tokens.tolist()
        assert sizes[:32] == [1] * 32
        assert sizes[-10:-1] == [6] * 9
        assert isinstance(counted, Acceptance)
        assert counted.steps == sum(size > 1 for size in sizes)
        assert counted.committed_per_step == pytest.approx(6, rel=0.05)
        assert trial.committed_per_step == pytest.approx(299 / (len(sizes) - 1), rel=0.02)
        assert trial.step_ms == pytest.approx(m.step_ms, rel=0.03)
        assert "chunk-interval" not in causes(run)


class Killing(Run):
    """Kills the engine in the middle of the second point's answer."""

    server: Server

    async def go(self, watch: object) -> None:
        killed: list[int] = []

        def looking(now: Progress) -> None:
            if now.point == "ctx=500" and now.tokens > 20 and not killed:
                killed.append(self.server.kill_engine())

        await super().go(looking)


def test_its_engine_dies_in_mid_stream(
    vllm_to_kill: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ready(
        vllm_to_kill, contexts=(300, 500, 700, 900), max_tokens=400, log=str(vllm_to_kill.log)
    )
    run = Killing(plain.target, plain.settings)
    run.server = vllm_to_kill
    with off_the_servers_core():
        assert run_sweep(run, None) == 4
    cases = run.record([])["cases"]
    assert [case["status"] for case in cases] == ["pass", "error", "skipped", "skipped"]
    assert cases[0]["metrics"]["decode_tok_s"] > 0
    died = cases[1]
    assert died["died"]
    assert "the server died at ctx=500" in died["reason"]
    assert "server-death" in {f["cause"] for f in died["findings"]}
    # What came until then is kept, with the event that ended it.
    (answer,) = died["answers"]
    assert (answer["outcome"], answer["arrival"]["events"] > 15) == ("failed", True)
    assert "EngineCore encountered an issue" in answer["reason"]
    log = [note for note in died["notes"] if note.startswith("log: ")]
    assert any("EngineDeadError" in line or "died" in line for line in log), log
    assert all("the server died at ctx=500" in case["reason"] for case in cases[2:])
    assert [case["answers"] for case in cases[2:]] == [[], []]
    assert "died at ctx=500" in capsys.readouterr().out


def test_how_it_dies_seen_by_a_plain_client(vllm_ngram_to_kill: Server) -> None:
    port = vllm_ngram_to_kill.port
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 10_000, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    lines = [response.readline() for _ in range(40)]
    vllm_ngram_to_kill.kill_engine()
    lines += response.read().splitlines(keepends=True)
    connection.close()
    *_, error, done = [line for line in lines if line.strip()]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
    assert done == b"data: [DONE]\n"
    seen = []
    deadline = time.monotonic() + 30
    while "refused" not in seen and time.monotonic() < deadline:
        try:
            seen.append(ask(port, "/health", timeout_s=5)[0])
        except ConnectionRefusedError:
            seen.append("refused")
        except (OSError, http.client.HTTPException) as fault:  # closed as it goes down
            seen.append(repr(fault))
        time.sleep(0.05)
    assert 503 in seen
    assert seen[-1] == "refused"
    vllm_ngram_to_kill.supervisor.wait(30)
