"""What an attack on the server found: each was wrong once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.engine.http.serving import Engine, serving
from tests.engine.small import decoder_of
from verify_attn.cli import main
from verify_attn.engine.drafters.ngram import NgramDrafter
from verify_attn.engine.faults import FaultError, Faults
from verify_attn.engine.http.answers import CompletionAnswer
from verify_attn.engine.http.metrics import PREFIX, Metrics
from verify_attn.engine.http.schemas import Completion
from verify_attn.engine.http.stream import Deltas, Generation
from verify_attn.engine.job import Delta, Job, QueueFullError
from verify_attn.engine.parallel import ParallelError, join
from verify_attn.engine.sampling import LogitsError, Sampling, probabilities, sample
from verify_attn.engine.scheduler import Limits, Scheduler
from verify_attn.serve_command import KEY_VARIABLE


def serve(*arguments: str):
    return CliRunner().invoke(main, ["serve", "--port", "0", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kv-tokens", "0"], "kv-tokens is 0; a pool holds at least 1"),
        (["--kv-tokens", "33"], "the KV pool has 33 tokens, of which a tree needs 32: ask for at "
         "least 34"),
        (["--kv-tokens", "500", "--context", "1k"], "context is 1024; the KV pool has 500 tokens, "
         "of which a tree needs 32: ask for at most 468"),
        (["--context", "1k,4k"], "--context is '1k,4k'; give one size"),
        (["--kv-tokens", "1k,4k"], "--kv-tokens is '1k,4k'; give one size"),
        (["--host", "a..b"], "cannot listen on a..b"),
        (["--kernel", ""], "no kernel ''"),
        (["--fill-prompts", str(2**70), "--no-prefix-cache"], "a seed lies in 0..2^63 - 1"),
        (["--inject", "stall=1:2", "--inject", "stall=3:4"], "stall is given twice"),
        (["--inject", "stall=1:1e300"], "stall=1:1e300: there are"),
    ],
)  # fmt: skip
def test_refused_with_a_reason(arguments, told):
    result = serve(*arguments)
    assert told in result.stderr, result.output
    assert result.exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    result = serve("--device", "cuda")
    assert (result.exit_code, "torch sees no GPU here" in result.stderr) == (2, True)


@pytest.mark.parametrize("key", ["", " key", "a b", "né", "key\n"])
def test_a_key_that_nobody_could_send(monkeypatch, key):
    monkeypatch.setenv(KEY_VARIABLE, key)
    result = serve()
    assert result.exit_code == 2
    assert KEY_VARIABLE in result.stderr
    assert not key.strip() or key.strip() not in result.stderr.replace(KEY_VARIABLE, "")


@pytest.mark.parametrize("world", ["x", "2", "-1"])
def test_a_world_that_torchrun_did_not_set(monkeypatch, world):
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ParallelError, match="start with torchrun, or unset WORLD_SIZE"):
        join("cpu")


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_temperature_near_zero_is_greedy(top_p):
    logits = torch.tensor([[1.0, 3.0, 2.0], [-5.0, -4.0, -3.0]])
    cold = Sampling(5e-324, top_p, seed=1)
    assert sample(logits, [0, 1], cold) == [1, 2]
    assert probabilities(np.array([1.0, 3.0, 2.0]), cold).tolist() == [0.0, 1.0, 0.0]


def test_infinity_is_no_choice():
    with pytest.raises(LogitsError, match="infinity"):
        sample(torch.tensor([[0.0, float("inf")]]), [0], Sampling(1.0))


def engine(faults: Faults | None = None, **limits) -> Scheduler:
    made = Scheduler(
        decoder_of(NgramDrafter(), 3, tokens=200), Limits(300, **limits), Metrics(), faults
    )
    made.start()
    return made


class Heard:
    """A job's deltas; it fails at some."""

    def __init__(self, fails: Callable[[Delta], bool] = lambda delta: False) -> None:
        self.deltas: list[Delta] = []
        self._fails = fails

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if self._fails(delta):
            raise RuntimeError("nobody listens")

    def last(self) -> Delta:
        give_up = time.monotonic() + 20
        while not self.deltas or self.deltas[-1].finish is None:
            assert time.monotonic() < give_up
            time.sleep(0.002)
        return self.deltas[-1]


def submit(one: Scheduler, name: str, new: int, heard: Heard) -> Heard:
    one.submit(Job(name, (1, 2, 3), new, heard, ignore_eos=True))
    return heard


def test_a_listener_that_fails_costs_its_own_job_alone(capfd):
    one = engine()
    broken = submit(one, "broken", 100, Heard(lambda delta: True))
    fine = submit(one, "fine", 20, Heard())
    assert fine.last().finish == "length"
    assert broken.last().finish == "cancelled"
    assert one.alive() is None
    one.close()
    assert "nobody listens" in capfd.readouterr().err


def test_all_are_told_of_a_death_though_one_does_not_listen(capfd):
    one = engine(Faults(out_of_memory=10))
    broken = submit(one, "broken", 100, Heard(lambda delta: delta.finish is not None))
    fine = submit(one, "fine", 100, Heard())
    assert (broken.last().finish, fine.last().finish) == ("error", "error")
    one.close()
    assert one.metrics.registry.get_sample_value(*counted("error")) == 2
    assert one.metrics.registry.get_sample_value(PREFIX + "num_requests_running") == 0
    assert "InjectedOutOfMemoryError" in capfd.readouterr().err


def counted(reason: str) -> tuple[str, dict[str, str]]:
    return PREFIX + "request_success_total", {"finished_reason": reason}


def test_the_whole_answer_is_in_the_metrics_once_it_is_there():
    one = engine()
    found = []

    def listen(delta: Delta) -> None:
        if delta.finish is not None:
            found.append(one.metrics.registry.get_sample_value(*counted("length")))

    heard = Heard()
    one.submit(Job("a", (1, 2), 5, lambda d: (listen(d), heard(d))[0]))
    heard.last()
    one.close()
    assert found == [1]


def test_what_never_fits_is_counted_as_failed():
    one = engine()
    assert submit(one, "a", 250, Heard()).last().finish == "error"
    assert one.metrics.registry.get_sample_value(*counted("error")) == 1
    one.close()


def test_a_burst_on_an_idle_engine_is_no_crowd():
    one = Scheduler(
        decoder_of(NgramDrafter(), 3, tokens=200), Limits(100, running=3, waiting=2), Metrics()
    )
    heard = [submit(one, str(i), 5, Heard()) for i in range(5)]  # before its thread looks
    with pytest.raises(QueueFullError, match="5 requests wait"):
        submit(one, "one too many", 5, Heard())
    one.start()
    assert [h.last().finish for h in heard] == ["length"] * 5
    one.close()


def test_a_stall_does_not_hold_up_the_end():
    one = engine(Faults(stall=(1, 600.0)))
    heard = submit(one, "a", 50, Heard())
    while not heard.deltas:
        time.sleep(0.002)
    start = time.monotonic()
    one.close()
    assert time.monotonic() - start < 10
    assert heard.last().finish == "error"


def test_faults_given_twice():
    with pytest.raises(FaultError, match="give one value"):
        Faults.parse(["acceptance=1", "acceptance=2"])


def test_compaction_looks_no_more_often_than_it_says(monkeypatch):
    monkeypatch.setattr("verify_attn.engine.scheduler.COMPACT_EVERY", 10)
    monkeypatch.setattr("verify_attn.engine.scheduler.REPORT_EVERY_S", 1e9)
    one = engine(compact_pages=4)
    looks = []
    measure = one.decoder.cache.measure
    monkeypatch.setattr(one.decoder.cache, "measure", lambda: (looks.append(1), measure())[1])
    submit(one, "a", 100, Heard()).last()
    loops = one._loops
    one.close()
    assert len(looks) <= loops / 10 + 3


@pytest.mark.parametrize(("stream", "status"), [(True, 200), (True, 503), (False, 503)])
def test_the_servers_end_is_told_to_who_waits(stream, status):
    """What a stop signal cuts off ends as an answer does, and is cancelled in the engine."""

    async def run():
        engine = Engine()
        heard = Deltas(engine)
        request = Completion(prompt="a", stream=stream)
        answer = CompletionAnswer("a", "tiny", (97,), request, lossless=True)
        if status == 200:
            heard.emit(Delta((1,), "x"))
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            await asyncio.sleep(60)

        scope = {"type": "http"}
        task = asyncio.ensure_future(Generation(engine, heard, answer)(scope, receive, send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task
        return sent, engine.cancelled

    sent, cancelled = asyncio.run(run())
    body = b"".join(message.get("body", b"") for message in sent)
    assert sent[0]["status"] == status
    assert b'"message":"the server stops"' in body
    assert body.endswith(b"data: [DONE]\n\n") == (status == 200)
    assert not sent[-1].get("more_body")
    assert cancelled == ["a"]


@pytest.mark.parametrize("content", [b'{"prompt": "\xff"}', b"[" * 100_000, b"9" * 5000])
def test_json_that_python_cannot_hold_is_told_its_rule(content):
    with serving(Engine()) as url:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{url}/v1/completions", content=content, headers=headers)
    assert answer.status_code == 400
    assert "UTF-8" in answer.json()["error"]["message"]


def test_a_path_with_a_slash_too_many_is_refused_in_the_one_form():
    with serving(Engine()) as url:
        answer = httpx.get(f"{url}/health/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, None)


SERVE = [sys.executable, "-m", "verify_attn.cli", "serve", "--port"]


def test_a_closed_standard_output_is_no_reason_to_fail():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen([*SERVE, str(port)], preexec_fn=lambda: os.close(1))
    try:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and process.poll() is None:
            with contextlib.suppress(httpx.ConnectError):
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_standard_output_that_is_full():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*SERVE, "0"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert b"cannot write to standard output" in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.returncode == 2
