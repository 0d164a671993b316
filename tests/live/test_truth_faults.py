"""Each fault of the ground-truth server is what it says."""

from __future__ import annotations

import time

import pytest

from tests.live.truth import Decode, Fault, Scenario, TruthServer, Wire
from tests.live.truth.plain_client import ask, chat, completion, one
from tests.live.truth.proxy import delay
from tests.live.truth.wire import Event

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FAST = Decode(step_s=0.001, committed=3.0, drafts=4, jitter=0.1)


def test_proxy_by_time_and_by_size() -> None:
    events = [Event(0.01 * i, b"x" * 100, 1) for i in range(1, 11)]
    late = delay(events, Fault(buffer_s=0.04))
    assert [round(e.at_s, 3) for e in late] == [0.04] * 4 + [0.08] * 4 + [0.12] * 2
    full = delay(events, Fault(buffer_bytes=400))
    assert [round(e.at_s, 3) for e in full] == [0.04] * 4 + [0.08] * 4 + [0.1] * 2
    stalled = delay(events, Fault(stall_at=3, stall_s=0.03))
    times = [round(e.at_s, 3) for e in stalled]
    assert times == [0.01, 0.02, 0.03, 0.07, 0.07, 0.07, 0.07, 0.08, 0.09, 0.1]


def test_proxy_and_fake_streaming_leave_the_engine_alone() -> None:
    plain, truth = one(Scenario(decode=FAST))
    for fault in (Fault(buffer_s=0.02), Fault(buffer_bytes=4096), Fault(fake_streaming=True)):
        got, log = one(Scenario(decode=FAST, fault=fault))
        assert got.body == plain.body
        assert [s.end_ns - log.received_ns for s in log.steps] == [
            s.end_ns - truth.received_ns for s in truth.steps
        ]
        assert log.token_sends[0].due_ns > log.steps[0].end_ns
    ends = {s.due_ns // 1_000_000 for s in log.token_sends}
    assert len(ends) <= 2


def test_early_stop_whatever_is_asked() -> None:
    got, log = one(Scenario(decode=Decode(step_s=0.001, stop_at=37)), chat(ignore_eos=True))
    assert got.choices[-1]["finish_reason"] == "stop"
    assert got.usage["completion_tokens"] == log.tokens_sent == 37


@pytest.mark.parametrize(
    ("fault", "ended", "end"),
    [
        (Fault(reset_at=20), "reset", "reset"),
        (Fault(cut_at=20), "eof", "cut"),
        (Fault(close_at=20), "whole", "closed"),
        (Fault(silence_at=20), "silence", "silent"),
        (Fault(error_at=20), "whole", "error"),
        (Fault(error_at=20, error_form="tgi"), "whole", "error"),
    ],
)
def test_answers_that_break_off(fault: Fault, ended: str, end: str) -> None:
    got, log = one(Scenario(decode=Decode(step_s=0.001), fault=fault), silence_s=0.3)
    assert (got.ended, log.end) == (ended, end)
    assert log.tokens_sent == 20
    assert sum(s.committed for s in log.steps) in range(20, 60)  # some more may have been made
    assert not any(c["finish_reason"] for c in got.choices)
    assert got.usage is None
    if end == "error":
        errors = [e for e in got.events if e != "[DONE]" and "error" in e]
        assert len(errors) == 1
        assert (b"event: error" in got.body) == (fault.error_form == "tgi")
        assert got.body.endswith(b"[DONE]\n\n") == (fault.error_form == "openai")
    else:
        assert b"[DONE]" not in got.body


def test_faults_on_named_measured_requests_only() -> None:
    fault = Fault(error_at=0, on=(2,))
    with TruthServer(Scenario(decode=FAST, fault=fault)) as server:
        bodies = [chat(tokens=n) for n in (60, 1, 60, 60)]
        got = [ask(server.port, CHAT, body) for body in bodies]
    assert [b"InternalServerError" in g.body for g in got] == [False, False, True, False]


def test_hang_before_headers_while_health_is_fine() -> None:
    with TruthServer(Scenario(fault=Fault(hang=True))) as server:
        got = ask(server.port, CHAT, chat(), silence_s=0.3)
        assert ask(server.port, "/health").status == 200
    assert (got.raw, got.ended) == (b"", "silence")


def test_keep_alive_then_silence() -> None:
    got, _ = one(
        Scenario(fault=Fault(silence_at=0), wire=Wire(keep_alive=True)), completion(), silence_s=0.3
    )
    assert (got.body, got.ended) == (b": keep-alive\n\n", "silence")


@pytest.mark.parametrize("after", [0, 15])
def test_death_of_the_process(after: int) -> None:
    fault = Fault(die_on=3, die_after=after)
    with TruthServer(Scenario(decode=Decode(step_s=0.001), fault=fault)) as server:
        whole = [ask(server.port, CHAT, chat(tokens=n)).ended for n in (60, 1, 60)]
        assert server.alive
        last = ask(server.port, CHAT, chat())
        server.wait_for_death(5.0)
        refused = ask(server.port, "/health").ended
        assert not server.alive
        logs = server.requests()
    assert whole == ["whole"] * 3
    assert last.ended == "reset"
    assert refused == "refused"
    assert [r.end for r in logs] == ["complete"] * 3 + ["died"]
    assert logs[-1].tokens_sent == after


def test_death_on_a_long_prompt() -> None:
    with TruthServer(Scenario(decode=FAST, fault=Fault(die_above=500))) as server:
        assert ask(server.port, COMPLETIONS, completion("word " * 300)).ended == "whole"
        assert ask(server.port, COMPLETIONS, completion("word " * 500, 1)).ended == "whole"
        assert ask(server.port, COMPLETIONS, completion("word " * 500)).ended == "reset"


def test_refusals() -> None:
    with TruthServer(Scenario(fault=Fault(api_key="sesame"))) as server:
        assert ask(server.port, CHAT, chat()).status == 401
        assert ask(server.port, "/metrics").status == 401
        key = ("Authorization: Bearer sesame",)
        assert ask(server.port, CHAT, chat(), headers=key).status == 200
        other = ask(server.port, CHAT, chat(model="other"), headers=key)
        assert (other.status, other.json["error"]["code"]) == (404, 404)
    html, _ = one(Scenario(fault=Fault(html=True)))
    assert (html.status, b"<html>" in html.body) == (200, True)
    assert one(Scenario(fault=Fault(unavailable=True)))[0].status == 503


def test_warm_up_slows_the_first_measured_request() -> None:
    with TruthServer(Scenario(decode=FAST, fault=Fault(warm_up_s=0.2))) as server:
        for tokens in (1, 60, 60):
            ask(server.port, CHAT, chat(tokens=tokens))
        ttfts = [(r.steps[0].end_ns - r.received_ns) / 1e9 for r in server.requests()]
    assert ttfts == pytest.approx([0.02, 0.22, 0.02], abs=1e-3)


def test_client_that_leaves_stops_the_engine() -> None:
    scenario = Scenario(decode=Decode(step_s=0.5))
    with TruthServer(scenario) as server:
        # The client's patience ends within the prefill's first tokens.
        ask(server.port, CHAT, chat(), silence_s=0.015)
        time.sleep(0.1)
        (log,) = server.requests()
    assert log.end == "left"
    assert len(log.steps) <= 1
