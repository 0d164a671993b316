"""Answers of real servers, replayed read by read at their own times: every known count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Acceptance, cached_tokens, from_events
from verify_attn.live.client import Answer
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.server.errors import context_overflow
from verify_attn.live.within import diagnose_answer

RECORDINGS = Path(__file__).parents[1] / "data/live/recordings"
ONE_EACH = "one an event, confirmed by the server's total"
RUNNING = "the server's running count in each event"
IDS = "token ids of each event"
SHARED = "the server's total, shared out by length of text"


class Known(NamedTuple):
    """What a stream holds; None where the server does not say it.

    ``events``   of the stream, [DONE] included
    ``carriers`` of them that brought tokens
    ``first_ms`` the first of those; ``text_ms`` the first with text, where that is another
    """

    prompt: int | None
    tokens: int | None
    events: int
    carriers: int
    first_ms: float
    source: str
    chars: int
    done: bool = True
    outcome: str = "complete"
    finish: str | None = "length"
    text_ms: float | None = None


STREAMS = {
    "hfserve_llama_chat": Known(25, 64, 66, 64, 11.85, ONE_EACH, 197, done=False),
    "hfserve_llama_completions": Known(22, 64, 65, 64, 17.52, ONE_EACH, 174, done=False),
    # It has no context check: 8,800 tokens went in.
    "hfserve_llama_err_toolong": Known(8800, 20, 21, 20, 666.46, ONE_EACH, 82, done=False),
    "llamacpp_draft_completions": Known(22, 64, 66, 64, 4.42, ONE_EACH, 174),
    "llamacpp_llama_chat": Known(25, 64, 68, 64, 3.24, ONE_EACH, 203),
    "llamacpp_llama_completions": Known(22, 64, 66, 64, 6.76, ONE_EACH, 174),
    "llamacpp_llama_completions_cont": Known(22, 64, 66, 64, 1.39, ONE_EACH, 174),
    # It takes any name for its one model.
    "llamacpp_llama_err_badmodel": Known(22, 64, 66, 64, 7.41, ONE_EACH, 174),
    "llamacpp_synth4_completions": Known(22, 1000, 1002, 1000, 5.74, ONE_EACH, 2752),
    "llamacpppy_llama_completions": Known(None, None, 66, 64, 8.36, "", 181),
    # Half a character has no text yet.
    "vllm_bytes_dummy_chat": Known(29, 64, 67, 64, 30.23, ONE_EACH, 128, text_ms=31.28),
    "vllm_llama_chat": Known(25, 64, 67, 64, 7.89, ONE_EACH, 226),
    "vllm_llama_chat_cont": Known(25, 64, 67, 64, 6.98, RUNNING, 226),
    "vllm_llama_completions": Known(22, 64, 66, 64, 12.27, ONE_EACH, 174),
    "vllm_llama_completions_nousage": Known(None, None, 65, 64, 4.54, "", 174),
    "vllm_llama_completions_tokids": Known(22, 64, 66, 64, 5.67, IDS, 174),
    "vllm_llama_draft_completions": Known(22, 64, 11, 9, 38.28, SHARED, 174),
    "vllm_llama_draft_completions_cont": Known(22, 64, 11, 9, 29.08, RUNNING, 174),
    "vllm_llama_ngram_completions": Known(22, 64, 49, 47, 9.82, SHARED, 174),
}
REFUSALS = {  # status; the words; is it a context overflow?
    "hfserve_llama_err_badmodel": (400, "requested 'no-such-model'", False),
    "hfserve_llama_strict_completions": (422, "Unexpected fields", False),
    "llamacpp_llama_err_toolong": (400, "exceeds the available context size", True),
    "vllm_llama_err_badmodel": (404, "does not exist", False),
    "vllm_llama_err_maxtokens": (400, "cannot be greater than max_model_len=2048", True),
    "vllm_llama_err_toolong": (400, "maximum context length", True),
}
FAILED = {"vllm_enginedead_completions", "llamacpppy_llama_err_toolong"}
WITHOUT_CONTEXT = {"vllm_corekilled_midstream", "llamacpp_ping_progress_timings"}


def replay(name: str) -> Answer:
    """The answer as it came."""
    context = json.loads((RECORDINGS / f"{name}.json").read_text())
    body = (RECORDINGS / f"{name}.txt").read_bytes()
    answer = Answer(context["request"], context["path"], 0, sent_ns=0, status=context["status"])
    answer.content_type = context["headers"]["content-type"]
    at = 0
    for ms, size in context["reads"]:
        answer.body += body[at : at + size]
        if answer.status == 200:
            answer.stream.feed(round(ms * 1e6), body[at : at + size])
        at += size
    assert at == len(body)
    answer.stream.end()
    return answer


def known(value: Any) -> Any:
    return None if isinstance(value, Absent) else value


def tokens_of(m: Measurement) -> list[float]:
    assert not isinstance(m.steps.tokens, Absent)
    found: list[float] = m.steps.tokens.tolist()
    return found


def test_every_recording_is_here() -> None:
    names = {path.stem for path in RECORDINGS.glob("*.txt") if "metrics" not in path.stem}
    assert names == set(STREAMS) | set(REFUSALS) | FAILED | WITHOUT_CONTEXT


@pytest.mark.parametrize("name", STREAMS)
def test_stream(name: str) -> None:
    expected, answer = STREAMS[name], replay(name)
    stream, m = answer.stream, measure(answer)
    assert (m.outcome, m.finish, stream.done) == (expected.outcome, expected.finish, expected.done)
    assert sum(read.events for read in stream.reads) == expected.events
    assert len(stream.text) == expected.chars
    assert known(m.prompt_tokens) == expected.prompt
    assert known(m.completion_tokens) == expected.tokens
    assert m.timeline.source == expected.source
    assert len(m.timeline.t_s) == expected.carriers
    assert m.first_token_s == pytest.approx(expected.first_ms / 1e3)
    assert m.first_answer_s == pytest.approx((expected.text_ms or expected.first_ms) / 1e3)
    if expected.tokens is None:
        assert isinstance(m.decode_tok_s, Absent)
        assert "no usage" in m.decode_tok_s.reason
    else:
        assert not isinstance(m.timeline.tokens, Absent)
        assert m.timeline.tokens.sum() == pytest.approx(expected.tokens)
        seconds = m.steps.t_s[-1] - m.steps.t_s[0]
        assert m.decode_tok_s == pytest.approx((expected.tokens - tokens_of(m)[0]) / seconds)


@pytest.mark.parametrize(
    "name",
    [
        *(n for n, of in STREAMS.items() if "vllm" in n and of.carriers == 64 and of.tokens),
        "hfserve_llama_completions", "llamacpp_llama_completions",
    ],
)  # fmt: skip
def test_plain_answers_commit_one_a_step(name: str) -> None:
    m = measure(replay(name))
    assert tokens_of(m) == [1.0] * 64
    assert m.committed_per_step == 1


def test_vllm_its_own_draft_by_the_running_count() -> None:
    m = measure(replay("vllm_llama_draft_completions_cont"))
    assert tokens_of(m) == [1, 8, 8, 8, 8, 8, 8, 8, 7]
    assert m.committed_per_step == 8
    assert m.timeline.exact


def test_vllm_its_own_draft_by_text_alone() -> None:
    """The same answer without counts: a step is off by how long its words are, the mean is not."""
    m = measure(replay("vllm_llama_draft_completions"))
    tokens = tokens_of(m)
    assert len(tokens) == 9
    assert not m.timeline.exact
    assert m.committed_per_step == pytest.approx(8, rel=0.05)
    assert np.abs(np.array(tokens) - [1, 8, 8, 8, 8, 8, 8, 8, 7]).max() < 3


def test_vllm_ngram_by_text_alone() -> None:
    m = measure(replay("vllm_llama_ngram_completions"))
    assert len(m.steps.t_s) == 47
    assert m.committed_per_step == pytest.approx(63 / 46, rel=0.05)


def test_llamacpp_its_own_draft_by_bursts_and_by_its_timings() -> None:
    """One event a token; eight arrive together.  The last two steps and the rest came at once."""
    answer = replay("llamacpp_draft_completions")
    m = measure(answer)
    assert m.steps.kind == "bursts"
    assert tokens_of(m) == [1, 8, 8, 8, 8, 8, 23]
    assert m.committed_per_step == 8
    counted = from_events(answer.stream.events)
    assert isinstance(counted, Acceptance)
    assert counted.committed_per_step == pytest.approx(8, rel=0.15)


def test_llamacpp_synthetic_acceptance_of_four() -> None:
    answer = replay("llamacpp_synth4_completions")
    counted = from_events(answer.stream.events)
    assert isinstance(counted, Acceptance)
    assert counted.committed_per_step == pytest.approx(4, rel=0.05)
    seen = measure(answer).committed_per_step
    assert seen == pytest.approx(counted.committed_per_step, rel=0.15)  # steps of a millisecond


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name: str) -> None:
    status, words, overflow = REFUSALS[name]
    answer = replay(name)
    assert answer.status == status
    assert words in answer.message
    assert answer.failure == f"HTTP {status}: {answer.message}"
    assert (context_overflow(status, answer.error_body) is not None) == overflow


def test_vllm_whose_engine_is_dead() -> None:
    answer = replay("vllm_enginedead_completions")
    assert answer.failure is not None
    assert "EngineCore encountered an issue" in answer.failure
    m = measure(answer)
    assert (m.outcome, m.finish, answer.stream.done) == ("failed", None, True)
    assert isinstance(m.first_token_s, Absent)
    none = Absent("none")
    assert [f.cause for f in diagnose_answer(m, 400, none, none)] == ["request-failed"]


def test_llamacpppy_answers_too_long_a_prompt_with_nothing() -> None:
    answer = replay("llamacpppy_llama_err_toolong")
    assert (answer.status, answer.body, answer.stream.outcome) == (200, b"", "truncated")
    assert isinstance(measure(answer).decode_tok_s, Absent)


def test_vllm_whose_engine_was_killed_in_mid_stream() -> None:
    """17 tokens, an error event, [DONE]: what came before the error is kept."""
    answer = Answer({}, "/v1/completions", 0, sent_ns=0, status=200)
    body = (RECORDINGS / "vllm_corekilled_midstream.txt").read_bytes()
    for i, event in enumerate(body.split(b"\n\n")):
        answer.stream.feed((i + 1) * 2_000_000, event + b"\n\n")
    answer.stream.end()
    m = measure(answer)
    assert (m.outcome, m.finish, answer.stream.done) == ("failed", None, True)
    assert "EngineCore encountered an issue" in m.reason
    assert len(answer.stream.text) == 45
    assert len(m.timeline.t_s) == 17
    assert m.first_token_s == pytest.approx(0.002)
    assert isinstance(m.completion_tokens, Absent)
    assert isinstance(m.decode_tok_s, Absent)


def test_llamacpp_with_pings_progress_and_timings() -> None:
    """Comments, prompt progress before the first token, timings on every event."""
    answer = Answer({}, "/v1/completions", 0, sent_ns=0, status=200)
    body = (RECORDINGS / "llamacpp_ping_progress_timings.txt").read_bytes()
    for i, event in enumerate(body.split(b"\n\n")):
        answer.stream.feed((i + 1) * 10_000_000, event + b"\n\n")
    answer.stream.end()
    m = measure(answer)
    assert (m.outcome, m.completion_tokens, m.prompt_tokens) == ("complete", 8, 8)
    assert len(m.timeline.t_s) == 8
    assert known(m.first_event_s) < known(m.first_token_s)
    assert known(cached_tokens(answer.stream.events)) is not None
