"""A client that goes away: its job is cancelled, wherever it is."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from tests.engine.http.serving import Engine, answers, deltas, serving, silent
from verify_attn.engine.job import Delta, Job


def send(url: str, body: dict[str, Any]) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps({"prompt": "x", "max_tokens": 2000, **body}).encode()
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
    )
    return sock


@pytest.mark.parametrize("stream", [True, False])
def test_while_nothing_has_come(url: str, engine: Engine, stream: bool) -> None:
    engine.script = silent
    with send(url, {"stream": stream}):
        engine.wait(lambda: bool(engine.jobs))
        assert not engine.cancelled
    engine.wait_cancelled()


@pytest.mark.parametrize("stream", [True, False])
def test_after_prefill(url: str, engine: Engine, stream: bool) -> None:
    engine.script = deltas(Delta((72,), "H"))
    with send(url, {"stream": stream}) as sock:
        engine.wait(lambda: bool(engine.jobs))
        if stream:
            assert b"200 OK" in sock.recv(65536)
    engine.wait_cancelled()


def test_in_decode(url: str, engine: Engine) -> None:
    engine.script = answers("x" * 2000, pause_s=0.005)
    with send(url, {"stream": True}) as sock:
        got = b""
        while got.count(b"data: ") < 5:
            got += sock.recv(65536)
    engine.wait_cancelled()


def test_a_client_that_reads_nothing_and_leaves(url: str, engine: Engine) -> None:
    """The answer stands in the kernel's buffers and in ours, and the sender waits for room."""
    text = "x" * 100_000
    engine.script = deltas(*[Delta((1,), text)] * 100)
    with send(url, {"stream": True}) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        engine.wait(lambda: bool(engine.jobs))
        time.sleep(0.3)
        assert not engine.cancelled
    engine.wait_cancelled()


def test_a_reset_is_a_departure(url: str, engine: Engine) -> None:
    engine.script = silent
    sock = send(url, {"stream": True})
    engine.wait(lambda: bool(engine.jobs))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    sock.close()
    engine.wait_cancelled()


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_was_given_is_not_cancelled(
    url: str, http: httpx.Client, engine: Engine, stream: bool
) -> None:
    for _ in range(5):
        http.post("/v1/completions", json={"prompt": "x", "stream": stream})
    time.sleep(0.1)
    assert not engine.cancelled
    assert len({job.name for job in engine.jobs}) == 5


def test_a_failed_one_is_not_cancelled(http: httpx.Client, engine: Engine) -> None:
    engine.script = deltas(Delta(finish="error", error="no"))
    http.post("/v1/completions", json={"prompt": "x"})
    assert not engine.cancelled


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_died_without_a_word(
    http: httpx.Client, engine: Engine, stream: bool
) -> None:
    def dies(engine: Engine, job: Job) -> None:
        job.emit(Delta((72,), "H"))
        engine.dead = "killed"

    engine.script = dies
    reply = http.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert "the engine died: killed" in reply.text
    assert reply.status_code == (200 if stream else 500)


def test_many_at_once_each_get_their_own(url: str, engine: Engine) -> None:
    def script(engine: Engine, job: Job) -> None:
        answers(bytes(job.tokens[1:]).decode(), pieces=2, pause_s=0.002)(engine, job)

    engine.script = script
    failed: list[str] = []

    def ask(number: int) -> None:
        text = f"client {number}: " + chr(97 + number) * 20
        with httpx.Client(base_url=url, timeout=20, verify=False) as http:
            body = {"prompt": text, "max_tokens": 100}
            got = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        if got != text:
            failed.append(got)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_health_probe_gives_up_and_cleans_up(engine: Engine) -> None:
    engine.script = silent
    with serving(engine, health_limit_s=0.2) as url:
        reply = httpx.get(f"{url}/health_generate")
    assert reply.status_code == 503
    assert "within 0.2 s" in reply.json()["error"]["message"]
    engine.wait_cancelled()


def test_a_server_that_ends_cancels_what_runs(engine: Engine) -> None:
    engine.script = silent
    with serving(engine) as url:
        sock = send(url, {"stream": True})
        engine.wait(lambda: bool(engine.jobs))
    engine.wait_cancelled()
    sock.close()
    # The engine may still emit after the loop is closed.
    engine.jobs[0].emit(Delta((1,), "x"))
