"""`verify-attn serve` from outside: what it refuses at start, what it says, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from click.testing import CliRunner

from verify_attn.cli import main
from verify_attn.embedded import NotReadyError, serving
from verify_attn.kernels.base import declare
from verify_attn.serve_command import KEY_VARIABLE

SERVE = [sys.executable, "-m", "verify_attn.cli", "serve"]


@declare(page_sizes=(64,))
def only_64(batch, out, lse):
    """A kernel that wants pages of 64."""


@declare(tree_mask=False)
def chains(batch, out, lse):
    """A kernel without tree mask."""


@declare(architectures=((9, 0),))
def hopper(batch, out, lse):
    """A kernel for a GPU that this machine may lack."""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["huge"], "no preset and no folder 'huge'; there are: tiny, k2.6-rank"),
        (["--kernel", "fast"], "no kernel 'fast'; give one of torch"),
        (["--kernel", "nowhere:run"], "no module 'nowhere'"),
        (["--kernel", "tests.engine.test_serve:only_64"], "declares page sizes"),
        (["--kernel", "tests.engine.test_serve:chains"], "draft trees need a tree mask"),
        (["--kernel", "tests.engine.test_serve:hopper", "--device", "cpu"], "needs a GPU"),
        (["k2.6-rank", "--drafter", "block"], "trained for tiny, not for k2.6-rank"),
        (["--drafter", "oracle"], "no drafter 'oracle'; there are: block, ngram, replay, none"),
        (["--allocator", "best"], "there are: fifo, sorted, contiguous"),
        (["--dtype", "int4"], "there are: float32"),
        (["--budget", "-1"], "budget is -1; it must lie in 0..1024"),
        (["--budget", "1025"], "budget is 1025"),
        (["--page-size", "0"], "page size is 0"),
        (["--context", "1"], "context is 1"),
        (["--context", "1m"], "is no size"),
        (["--context", "32k"], "ask for at most 32736"),
        (["--kv-tokens", "999999999"], "tokens of KV do not fit: cpu has room for"),
        (["--pin", "4"], "add --drafter replay"),
        (["--drafter", "replay", "--pin", "20"], "a step commits 1 to 16 tokens"),
        (["--drafter", "replay", "--pin", "4", "--budget", "1"], "pin is 4 and the budget 1"),
        (["--drafter", "replay", "--corrupt", "2"], "must lie in 0..1"),
        (["--drafter", "replay", "--replay", "missing.txt"], "missing.txt"),
        (["--fill-prompts", "1"], "add --no-prefix-cache"),
        (["--inject", "fire"], "die-in-prefill=TOKENS"),
        (["--running", "17"], "at most 16"),
        (["--chunk", "0"], "chunk is 0"),
        (["--compact", "-1"], "compact"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_refused_with_a_reason(arguments, told):
    result = CliRunner().invoke(main, ["serve", "--port", "0", *arguments])
    assert told in result.stderr
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", "--port", str(port)])
    assert (result.exit_code, "give another --port" in result.stderr) == (2, True)


@pytest.fixture(scope="module")
def url():
    with serving(["tiny"]) as found:
        yield found


def test_it_answers_on_loopback_alone(url):
    assert url.startswith("http://127.0.0.1:")
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "Once", "max_tokens": 5})
    assert answer.json()["usage"]["completion_tokens"] == 5
    about = httpx.get(f"{url}/server_info").json()
    assert about["kernel"] == "torch"
    assert about["kv_bytes_per_token"] == 5 * 80 * 4


def test_a_kernel_that_is_not_ours_is_said_to_be_unchecked():
    with serving(["tiny", "--kernel", "verify_attn.kernels.torch_kernel:torch_verify"]) as url:
        notes = httpx.get(f"{url}/server_info").json()["notes"]
    assert "verify-attn check verify_attn.kernels.torch_kernel:torch_verify" in notes[0]


def test_what_was_sampled_comes_again_with_its_seed(url):
    def ask(seed: int) -> str:
        body = {"prompt": "The", "max_tokens": 20, "temperature": 1.0, "seed": seed}
        return httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_end_it(number, code):
    process = subprocess.Popen(
        [*SERVE, "tiny", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        found = re.search(r"http://\S+", lines[1])
        assert found, lines
        body = {"prompt": "a", "max_tokens": 2000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{found[0]}/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            process.send_signal(number)
            assert process.wait(20) == code
    finally:
        process.kill()
        process.communicate()


def test_a_key_from_the_environment_is_asked_for(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret-word")
    with serving(["tiny"]) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer secret-word"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_what_does_not_start_says_why():
    with pytest.raises(NotReadyError, match="no preset"), serving(["huge"]):
        pass


def test_ready_soon():
    """The issue's promise is 10 s; here against a bare interpreter with torch, in one run."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch, fastapi, uvicorn"], check=True)
    bare = time.monotonic() - start
    start = time.monotonic()
    with serving(["tiny"]):
        ready = time.monotonic() - start
    assert ready < 4 * bare + 2, (ready, bare, os.cpu_count())
