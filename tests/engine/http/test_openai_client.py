"""The official client against the routes: what it parses, and which exceptions it raises."""

from __future__ import annotations

import threading

import openai
import pytest

from tests.engine.http.serving import Engine, answers, deltas, serving
from verify_attn.engine.job import Delta, QueueFullError
from verify_attn.engine.tokenizer import ASSISTANT, BOS, SYSTEM, USER, encode


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def test_models_are_listed_and_found(client: openai.OpenAI, engine: Engine) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("tiny", "verify-attn")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="there is: tiny"):
        client.models.retrieve("org/large")


def test_a_completion(client: openai.OpenAI, engine: Engine) -> None:
    engine.script = answers("Hello world", pieces=3, cached=2)
    answer = client.completions.create(model="tiny", prompt="Hi", seed=-1, stop="x", max_tokens=64)
    assert answer.choices[0].text == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 11
    assert answer.usage.total_tokens == 14
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    (job,) = engine.jobs
    assert job.tokens == (BOS, *b"Hi")
    assert (job.temperature, job.top_p, job.stop) == (1.0, 1.0, ("x",))
    assert job.seed == 2**63 - 1
    assert not job.ignore_eos


def test_a_streamed_completion(client: openai.OpenAI, engine: Engine) -> None:
    engine.script = answers("Hello world", pieces=3)
    stream = client.completions.create(
        model="tiny", prompt="Hi", stream=True, max_tokens=5, temperature=0,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert [c.choices[0].text for c in chunks[:-1]] == ["H", "ell", "o"]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None, None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert engine.jobs[0].temperature == 0


def test_a_chat(client: openai.OpenAI, engine: Engine) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"},
                                         {"type": "text", "text": "b"}]},
        ],
        max_completion_tokens=9, extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    (job,) = engine.jobs
    assert job.tokens == (BOS, SYSTEM, *b"Be brief", USER, *b"a\nb", ASSISTANT)
    assert job.most_tokens == 9
    assert job.ignore_eos


def test_a_streamed_chat(client: openai.OpenAI, engine: Engine) -> None:
    engine.script = answers("Hello world", pieces=4)
    stream = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({c.id for c in chunks}) == 1
    # What is left of the context, since the request names no length.
    assert engine.jobs[0].most_tokens == engine.max_context - len(engine.jobs[0].tokens)


def test_the_client_keeps_what_speculation_did(client: openai.OpenAI, engine: Engine) -> None:
    engine.script = answers("Hello world", pieces=5)
    answer = client.completions.create(model="tiny", prompt="Hi")
    assert answer.model_extra is not None
    assert answer.model_extra["speculation"] == {
        "drafter": "block", "budget": 7, "lossless": True, "steps": 2, "proposed_drafts": 14,
        "accepted_drafts": 8, "committed": [5, 5],
    }  # fmt: skip


def test_token_ids_as_prompt(client: openai.OpenAI, engine: Engine) -> None:
    client.completions.create(model="tiny", prompt=[0, 256, 7])
    client.completions.create(model="tiny", prompt=[[0, 1]])
    client.completions.create(model="tiny", prompt=["ab"])
    assert [job.tokens for job in engine.jobs] == [(0, 256, 7), (0, 1), (BOS, *b"ab")]


def test_errors_are_the_clients_own(client: openai.OpenAI, engine: Engine) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'large'; there is: tiny"):
        client.completions.create(model="large", prompt="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens") as bad:
        client.completions.create(model="tiny", prompt="x", max_tokens=-1)
    assert bad.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="maximum context length") as overflow:
        client.completions.create(model="tiny", prompt="x", max_tokens=10**9)
    assert overflow.value.code == "context_length_exceeded"
    engine.refuses = QueueFullError("64 requests wait already")
    with pytest.raises(openai.InternalServerError, match="64 requests wait") as busy:
        client.completions.create(model="tiny", prompt="x")
    assert busy.value.status_code == 503
    assert busy.value.response.headers["retry-after"] == "1"


def test_the_client_comes_again_while_the_queue_is_full(url: str, engine: Engine) -> None:
    engine.refuses = QueueFullError("full")
    patient = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=1)

    def free() -> None:
        engine.refuses = None

    threading.Timer(0.3, free).start()
    assert patient.completions.create(model="tiny", prompt="x").choices[0].text == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_death_before_the_first_token_has_a_status(
    client: openai.OpenAI, engine: Engine, stream: bool
) -> None:
    engine.script = deltas(Delta(finish="error", error="out of memory in prefill"))
    with pytest.raises(openai.InternalServerError, match="out of memory") as error:
        client.completions.create(model="tiny", prompt="x", stream=stream)
    assert error.value.status_code == 500


def test_death_in_the_middle_of_a_stream(client: openai.OpenAI, engine: Engine) -> None:
    engine.script = deltas(
        Delta((72,), "H"), Delta(finish="error", error="the engine died: of a stall")
    )
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    assert next(stream).choices[0].text == "H"
    with pytest.raises(openai.APIError, match="of a stall"):
        next(stream)


def test_a_key(engine: Engine) -> None:
    with serving(engine, api_key="sesam") as url:
        good = openai.OpenAI(base_url=f"{url}/v1", api_key="sesam", max_retries=0)
        assert good.completions.create(model="tiny", prompt="x").choices[0].text == "Hello"
        bad = openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="Authorization: Bearer"):
            bad.models.list()
    assert len(engine.jobs) == 1


def test_encoding_is_the_engines(client: openai.OpenAI, engine: Engine) -> None:
    client.completions.create(model="tiny", prompt="é🙂")
    assert engine.jobs[0].tokens == (BOS, *encode("é🙂"))
