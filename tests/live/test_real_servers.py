"""Real servers, and what is known of each, so that later tests stand on firm ground."""

from __future__ import annotations

import json
import re

from tests.live.real.servers import Server, ask

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
        assert "".join(said) == llamacpp.truth.answer("".join(said), 64)

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
                *events, _ = stream(server, 2000)
                after = counters(server, "llamacpp:spec_decode_num_")
            assert len([text for text in texts(events) if text]) == 2000
            steps, accepted = (
                after[f"{name}_total"] - before[f"{name}_total"]
                for name in ("drafts", "accepted_tokens")
            )
            # 500 steps or more of 0 to 7 accepted drafts each: 5 % is beyond three deviations.
            assert abs(1 + accepted / steps - pinned) < 0.05 * pinned, (steps, accepted)
            assert abs(steps + accepted - 2000) < 16

    def test_ngram_drafts_once_the_answer_repeats(self, llamacpp_ngram: Server) -> None:
        stream(llamacpp_ngram, 200)
        assert counters(llamacpp_ngram, "llamacpp:spec_decode_num_")["accepted_tokens_total"] > 50

    def test_empty_texts_are_tokens_all_the_same(self, llamacpp_tied: Server) -> None:
        options = {"include_usage": True}
        *events, _ = stream(llamacpp_tied, 64, "chat/completions", stream_options=options)
        assert events[-1]["usage"]["completion_tokens"] == 64
        assert "".join(texts(events)) == ""
