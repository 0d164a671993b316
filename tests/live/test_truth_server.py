"""The ground-truth server is itself right: times, bytes, log, counters, faults."""

from __future__ import annotations

import statistics

import pytest

from tests.live.truth import Decode, Scenario, TruthServer
from tests.live.truth.plain_client import ask, chat, completion


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_log_is_what_was_received(path: str) -> None:
    scenario = Scenario(decode=Decode(step_s=0.001, committed=3.0, drafts=4, jitter=0.1))
    body = chat() if "chat" in path else completion()
    with TruthServer(scenario, keep_bytes=True) as server:
        got = ask(server.port, path, body, headers=("X-Mark: 7",))
        (log,) = server.requests()
    assert got.status == 200
    assert got.ended == "whole"
    assert b"".join(s.data or b"" for s in log.sends) == got.raw
    assert sum(s.size for s in log.sends) == len(got.raw)
    assert log.tokens_sent == sum(s.committed for s in log.steps) == 60
    assert got.usage["completion_tokens"] == 60
    assert got.usage["prompt_tokens"] == log.prompt_tokens
    assert (log.method, log.path, log.body, log.headers["x-mark"]) == ("POST", path, body, "7")
    assert log.end == "complete"
    assert log.measured == 1


@pytest.mark.timing
def test_sends_are_punctual() -> None:
    medians = []
    for _ in range(3):
        with TruthServer(Scenario(decode=Decode(step_s=0.004, jitter=0.1))) as server:
            got = ask(server.port, "/v1/completions", completion(tokens=200))
            (log,) = server.requests()
        medians.append(statistics.median(log.lateness_s))
        print(f"late: median {medians[-1] * 1e6:.1f} us, worst {max(log.lateness_s) * 1e6:.0f} us")
        assert len(got.events) == 202
    assert min(medians) < 0.3e-3
