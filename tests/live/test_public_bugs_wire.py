"""Public bugs about sockets and time limits, through the sweep's own client and a real socket.

Each is named by its reference; tests/live/README.md has the whole list.
"""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.live.scripted import (
    CHUNKED,
    DONE,
    HEAD,
    RESET,
    ROLE,
    SILENCE,
    Script,
    ScriptedServer,
    as_json,
    ask,
    asked,
    chunked,
    delta,
    reply,
    sse,
    usage,
    word,
)  # fmt: skip
from verify_attn.live.absent import Absent
from verify_attn.live.client import Client, Limits
from verify_attn.live.measure import measure
from verify_attn.live.reply import Unreachable
from verify_attn.live.target import Target

pytestmark = pytest.mark.timing

GOOD: Script = (HEAD, sse(word("a")), 0.05, sse(word("b", "stop")), sse(usage(2)), DONE)
SHORT = Limits(first_token_s=0.4, stall_s=0.4)


# -- the connection --------------------------------------------------------------------------------


def test_sglang_38868_an_error_in_a_200_over_the_wire() -> None:
    error = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'
    answer = asked(HEAD, sse(word("some ")), sse(word("text")), error, DONE)
    assert answer.failure is not None
    assert "EngineCore" in answer.failure
    assert answer.stream.text == "some text"


def test_openai_trtllm_31_an_aborted_chunked_body_fails_and_keeps_what_came() -> None:
    start = [CHUNKED, chunked(sse(word("some "))), chunked(sse(word("text")))]
    for end in ([b"40\r\ndata: {"], [], [0.05, RESET]):
        answer = asked(*start, *end)
        assert answer.stream.outcome == "failed"
        assert answer.stream.reason.startswith("the connection broke")
        assert answer.stream.text == "some text"
        assert isinstance(measure(answer).decode_tok_s, Absent)


def test_vllm_52852_a_clean_end_over_the_wire() -> None:
    for start, end in ((HEAD, []), (CHUNKED, [b"0\r\n\r\n"])):
        pieces = [sse(word()) for _ in range(10)]
        answer = asked(start, *(pieces if start is HEAD else map(chunked, pieces)), *end)
        assert answer.stream.outcome == "truncated"
        assert len(measure(answer).timeline.t_s) == 10


@pytest.mark.parametrize("status", [200, 401, 500])
def test_inference_perf_531_a_body_cut_short_keeps_its_start(status: int) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
    answer = asked(head.encode(), b'{"error": "out of mem')
    assert answer.failure is not None
    assert b"out of mem" in answer.body


def test_sglang_37712_a_reset_before_any_answer() -> None:
    answer = asked(0.05, RESET)
    assert answer.status is None
    assert answer.unreachable
    m = measure(answer)
    assert isinstance(m.first_token_s, Absent)


def test_trtllm_13952_a_chunk_of_600_kb_over_the_wire() -> None:
    big = "x" * 600_000
    for start, frame in ((HEAD, bytes), (CHUNKED, chunked)):
        end = [] if start is HEAD else [b"0\r\n\r\n"]
        answer = asked(start, frame(sse(word(big))), frame(sse(word("y", "stop")) + DONE), *end)
        assert answer.stream.outcome == "complete"
        assert len(answer.stream.text) == 600_001


def test_one_byte_at_a_time() -> None:
    body = sse(word("世")) + sse(word("b", "stop")) + sse(usage(2)) + DONE
    pieces = [piece for b in body for piece in (bytes([b]), 0.0005)]
    answer = asked(HEAD, *pieces)
    assert (answer.stream.outcome, answer.stream.text) == ("complete", "世b")
    assert measure(answer).completion_tokens == 2
    pieces = [piece for b in CHUNKED + chunked(body) for piece in (bytes([b]), 0.0002)]
    assert asked(*pieces).stream.text == "世b"


# -- time limits -----------------------------------------------------------------------------------


def test_vllm_metal_199_silence_after_a_few_chunks_is_a_stall() -> None:
    began = time.monotonic()
    answer = asked(HEAD, sse(word("a")), sse(word("b")), SILENCE,
                   limits=Limits(first_token_s=30, stall_s=0.3))  # fmt: skip
    assert time.monotonic() - began < 5
    assert answer.stream.outcome == "failed"
    assert answer.stream.reason.startswith("stalled: no chunk for 0.3 s")
    assert answer.stream.text == "ab"


def test_vllm_metal_199_comments_are_no_sign_of_life() -> None:
    pings = [piece for _ in range(40) for piece in (b": ping\n\n", 0.05)]
    answer = asked(HEAD, sse(word("a")), *pings, limits=SHORT)
    assert answer.stream.reason.startswith("stalled")


def test_suzent_161_headers_that_come_late_are_waited_for() -> None:
    """The wait for the first token has its own limit, and its clock starts before the send."""
    answer = asked(0.6, *GOOD, limits=Limits(connect_s=0.3, first_token_s=5, stall_s=0.3))
    assert answer.stream.outcome == "complete"
    assert measure(answer).first_token_s == pytest.approx(0.6, abs=0.2)


def test_litellm_1334_each_wait_has_its_own_limit() -> None:
    slow = [piece for _ in range(4) for piece in (sse(word()), 0.25)]
    limits = Limits(first_token_s=0.4, stall_s=0.6)
    done = [sse(word("w", "stop")), DONE]
    assert asked(HEAD, *slow, *done, limits=limits).stream.outcome == "complete"
    late = asked(0.9, HEAD, *slow, *done, limits=limits)
    assert late.unreachable == "no token within 0.4 s of the request"
    after = asked(HEAD, sse(ROLE), 0.9, *slow, limits=limits)
    assert after.stream.reason == "no token within 0.4 s of the request"


def test_hermes_agent_6967_a_long_answer_has_no_limit_of_a_read() -> None:
    """It goes on for many times its stall limit, and httpx's default of 5 s holds nowhere."""
    pieces = [piece for _ in range(20) for piece in (sse(word()), 0.1)]
    answer = asked(HEAD, *pieces, sse(word("w", "stop")), DONE, limits=SHORT)
    assert answer.stream.outcome == "complete"


def test_freetoken_172_a_chat_that_hangs_while_models_answers() -> None:
    def script(request: object) -> Script:
        path = getattr(request, "path", "")
        return as_json({"data": [{"id": "m"}]}) if path == "/v1/models" else (SILENCE,)

    with ScriptedServer(script) as server:
        fetched = asyncio.run(Client(Target.parse(server.url)).fetch("GET", "/v1/models"))
        assert fetched.ok
        answer = ask(server.url, SHORT)
    assert answer.unreachable == "no token within 0.4 s of the request"


def test_aicr_1196_a_slow_first_answer_is_within_the_default_limit() -> None:
    """42 s of graph capture met a client's limit of 30 s."""
    assert Limits().first_token_s >= 300


def test_lmstudio_2339_an_empty_body_is_a_failure() -> None:
    for body in ((), (DONE,), (sse(usage(0)), DONE)):
        answer = asked(HEAD, *body)
        assert answer.failure, body
        assert "empty" in answer.failure
    assert asked(HEAD, b": ping\n\n").failure


def test_a_stream_left_open_after_its_end_is_not_waited_for() -> None:
    began = time.monotonic()
    answer = asked(*GOOD, SILENCE)
    assert answer.stream.outcome == "complete"
    assert time.monotonic() - began < 2


def test_fake_streaming_has_no_rate() -> None:
    """kekzl/imp#754, claude-code-local#39: everything at the end of a long wait."""
    answer = asked(HEAD, 1.0, b"".join(sse(word()) for _ in range(300)), sse(usage(300)), DONE)
    m = measure(answer)
    assert isinstance(m.decode_tok_s, Absent)
    assert "nothing was streamed" in m.decode_tok_s.reason or "first chunk" in m.decode_tok_s.reason


def test_chunks_without_an_answer_do_not_go_on_for_ever() -> None:
    """Empty choices are no sign of life, and empty deltas count towards the limit of decoding."""
    counts = [piece for _ in range(60) for piece in (sse(usage(1)), 0.05)]
    stalled = asked(HEAD, sse(word()), *counts, limits=SHORT)
    assert stalled.stream.reason.startswith("stalled")
    nothing = [piece for _ in range(60) for piece in (sse(delta()), 0.05)]
    limits = Limits(first_token_s=0.4, stall_s=0.4, decode_s=0.5)
    stopped = asked(HEAD, sse(word()), *nothing, limits=limits)
    assert (stopped.stream.outcome, measure(stopped).outcome) == ("stopped", "stopped")


# -- what is sent ----------------------------------------------------------------------------------


def test_no_retries_no_proxies_no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with ScriptedServer(lambda request: GOOD) as server:
        assert ask(server.url, api_key="sk-test-0123456789").failure is None
        [request] = server.requests
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["authorization"] == "Bearer sk-test-0123456789"
    for script in ((RESET,), (HEAD, RESET), reply(500, b"{}"), reply(429, b"{}"), (SILENCE,)):
        with ScriptedServer(lambda request, script=script: script) as server:
            assert ask(server.url, SHORT).failure is not None
            assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with ScriptedServer(
        lambda request: reply(status, b"", "text/html", "location: https://elsewhere.invalid/v1")
    ) as server:
        answer = ask(server.url)
        assert len(server.requests) == 1
    assert answer.status == status
    assert answer.failure is not None
    assert "https://elsewhere.invalid/v1" in answer.failure


def test_whole_answers_have_a_limit_too() -> None:
    with ScriptedServer(lambda request: (SILENCE,)) as server:
        client = Client(Target.parse(server.url))
        with pytest.raises(Unreachable, match=r"GET /metrics gave no answer within 0\.2 s"):
            asyncio.run(client.fetch("GET", "/metrics", timeout_s=0.2))


def test_an_answer_that_is_no_stream_is_a_failure() -> None:
    whole = {"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 1}}
    answer = asked(*reply(200, json.dumps(whole).encode()))
    assert answer.failure is not None
    assert "application/json" in answer.failure
    page = asked(*reply(200, b"<html><body>It works</body></html>", "text/html"))
    assert page.failure is not None
    assert "text/html" in page.failure
