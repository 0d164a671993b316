"""Real servers, and what is known of each, so that later tests stand on firm ground."""

from __future__ import annotations

import json
import re
from typing import ClassVar

import pytest

from tests.live.real.process import Server, ask

ONE_AFTER_ANOTHER = "Tell me about attention, please."


def stream(server: Server, tokens: int, path: str = "completions", **extra: object) -> list[dict]:
    """The JSON events of one greedy streamed answer; the last item is {} where [DONE] came."""
    body: dict = {"model": server.model, "stream": True, "temperature": 0, "max_tokens": tokens}
    if path == "completions":
        body["prompt"] = ONE_AFTER_ANOTHER
    else:
        body["messages"] = [{"role": "user", "content": ONE_AFTER_ANOTHER}]
    status, answer = ask(server.port, f"/v1/{path}", body | extra)
    assert status == 200, answer
    blocks = re.split(r"\r?\n\r?\n", answer.decode())
    data = [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]
    return [{} if line == "[DONE]" else json.loads(line) for line in data]


def tokens_an_event(events: list[dict]) -> list[int]:
    """For a stream that was asked for token ids."""
    return [len(event["choices"][0]["token_ids"]) for event in events if event["choices"]]


def texts(events: list[dict]) -> list[str]:
    """The text of each event that has choices; "" where it has none."""
    choices = [event["choices"][0] for event in events if event.get("choices")]
    return [c.get("text", c.get("delta", {}).get("content")) or "" for c in choices]


def counters(server: Server, prefix: str) -> dict[str, float]:
    """Speculation's counters, their names without the prefix."""
    status, answer = ask(server.port, "/metrics")
    assert status == 200
    lines = re.findall(rf"^{prefix}(\w+)(?:\{{.*?\}})? (\S+)$", answer.decode(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


class TestLlamaCpp:
    def test_one_event_a_token_and_usage_on_the_last(self, llamacpp: Server) -> None:
        *events, done = stream(llamacpp, 64)
        assert done == {}
        assert events[-1]["usage"]["completion_tokens"] == 64
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        said = [text for text in texts(events) if text]
        assert len(said) == 64
        assert llamacpp.truth.ids("".join(said), 64)

    def test_chat_has_usage_in_an_event_of_its_own(self, llamacpp: Server) -> None:
        options = {"include_usage": True}
        *events, done = stream(llamacpp, 32, "chat/completions", stream_options=options)
        assert done == {}
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 32
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}

    def test_it_never_stops_by_itself(self, llamacpp: Server) -> None:
        *events, _ = stream(llamacpp, 600, temperature=1.5, seed=1)
        assert events[-1]["usage"]["completion_tokens"] == 600

    def test_a_prompt_of_ten_thousand_tokens(self, llamacpp: Server) -> None:
        *events, _ = stream(llamacpp, 8, prompt="several words of a prompt\n" * 700)
        assert 10_000 < events[-1]["usage"]["prompt_tokens"] < 16_000

    def test_committed_tokens_a_step_are_pinned(
        self, llamacpp_synth4: Server, llamacpp_synth2: Server
    ) -> None:
        for server, pinned in ((llamacpp_synth4, 4.0), (llamacpp_synth2, 2.0)):
            before = counters(server, "llamacpp:spec_decode_num_")
            with server.awake():
                *events, _ = stream(server, 2000, seed=1)
                after = counters(server, "llamacpp:spec_decode_num_")
            assert len([text for text in texts(events) if text]) == 2000
            steps, accepted = (
                after[f"{name}_total"] - before[f"{name}_total"]
                for name in ("drafts", "accepted_tokens")
            )
            # Which drafts are accepted hangs on the seed alone.  The prompt's step gives one token.
            assert abs(1 + accepted / steps - pinned) < 0.05 * pinned, (steps, accepted)
            assert 1 + steps + accepted in (1999, 2000)

    def test_acceptance_is_known_step_by_step(
        self, llamacpp_self_draft: Server, llamacpp_half_draft: Server
    ) -> None:
        for server in (llamacpp_self_draft, llamacpp_half_draft):
            with server.awake():
                *events, _ = stream(server, 700)
            ids = server.truth.ids("".join(texts(events)), 700)
            assert ids
            assert server.draft
            _, *steps = server.truth.steps(server.draft, ids, 7)
            # What a last step has no room for is not counted as accepted.
            accepted = events[-1]["timings"]["draft_n_accepted"]
            assert accepted == sum(steps) - len(steps)
            assert (max(steps), min(steps[:-1])) == (8, 8 if server is llamacpp_self_draft else 1)

    def test_ngram_drafts_once_the_answer_repeats(self, llamacpp_ngram: Server) -> None:
        stream(llamacpp_ngram, 200)
        assert counters(llamacpp_ngram, "llamacpp:spec_decode_num_")["accepted_tokens_total"] > 50

    def test_empty_texts_are_tokens_all_the_same(self, llamacpp_tied: Server) -> None:
        options = {"include_usage": True}
        *events, _ = stream(llamacpp_tied, 64, "chat/completions", stream_options=options)
        assert events[-1]["usage"]["completion_tokens"] == 64
        assert "".join(texts(events)) == ""


class TestTransformersServe:
    def test_usage_unasked_and_no_done(self, hf_serve: Server) -> None:
        first, *events = stream(hf_serve, 64, "chat/completions")
        assert first["choices"][0]["delta"] == {"role": "assistant"}
        assert events[-1]["usage"]["completion_tokens"] == 64
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        said = texts(events[:-1])
        assert len(said) == 64
        assert hf_serve.truth.ids("".join(said), 64)

    def test_completions_too(self, hf_serve: Server) -> None:
        *events, last = stream(hf_serve, 64)
        assert last["usage"]["completion_tokens"] == 64
        assert hf_serve.truth.ids("".join(texts(events)), 64)

    def test_a_field_unknown_to_it_is_refused(self, hf_serve: Server) -> None:
        message = {"role": "user", "content": "Hi"}
        body = {"model": hf_serve.model, "messages": [message], "ignore_eos": True}
        status, answer = ask(hf_serve.port, "/v1/chat/completions", body)
        assert status == 422
        assert "ignore_eos" in json.loads(answer)["detail"]

    def test_routes_that_are_missing_or_fail(self, hf_serve: Server) -> None:
        assert ask(hf_serve.port, "/metrics")[0] == 404
        assert ask(hf_serve.port, "/v1/models")[0] == 500
        status, answer = ask(
            hf_serve.port, "/v1/chat/completions", {"model": "other", "messages": []}
        )
        assert (status, "detail" in json.loads(answer)) == (400, True)

    def test_a_prompt_beyond_the_context_is_answered(self, hf_serve: Server) -> None:
        *_, last = stream(hf_serve, 2, prompt="several words of a prompt\n" * 1100)
        assert last["usage"]["prompt_tokens"] > 16384

    def test_empty_texts_are_tokens_all_the_same(self, hf_serve_tied: Server) -> None:
        *events, last = stream(hf_serve_tied, 64, "chat/completions")
        assert last["usage"]["completion_tokens"] == 64
        assert "".join(texts(events)) == ""


@pytest.mark.vllm
class TestVllm:
    ASKED: ClassVar = {"stream_options": {"include_usage": True}, "return_token_ids": True}

    def test_plain_one_event_a_token_and_usage_in_its_own(self, vllm_plain: Server) -> None:
        *events, usage, done = stream(vllm_plain, 64, **self.ASKED)
        assert done == {}
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 64)
        assert tokens_an_event(events) == [1] * 64
        assert vllm_plain.truth.ids("".join(texts(events)), 64)
        assert counters(vllm_plain, "vllm:spec_decode_num_") == {}

    def test_no_usage_unless_asked(self, vllm_plain: Server) -> None:
        events = stream(vllm_plain, 8, "chat/completions")
        assert not any(event.get("usage") for event in events)
        # The role has an event of its own before the first token's.
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len(events) == 1 + 8 + 1

    def test_a_prompt_too_long_is_refused(self, vllm_plain: Server) -> None:
        body = {"model": "tiny", "prompt": "several words of a prompt\n" * 1100, "max_tokens": 1}
        status, answer = ask(vllm_plain.port, "/v1/completions", body)
        assert status == 400
        assert "maximum context length is 16384" in json.loads(answer)["error"]["message"]

    def test_ngram_drafts_once_the_answer_repeats(self, vllm_ngram: Server) -> None:
        before = counters(vllm_ngram, "vllm:spec_decode_num_")
        *events, _, _ = stream(vllm_ngram, 64, **self.ASKED)
        # 32 tokens to go round, 3 or 4 to look up; then 5 drafts and one more a step, all right.
        sizes = tokens_an_event(events)
        assert sizes[:33] == [1] * 33
        assert sizes[-5:-1] == [6] * 4
        after = counters(vllm_ngram, "vllm:spec_decode_num_")
        drafts, accepted = (
            after[name] - before.get(name, 0) for name in ("drafts_total", "accepted_tokens_total")
        )
        assert (drafts, accepted) == (5, 25)

    def test_its_own_draft_is_always_right(self, vllm_self_draft: Server) -> None:
        before = counters(vllm_self_draft, "vllm:spec_decode_num_")
        *events, _, _ = stream(vllm_self_draft, 64, **self.ASKED)
        sizes = tokens_an_event(events)
        assert sizes == [1, *[8] * 7, 7]
        truth, draft = vllm_self_draft.truth, vllm_self_draft.draft
        ids = truth.ids("".join(texts(events)), 64)
        assert ids
        assert draft
        assert truth.steps(draft, ids, 7) == sizes
        after = counters(vllm_self_draft, "vllm:spec_decode_num_")
        found = {name: after[name] - before.get(name, 0) for name in after}
        assert found["drafts_total"] == 8
        assert found["draft_tokens_total"] == found["accepted_tokens_total"] == 56
