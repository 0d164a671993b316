"""Every field of the answers, in the shapes that vLLM's clients expect."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.engine.http.serving import Engine, answers, deltas
from verify_attn.engine.job import Delta
from verify_attn.engine.tokenizer import ASSISTANT, BOS, USER

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"prompt": "Hi"}


def events(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The JSON events of a stream; it must end with [DONE] and hold nothing else."""
    reply = http.post(path, json={"stream": True, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("\n\n")
    lines = reply.text.removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    assert all(line.startswith("data: {") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_one_event_a_step(http: httpx.Client, engine: Engine) -> None:
    engine.script = answers("Hello world", pieces=4)
    found = events(http, "/v1/completions", **PROMPT, return_token_ids=True)
    assert [event["choices"][0]["text"] for event in found] == ["H", "ello", " wor", "ld"]
    ids = [event["choices"][0]["token_ids"] for event in found]
    assert ids == [[72], [*b"ello"], [*b" wor"], [*b"ld"]]
    assert found[0]["choices"][0]["prompt_token_ids"] == [BOS, *b"Hi"]
    assert all("prompt_token_ids" not in event["choices"][0] for event in found[1:])
    assert {event["object"] for event in found} == {"text_completion"}
    assert all("usage" not in event for event in found)
    assert [event.get("speculation") for event in found[:-1]] == [None] * 3
    assert found[-1]["speculation"]["committed"] == [4, 4, 2]


def test_a_chats_ids_and_role(http: httpx.Client, engine: Engine) -> None:
    engine.script = answers("Hello", pieces=4)
    found = events(http, "/v1/chat/completions", **CHAT, return_token_ids=True)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[0]["prompt_token_ids"] == [BOS, USER, *b"Hi", ASSISTANT]
    assert "token_ids" not in found[0]["choices"][0]
    assert [event["choices"][0]["token_ids"] for event in found[1:]] == [[72], [*b"ello"]]
    assert {event["object"] for event in found} == {"chat.completion.chunk"}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]
)
def test_usage_in_every_event_and_at_the_end(
    http: httpx.Client, engine: Engine, path: str, body: dict[str, Any]
) -> None:
    engine.script = answers("Hello", pieces=2, cached=1)
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = events(http, path, **body, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in found]
    assert (
        counts == [*([0] if path.endswith("chat/completions") else []), 1, 3, 5, 5][-len(found) :]
    )
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert all(event["usage"]["total_tokens"] == event["usage"]["prompt_tokens"]
               + event["usage"]["completion_tokens"] for event in found)  # fmt: skip


def test_a_whole_answers_ids(http: httpx.Client, engine: Engine) -> None:
    completion = http.post("/v1/completions", json={**PROMPT, "return_token_ids": True}).json()
    assert completion["choices"][0]["token_ids"] == [*b"Hello"]
    assert completion["choices"][0]["prompt_token_ids"] == [BOS, *b"Hi"]
    chat = http.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True}).json()
    assert chat["choices"][0]["token_ids"] == [*b"Hello"]
    assert chat["prompt_token_ids"] == [BOS, USER, *b"Hi", ASSISTANT]
    assert chat["speculation"]["steps"] == 4
    plain = http.post("/v1/chat/completions", json=CHAT).json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]


def test_tokens_whose_text_comes_later(http: httpx.Client, engine: Engine) -> None:
    # Half an emoji has tokens and no text; an end mark is a token without text as well.
    emoji = "🙂".encode()
    engine.script = deltas(
        Delta(tuple(emoji[:2])), Delta(tuple(emoji[2:]), "🙂"), Delta((257,), "", "stop")
    )
    found = events(http, "/v1/completions", **PROMPT, return_token_ids=True)
    assert [event["choices"][0]["text"] for event in found] == ["", "🙂", ""]
    assert [len(event["choices"][0]["token_ids"]) for event in found] == [2, 2, 1]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


def test_what_splits_lines_elsewhere_splits_no_event(http: httpx.Client, engine: Engine) -> None:
    text = "a\u2028b\u0085c\r\nd\x00"
    engine.script = deltas(Delta((1,), text, "stop"))
    (event,) = events(http, "/v1/completions", **PROMPT)
    assert event["choices"][0]["text"] == text
    whole = http.post("/v1/completions", json=PROMPT)
    assert whole.json()["choices"][0]["text"] == text
    assert whole.content.isascii()


def test_the_default_length(http: httpx.Client, engine: Engine) -> None:
    http.post("/v1/completions", json={"prompt": "Hi"})
    http.post("/v1/completions", json={"prompt": [1] * (engine.max_context - 5)})
    assert [job.most_tokens for job in engine.jobs] == [16, 5]
    overflow = http.post("/v1/completions", json={"prompt": [1] * engine.max_context})
    assert overflow.json()["error"]["code"] == "context_length_exceeded"


def test_tokenize(http: httpx.Client, engine: Engine) -> None:
    def ask(**body: Any) -> dict[str, Any]:
        reply = http.post("/tokenize", json=body)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    assert ask(prompt="é") == {"count": 3, "max_model_len": 4096, "tokens": [BOS, *"é".encode()]}
    assert ask(prompt="é", add_special_tokens=False)["tokens"] == [*"é".encode()]
    assert ask(prompt="", model="other", content="")["tokens"] == [BOS]
    assert ask(**CHAT)["tokens"] == [BOS, USER, *b"Hi", ASSISTANT]
    neither = http.post("/tokenize", json={})
    assert neither.status_code == 400
    assert "either prompt or messages" in neither.json()["error"]["message"]


def test_health(http: httpx.Client, engine: Engine) -> None:
    assert http.get("/health").status_code == 200
    good = http.get("/health_generate")
    assert good.status_code == 200
    assert engine.jobs[0].most_tokens == 1
    engine.dead = "out of memory"
    for path in ("/health", "/health_generate", "/flush_cache"):
        reply = http.get(path)
        assert reply.status_code == 503
        assert "out of memory" in reply.json()["error"]["message"]
    assert http.post("/v1/completions", json=PROMPT).status_code == 503


def test_flush(http: httpx.Client, engine: Engine) -> None:
    assert http.post("/flush_cache").json() == {"freed_pages": 3}
    assert http.get("/flush_cache?timeout=3").json() == {"freed_pages": 3}
    assert engine.flushed == 2


def test_what_the_server_says_of_itself(http: httpx.Client, engine: Engine) -> None:
    info = http.get("/server_info").json()
    assert info["engine"] == "verify-attn"
    assert (info["kernel"], info["page_size"]) == ("torch", 16)
    assert (info["drafter"], info["budget"], info["lossless"]) == ("block", 7, True)
    assert http.get("/version").json()["version"] == info["version"]
    routes = http.get("/openapi.json").json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/metrics"} <= routes.keys()
