"""Public bugs about what is a token, when the first came and how many there were.

Each is named by its reference; tests/live/README.md has the whole list.
"""

from __future__ import annotations

import pytest

from tests.live.scripted import (
    DONE,
    ROLE,
    Said,
    answered,
    delta,
    measured,
    steady,
    usage,
    word,
)  # fmt: skip
from verify_attn.live.absent import Absent
from verify_attn.live.bound import decide, steps_of
from verify_attn.live.measure import measure
from verify_attn.live.within import diagnose_answer

NONE = Absent("not said")


def causes(*reads: tuple[float, Said], asked: int | None = None) -> set[str]:
    found = measured(*reads)
    return {finding.cause for finding in diagnose_answer(found, asked, NONE, NONE)}


# -- the first token -------------------------------------------------------------------------------


def test_vllm_3768_role_chunk_is_no_first_token() -> None:
    m = measured((0.05, ROLE), (9.0, word()), (9.1, word(finish="stop")), (9.1, usage(2)))
    assert m.first_event_s == 0.05
    assert m.first_token_s == 9.0
    assert m.decode_tok_s == pytest.approx(10.0)


def test_sglang_29251_keep_alive_and_role_are_no_first_token() -> None:
    m = measured((0.01, b": keepalive\n\n"), (0.05, ROLE), (2.0, word()), (2.5, DONE))
    assert m.first_event_s == 0.05
    assert m.first_token_s == 2.0


def test_sglang_29251_tool_call_deltas_are_tokens() -> None:
    call = {"index": 0, "function": {"name": "f", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    m = measured(
        (0.05, ROLE), (1.0, delta(tool_calls=[call])),
        (1.5, delta("tool_calls", tool_calls=[rest])), (1.5, usage(2)), (1.5, DONE),
    )  # fmt: skip
    assert m.first_token_s == m.first_answer_s == 1.0
    assert m.decode_tok_s == pytest.approx(2.0)


def test_aisix_869_empty_content_is_no_token_and_reasoning_is() -> None:
    """183,581 ms were reported, where the first token came after 1,175 ms."""
    thoughts: list[tuple[float, Said]] = [
        (1.175 + i * 0.0145, delta(reasoning_content="x", content=None)) for i in range(1256)
    ]
    end = thoughts[-1][0]
    m = measured((0.1, ROLE), *thoughts, (end + 0.1, word(finish="stop")), (end + 0.1, usage(1257)))
    assert m.first_token_s == 1.175
    assert m.first_answer_s == pytest.approx(end + 0.1)
    assert m.completion_tokens == 1257


def test_sglang_23954_reasoning_alone_has_a_first_token_and_a_count() -> None:
    m = measured(
        (0.5, delta(reasoning_content="so")), (1.5, delta("stop", reasoning_content=" it goes")),
        (1.5, usage(4220)), (1.5, DONE),
    )  # fmt: skip
    assert m.completion_tokens == 4220
    assert m.first_token_s == 0.5
    assert isinstance(m.first_answer_s, Absent)


def test_sglang_23018_no_token_is_no_first_token_of_zero() -> None:
    for reads in ([], [(0.1, ROLE)], [(0.1, ROLE), (0.2, usage(4220)), (0.2, DONE)]):
        m = measured(*reads)
        for name in ("first_token_s", "decode_tok_s", "whole_tok_s", "step_ms"):
            assert isinstance(getattr(m, name), Absent), name
            assert getattr(m, name).reason


def test_inference_perf_559_cut_inside_thinking() -> None:
    m = measured((0.3, delta(reasoning_content="hm")), (0.4, delta("length", reasoning="m")),
                 (0.4, usage(2)), (0.4, DONE))  # fmt: skip
    assert (m.outcome, m.finish) == ("complete", "length")
    assert m.first_token_s == 0.3
    assert isinstance(m.first_answer_s, Absent)


def test_vllm_kimi_both_names_of_reasoning_count_once() -> None:
    answer = answered((0.3, delta(reasoning="a", reasoning_content="a")), (0.4, DONE))
    assert answer.stream.reasoning == "a"


# -- how many tokens -------------------------------------------------------------------------------


def test_llmperf_99_a_chunk_is_not_a_token() -> None:
    m = measured(
        (0.1, word(" the")), (0.2, word(" quick brown fox jumps")),
        (0.3, word(" over the lazy dog", "stop")), (0.3, usage(9)), (0.3, DONE),
    )  # fmt: skip
    assert m.completion_tokens == 9
    assert not isinstance(m.timeline.tokens, Absent)
    assert m.timeline.tokens.sum() == pytest.approx(9)
    assert m.timeline.tokens[0] < 2
    assert m.decode_tok_s == pytest.approx((9 - m.timeline.tokens[0]) / 0.2)


def test_vllm_27869_chunks_of_an_interval_are_no_committed_tokens() -> None:
    reads: list[tuple[float, Said]] = []
    for i in range(40):
        event = word("word " * (10 if i else 1)) | {"usage": usage(10 * i + 1)["usage"]}
        reads.append((0.1 + i * 0.1, event))
    reads += [(4.1, delta("length")), (4.1, DONE)]
    assert "chunk-interval" in causes(*reads)
    assert measured(*reads).decode_tok_s == pytest.approx(100.0)


def test_vllm_7242_the_first_wait_is_no_gap() -> None:
    m = measured(*steady(20, first_s=9.0))
    assert m.max_gap_s == pytest.approx(0.01)


@pytest.mark.parametrize("tokens", [0, 1])
def test_llmeter_31_no_rate_of_one_token_or_none(tokens: int) -> None:
    m = measured((0.2, word("w", "stop")), (0.3, usage(tokens)), (0.3, DONE))
    assert m.first_token_s == 0.2
    assert m.completion_tokens == tokens
    assert isinstance(m.decode_tok_s, Absent)
    assert isinstance(m.step_ms, Absent)
    assert isinstance(m.whole_tok_s, Absent) == (tokens == 0)


def test_vllm_omni_6693_a_rate_that_cannot_be_is_absent_and_no_gate_passes_on_it() -> None:
    """All at one moment: no time passed, so there is no rate; and no floor is held to it."""
    at_once = [(0.2, word()), (0.2, word()), (0.2, word("w", "length")), (0.2, usage(3))]
    answer = answered(*at_once)
    m = measure(answer)
    assert isinstance(m.decode_tok_s, Absent)
    assert m.windows == ()
    found = steps_of(m)
    if not isinstance(found, Absent):
        assert decide([found], 1.0)[0] == "inconclusive"


def test_vllm_omni_6693_infinite_counts_are_none() -> None:
    for counted in (1e400, float("nan"), -5, 10**400, True, "7"):
        m = measured((0.1, word()), (0.2, word("w", "stop")), (0.2, usage(counted)), (0.2, DONE))
        assert isinstance(m.completion_tokens, Absent)
        assert isinstance(m.decode_tok_s, Absent)


def test_llama_benchy_4_usage_null() -> None:
    null = {"usage": None}
    m = measured(
        (0.1, word() | null), (0.2, word("w", "stop") | null), (0.2, usage(2)), (0.2, DONE)
    )
    assert m.completion_tokens == 2
    assert m.timeline.source == "one an event, confirmed by the server's total"


def test_llmeter_34_no_choices_in_the_middle_and_at_the_end() -> None:
    m = measured((0.1, word()), (0.15, usage(1)), (0.2, word("w", "stop")), (0.3, usage(2)))
    assert m.completion_tokens == 2
    assert m.decode_tok_s == pytest.approx(10.0)


def test_bagofwords_742_delta_null() -> None:
    empty = {"choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    answer = answered((0.1, empty), (0.2, word("a")), (0.3, word("b", "stop")), (0.3, usage(2)))
    assert answer.stream.text == "ab"
    assert measure(answer).first_token_s == 0.2


def test_vllm_27572_finish_reason_null_at_the_end() -> None:
    m = measured((0.1, word()), (0.2, word()), (0.2, usage(2)), (0.2, DONE))
    assert (m.outcome, m.finish) == ("complete", None)
    assert m.decode_tok_s == pytest.approx(10.0)


def test_vllm_18687_a_short_answer_is_short() -> None:
    reads = steady(88, finish="stop")
    assert causes(*reads, asked=1500) == {"early-stop"}
    assert measured(*reads).completion_tokens == 88
    assert measured(*reads).decode_tok_s == pytest.approx(100.0)


def test_sglang_bench_without_usage_the_count_is_unknown() -> None:
    """Its own is then the length that was asked for."""
    reads = steady(40)[:-2]
    m = measured(*reads, (1.0, DONE))
    assert isinstance(m.completion_tokens, Absent)
    assert isinstance(m.decode_tok_s, Absent)
    assert m.first_token_s == pytest.approx(0.1)
    assert causes(*reads, (1.0, DONE), asked=264) == {"usage-missing"}


def test_vllm_bench_usage_on_an_event_with_choices_counts() -> None:
    last = word("w", "length") | {"usage": usage(2)["usage"]}
    assert measured((0.1, word()), (0.2, last), (0.2, DONE)).completion_tokens == 2
