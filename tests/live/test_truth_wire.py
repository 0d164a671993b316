"""Each wire format of the ground-truth server is what it says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.truth import Decode, Scenario, Tokenizer, Wire
from tests.live.truth.plain_client import Received, chat, completion, one
from tests.live.truth.scenario import Overflow

FAST = Decode(step_s=0.001, committed=3.0, drafts=4, jitter=0.1)


def wired(wire: Wire, body: dict[str, Any] | None = None, **more: Any) -> Received:
    """The same, for a format."""
    return one(Scenario(decode=FAST, wire=wire, **more), body)[0]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_prefix_and_pings(newline: Any) -> None:
    got = wired(Wire(newline=newline, data_prefix="data:", ping_every=3, keep_alive=True))
    assert got.body.startswith(f": keep-alive{newline * 2}data:{{".encode())
    assert (b"\r" in got.body) == (newline == "\r\n")
    assert got.body.count(b": ping") >= 5
    assert got.usage["completion_tokens"] == 60


@pytest.mark.parametrize("role", ["none", "headers", "before", "with"])
def test_role_only_chunk(role: Any) -> None:
    wire = Wire(role=role, role_content="null")
    got, log = one(Scenario(decode=FAST, wire=wire))
    is_role = [c["delta"].get("role") == "assistant" for c in got.choices]
    assert sum(is_role) == (role != "none")
    assert is_role[0] == (role != "none")
    start, first = log.received_ns, log.token_sends[0].due_ns
    lead = {"none": [0], "headers": [0], "before": [0, 18], "with": [0]}[role]
    early = [round((s.due_ns - start) / 1e6) for s in log.sends if s.due_ns < first]
    assert early == lead
    if role != "none":
        assert got.choices[0]["delta"]["content"] is None


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "both"])
def test_reasoning_first(key: Any) -> None:
    got = wired(Wire(reasoning_tokens=25, reasoning_key=key))
    plain = wired(Wire()).text()
    keys = ["reasoning_content", "reasoning"] if key == "both" else [key]
    for name in keys:
        assert got.text(name) + got.text() == plain
        assert got.text(name)
    assert got.usage["completion_tokens_details"] == {"reasoning_tokens": 25}


def test_tool_call_deltas() -> None:
    got = wired(Wire(tool_call=True))
    calls = [c["delta"]["tool_calls"][0] for c in got.choices if "tool_calls" in c["delta"]]
    assert calls[0]["function"]["name"] == "look_up"
    said = "".join(c["function"]["arguments"] for c in calls)
    assert said == wired(Wire()).text()


def test_one_event_a_token() -> None:
    got, log = one(Scenario(decode=FAST, wire=Wire(per_token=True)))
    assert [s.tokens for s in log.token_sends] == [1] * 60
    assert len([c for c in got.choices if c["delta"].get("content")]) == 60
    assert len(log.steps) < 30


def test_chunk_interval() -> None:
    _, log = one(Scenario(decode=Decode(step_s=0.001), wire=Wire(chunk_interval=10)))
    assert [s.tokens for s in log.token_sends] == [1, 10, 10, 10, 10, 10, 9]
    assert len(log.steps) == 60


def test_bundled_first_chunk() -> None:
    _, log = one(Scenario(decode=Decode(step_s=0.001, first_commit=6)))
    assert [s.tokens for s in log.token_sends] == [6] + [1] * 54


@pytest.mark.parametrize("finish_event", [False, True])
@pytest.mark.parametrize("usage", ["final", "finish", "never"])
def test_usage_and_finish(usage: Any, finish_event: bool) -> None:
    wire = Wire(usage=usage, finish_event=finish_event, usage_null=True, done=False)
    got = wired(wire)
    *others, last = got.events
    assert got.choices[-1]["finish_reason"] == "length"
    assert all(e["usage"] is None for e in others)
    assert bool(last["usage"]) == (usage != "never")
    assert (last["choices"] == []) == (usage == "final")
    assert bool(got.choices[-1]["delta"].get("content")) != finish_event
    unasked = wired(wire, chat(stream_options={}))
    assert b"usage" not in unasked.body
    assert b"[DONE]" not in got.body


def test_late_usage_comes_late() -> None:
    got, log = one(Scenario(decode=FAST, wire=Wire(usage_delay_s=0.1)))
    assert got.usage
    assert log.sends[-1].due_ns - log.token_sends[-1].due_ns == pytest.approx(1e8, abs=10)


def test_extras_are_granted() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream_options=options, return_token_ids=True)
    got = wired(Wire(continuous_usage=True, token_ids=True, unknown_fields="422"), body)
    counts = [e["usage"]["completion_tokens"] for e in got.events[1:-2]]
    assert [len(c["token_ids"]) for c in got.choices[1:]] == [
        b - a for a, b in zip([0, *counts], counts, strict=False)
    ]
    plain = wired(Wire(), body)
    assert b"token_ids" not in plain.body
    assert plain.body.count(b"usage") == 1


@pytest.mark.parametrize(("how", "said"), [("422", "detail"), ("400", "error"), ("ignore", "")])
def test_unknown_fields(how: Any, said: str) -> None:
    got = wired(Wire(unknown_fields=how), chat(ignore_eos=True))
    assert got.status == (200 if how == "ignore" else int(how))
    assert said == "" or (said in got.json and "ignore_eos" in got.body.decode())


@pytest.mark.parametrize(
    ("form", "status", "contents"),
    [
        ("sglang", 400, {"object", "message", "code"}),
        ("vllm", 400, {"error"}),
        ("vllm-old", 400, {"object", "message"}),
        ("llamacpp", 400, {"error"}),
        ("llamacpp-old", 200, {"error"}),
        ("detail", 400, {"detail"}),
        ("tgi", 422, {"error", "error_type"}),
    ],
)
def test_overflow_bodies(form: Overflow, status: int, contents: set[str]) -> None:
    tokenizer = Tokenizer(context_limit=500, overflow=form)
    for body in (
        completion("word " * 1000),
        completion("word " * 396),
    ):  # alone, and with its answer
        got, log = one(Scenario(tokenizer=tokenizer), body)
        assert got.status == status
        assert contents <= got.json.keys()
        assert "500" in got.body.decode()
        assert log.measured is None
    assert one(Scenario(tokenizer=tokenizer, decode=FAST), completion("hi"))[0].usage


def test_overflow_streams() -> None:
    for form, events in (("sglang-generate", 2), ("lmstudio", 0)):
        tokenizer = Tokenizer(context_limit=500, overflow=form)  # type: ignore[arg-type]
        got, _ = one(Scenario(tokenizer=tokenizer), completion("word " * 1000))
        assert got.status == 200
        assert "text/event-stream" in got.head
        assert len(got.events) == events
