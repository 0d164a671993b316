"""Requests that must be refused, in OpenAI's form, and none of which may reach the engine."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import tracemalloc
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.http.serving import Engine, serving
from verify_attn.engine.http.guard import LINGER_S, MAX_BODY_BYTES
from verify_attn.engine.http.unsupported import _NEUTRAL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "x"}]


def refused(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert len(reply.content) < 2000
    return dict(body["error"])


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (COMPLETIONS, {}, "prompt", "required"),
        (COMPLETIONS, {"prompt": None}, "prompt", "required"),
        (COMPLETIONS, {"prompt": 5}, "prompt", "text or a list"),
        (COMPLETIONS, {"prompt": []}, "prompt", "at least one"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt", "at least one"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt", "holds 2 prompts; this server takes one"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt", "holds 2 prompts"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt", "holds 2 prompts"),
        (COMPLETIONS, {"prompt": [True]}, "prompt", "whole numbers"),
        (COMPLETIONS, {"prompt": [1.5]}, "prompt", "whole numbers"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", "0 to"),
        (COMPLETIONS, {"prompt": [2**31]}, "prompt", "0 to"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens", "got 0"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": -(10**30)}, "max_tokens", "a huge number"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": "16"}, "max_tokens", "got '16'"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": True}, "max_tokens", "got True"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 1.5}, "max_tokens", "integer"),
        (COMPLETIONS, {"prompt": "x", "temperature": -0.1}, "temperature", "got -0.1"),
        (COMPLETIONS, {"prompt": "x", "temperature": 3}, "temperature", "got 3"),
        (COMPLETIONS, {"prompt": "x", "top_p": 0}, "top_p", "greater than 0"),
        (COMPLETIONS, {"prompt": "x", "seed": 2**63}, "seed", "less than"),
        (COMPLETIONS, {"prompt": "x", "stop": ["a"] * 5}, "stop", "at most 4"),
        (COMPLETIONS, {"prompt": "x", "stop": [""]}, "stop.0", "at least 1"),
        (COMPLETIONS, {"prompt": "x", "stop": ""}, "stop.0", "at least 1"),
        (COMPLETIONS, {"prompt": "x", "stop": [5]}, "stop.0", "string"),
        (COMPLETIONS, {"prompt": "x", "stream": "yes"}, "stream", "boolean"),
        (COMPLETIONS, {"prompt": "x", "stream_options": 1}, "stream_options", "object"),
        (CHAT, {}, "messages", "required"),
        (CHAT, {"messages": []}, "messages", "at least 1"),
        (CHAT, {"messages": "hi"}, "messages", "list"),
        (CHAT, {"messages": [5]}, "messages.0", "object"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages.0.role", "required"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content", "required"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "text"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages", "there are: system"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages.0.content", "'image_url'"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(
    http: httpx.Client, engine: Engine, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    error = refused(http.post(path, json=body))
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not engine.jobs


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "must be a JSON object"),
        (b"{", "no JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff\xfe", "JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}", "temperature"),
        (b'{"prompt": "x", "max_tokens": 1' + b"0" * 5000 + b"}", ""),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
    ],
)
def test_a_body_that_is_no_request(
    http: httpx.Client, engine: Engine, body: bytes, words: str
) -> None:
    reply = http.post(COMPLETIONS, content=body, headers={"Content-Type": "application/json"})
    assert words in refused(reply)["message"]
    assert not engine.jobs


def test_a_form_is_told_its_content_type(http: httpx.Client, engine: Engine) -> None:
    error = refused(http.post(COMPLETIONS, data={"prompt": "x"}))
    assert "x-www-form-urlencoded" in error["message"]


def test_null_is_left_out(http: httpx.Client, engine: Engine) -> None:
    fields = ("model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream",
              "stream_options", "ignore_eos", "return_token_ids")  # fmt: skip
    body = {"prompt": "x", **dict.fromkeys(fields)}
    assert http.post(COMPLETIONS, json=body).status_code == 200
    assert engine.jobs[0].temperature == 1.0


def test_half_an_emoji_in_a_prompt_is_replaced(http: httpx.Client, engine: Engine) -> None:
    body = b'{"prompt": "a\\ud83d", "max_tokens": 1}'
    headers = {"Content-Type": "application/json"}
    assert http.post(COMPLETIONS, content=body, headers=headers).status_code == 200
    assert set(bytes(engine.jobs[0].tokens[1:]).decode()) == {"a", "\ufffd"}
    # As a model's name it is unknown, and the refusal that repeats it can be sent.
    body = b'{"prompt": "a", "model": "\\ud83d"}'
    refused(http.post(COMPLETIONS, content=body, headers=headers), 404)


@pytest.mark.parametrize("name", _NEUTRAL)
def test_an_option_that_is_not_here_is_named(http: httpx.Client, engine: Engine, name: str) -> None:
    error = refused(http.post(CHAT, json={"messages": USER, name: {"other": 1}}))
    assert error["param"] == name
    assert not engine.jobs
    for neutral in (None, *_NEUTRAL[name]):
        assert http.post(CHAT, json={"messages": USER, name: neutral}).status_code == 200
        assert http.post(CHAT, json={"messages": USER, f"x_{name}": 5}).status_code == 200


@pytest.mark.parametrize("body", [{"n": 2}, {"logprobs": 0}, {"logprobs": True}, {"best_of": 2}])
def test_equal_is_not_neutral(http: httpx.Client, engine: Engine, body: dict[str, Any]) -> None:
    refused(http.post(COMPLETIONS, json={"prompt": "x", **body}))


def test_routes(http: httpx.Client, engine: Engine) -> None:
    assert "/nowhere" in refused(http.get("/nowhere"), 404)["message"]
    assert "GET" in refused(http.get(COMPLETIONS), 405)["message"]
    assert "there is: tiny" in refused(http.get("/v1/models/a/b"), 404)["message"]


def test_a_bug_of_ours_has_the_form_too(http: httpx.Client, engine: Engine) -> None:
    def broken(job: object) -> None:
        raise ZeroDivisionError

    engine.submit = broken
    try:
        error = refused(http.post(COMPLETIONS, json={"prompt": "x"}), 500)
    finally:
        del engine.submit
    assert error["type"] == "server_error"
    assert "ZeroDivisionError" in error["message"]


def test_a_key_is_asked_everywhere_but_for_health(engine: Engine) -> None:
    with serving(engine, api_key="sesam") as url, httpx.Client(base_url=url) as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/flush_cache", "/server_info", "/nowhere"):
            for header in (None, "sesam", "Bearer ses", "Basic sesam", "Bearer", "Bearer sesam2"):
                headers = {"Authorization": header} if header else {}
                reply = http.get(path, headers=headers)
                assert refused(reply, 401)["code"] == "invalid_api_key"
                assert reply.headers["www-authenticate"] == "Bearer"
        assert http.get("/metrics", headers={"Authorization": "bearer sesam"}).status_code == 200
        odd = {"Authorization": "Bearer \xe9".encode("latin-1")}
        refused(http.get("/v1/models", headers=odd), 401)
        assert not engine.flushed


def _stream_of(size: int) -> Any:
    piece = b"x" * 65536
    for _ in range(size // len(piece)):
        yield piece


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_mb_is_never_held(http: httpx.Client, engine: Engine, chunked: bool) -> None:
    size = 100 * 2**20
    headers = {} if chunked else {"Content-Length": str(size)}
    tracemalloc.start()
    try:
        reply = http.post(COMPLETIONS, content=_stream_of(size), headers=headers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(MAX_BODY_BYTES) in refused(reply, 413)["message"]
    # A chunked one is held up to the limit, with copies of its last growth.
    assert peak < (4 * MAX_BODY_BYTES if chunked else MAX_BODY_BYTES / 2)
    assert not engine.jobs


def test_a_client_that_reads_last_sees_the_refusal(url: str, engine: Engine) -> None:
    host, port = url.removeprefix("http://").split(":")
    size = 20 * 2**20
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        )
        sock.sendall(b"x" * size)
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_asks_first_sends_no_long_body(url: str, engine: Engine) -> None:
    start = time.monotonic()
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n"
            b"Expect: 100-continue\r\nContent-Type: application/json\r\n\r\n"
        )
        got = b""
        while piece := sock.recv(65536):
            got += piece
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in got
    assert time.monotonic() - start < LINGER_S


def test_a_body_at_the_limit_is_read(engine: Engine) -> None:
    with serving(engine, most_body_bytes=1000) as url, httpx.Client(base_url=url) as http:
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        fits = body + " " * (1000 - len(body))
        headers = {"Content-Type": "application/json"}
        assert http.post(COMPLETIONS, content=fits, headers=headers).status_code == 200
        refused(http.post(COMPLETIONS, content=fits + " ", headers=headers), 413)


def test_a_client_that_goes_away_while_it_sends(url: str, engine: Engine) -> None:
    host, port = url.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    assert not engine.jobs


def test_a_large_prompt_does_not_stop_others(http: httpx.Client, url: str, engine: Engine) -> None:
    text = "x" * (MAX_BODY_BYTES - 100)
    slowest = [0.0]
    done = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url) as other:
            while not done.is_set():
                start = time.monotonic()
                other.get("/health")
                slowest[0] = max(slowest[0], time.monotonic() - start)

    watcher = threading.Thread(target=ask)
    watcher.start()
    error = refused(http.post(COMPLETIONS, json={"prompt": text}, timeout=30))
    done.set()
    watcher.join()
    assert error["code"] == "context_length_exceeded"
    assert slowest[0] < 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["tiny", "user", "text", 10**400, -1, 0, 1]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p",
     "seed", "stop", "stream", "stream_options", "ignore_eos", "return_token_ids", *_NEUTRAL]
)  # fmt: skip
BODIES = st.dictionaries(FIELDS, JSON, max_size=4) | JSON


@given(
    path=st.sampled_from([CHAT, COMPLETIONS, "/tokenize"]),
    start=st.sampled_from([{}, {"prompt": "x"}, {"messages": USER}]),
    body=BODIES,
)
@settings(
    deadline=None, max_examples=200, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_no_json_makes_an_error_of_the_servers(
    http: httpx.Client, engine: Engine, path: str, start: dict[str, Any], body: Any
) -> None:
    engine.jobs.clear()
    whole = {**start, **body} if isinstance(body, dict) else body
    content = json.dumps(whole, allow_nan=True).encode("utf-8", "surrogatepass")
    reply = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code < 500, (whole, reply.text)
    if reply.status_code != 200:
        refused(reply, reply.status_code)
        assert not engine.jobs
