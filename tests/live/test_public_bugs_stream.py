"""Public bugs about the bytes of a stream and how it ends.

The first part has every input on which the parsers of six tools were run and differ; the second is
named by reports.  tests/live/README.md has the whole list.
"""

from __future__ import annotations

import json

import pytest

from tests.live.scripted import DONE, ROLE, answered, delta, measured, sse, usage, word
from verify_attn.live.absent import Absent
from verify_attn.live.causes import HIGH
from verify_attn.live.measure import measure
from verify_attn.live.sse import Decoder, Event
from verify_attn.live.stream import Stream
from verify_attn.live.within import diagnose_answer

A, B = (json.dumps(delta(content=text)).encode() for text in ("Hello ", "world"))
COUNT = json.dumps(usage(3)).encode()
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'


def read(*reads: bytes) -> Stream:
    stream = Stream()
    for i, data in enumerate(reads):
        stream.feed(i, data)
    stream.end()
    return stream


def whole(end: bytes = b"\n", data: bytes = b"data: ") -> bytes:
    return b"".join(data + value + end + end for value in (A, B, COUNT, b"[DONE]"))


# -- every input on which the parsers of other tools differ ----------------------------------------

RIGHT = {
    "LF": [whole()],
    "CRLF (inference-perf, vLLM bench: all lost)": [whole(b"\r\n")],
    "CR only (sglang: error)": [whole(b"\r")],
    "no space after data: (sglang, vLLM bench: error)": [whole(data=b"data:")],
    "[DONE] without its space (guidellm: error)": [whole().replace(b" [DONE]", b"[DONE]")],
    "[DONE] with a space after it (guidellm: error)": [whole().replace(b"[DONE]", b"[DONE] ")],
    "a comment (sglang: error)": [b": ping\n\n" + whole()],
    "a comment after an id (httpx-sse, openai: empty event)": [b"id: 1\n" + whole()[:70],
                                                              whole()[70:] + b": ping\n\n"],
    "an event field (vLLM bench, sglang: error)": [b"event: message\n" + whole()],
    "data in several lines (vLLM bench, sglang: error)": [
        whole().replace(b'{"choices": []', b'{"choices":\ndata: []')
    ],
    "a byte order mark (five of six: first event lost)": [b"\xef\xbb\xbf" + whole()],
    "choices null (inference-perf: raises)": [b'data: {"choices":null}\n\n' + whole()],
    "delta null (three raise)": [b'data: {"choices":[{"delta":null}]}\n\n' + whole()],
    "retry and empty data (httpx-sse: error)": [b"retry: 3000\n\ndata:\n\n" + whole()],
    "data after [DONE] (three pass it on)": [whole() + sse(word("more")) + sse(usage(99))],
}  # fmt: skip
at = whole().index(b"Hello ") + 6
RIGHT["a read that ends in a space (vLLM bench: lost)"] = [whole()[:at], whole()[at:]]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("cut", ["as sent", "byte by byte"])
def test_parsers_of_other_tools_differ(name: str, cut: str) -> None:
    reads = RIGHT[name]
    if cut == "byte by byte":
        reads = [bytes([b]) for b in b"".join(reads)]
    stream = read(*reads)
    assert stream.outcome == "complete", stream.reason
    assert stream.text == "Hello world"
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 3


def test_guidellm_unicode_line_separators_are_text() -> None:
    """U+2028, U+2029 and U+0085, raw in a JSON string, end no line."""
    text = "a\u2028b\u2029c\u0085d"
    body = b"data: " + json.dumps(delta(content=text), ensure_ascii=False).encode() + b"\n\n"
    stream = read(body, DONE)
    assert stream.text == text
    assert stream.bad_events == 0


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_openai_the_last_event_without_a_blank_line_is_kept(end: bytes) -> None:
    stream = read(sse(word("Hello ")), b"data: " + B + end)
    assert stream.text == "Hello world"
    assert stream.outcome == "truncated"
    assert "not terminated" in stream.notes[0]


def test_vllm_38732_a_character_cut_in_two() -> None:
    body = b"data: " + json.dumps(delta(content="世界"), ensure_ascii=False).encode() + b"\n\n"
    at = body.index(b"\xe7\x95")
    assert read(body[: at + 1], body[at + 1 :], DONE).text == "世界"
    assert read(*(bytes([b]) for b in body), DONE).text == "世界"


def test_all_six_two_halves_of_a_surrogate_pair_are_one_character() -> None:
    halves = [b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
              b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n']  # fmt: skip
    assert read(*halves, DONE).text == "😀"
    assert read(halves[0], DONE).text.encode() == "\ufffd".encode()


# -- keep-alives -----------------------------------------------------------------------------------


def test_openai_python_2722_a_comment_after_an_id_is_no_event() -> None:
    decoder = Decoder()
    assert decoder.feed(b"id: 1\ndata: x\n\n: ping\n\n") == [Event("x", id="1")]
    assert decoder.close() is None


def test_mistral_vibe_774_a_bare_colon() -> None:
    assert read(b":\n", *[sse(word("a")), b":\n\n", sse(word("b")), b":\n", DONE]).text == "ab"


def test_llm_gateway_2053_a_comment_sent_as_data() -> None:
    stream = read(b"data: : OPENROUTER PROCESSING\n\n", sse(word("a")), DONE)
    assert (stream.outcome, stream.text, stream.bad_events) == ("complete", "a", 1)
    assert stream.notes == ["an event that is no chunk was passed over: ': OPENROUTER PROCESSING'"]


def test_python_sdk_1670_empty_data() -> None:
    stream = read(b"data:\n\n", b"data: \n\n", b"data\n\n", sse(word("a")), DONE)
    assert (stream.outcome, stream.text, stream.bad_events) == ("complete", "a", 0)


# -- text ------------------------------------------------------------------------------------------


def test_openmetadata_29531_always_utf_8() -> None:
    """Read as Latin-1, the second byte of the tick is U+0085, a line end."""
    body = 'data: {"choices":[{"delta":{"content":"✅"}}]}\n\n'.encode()
    assert b"\x85" in body
    assert read(body, DONE).text == "✅"


def test_vllm_50868_bytes_that_are_no_utf_8_cost_no_event() -> None:
    stream = read(
        b'data: {"choices":[{"delta":{"content":"a\xe6\xbb"}}]}\n\n', sse(word("b")), DONE
    )
    assert stream.outcome == "complete"
    assert stream.text.startswith("a\ufffd")
    assert stream.text.endswith("b")


# -- errors and ends -------------------------------------------------------------------------------


def test_sglang_38868_an_error_in_a_200_is_a_failure() -> None:
    answer = answered(
        (0.1, ROLE), (0.2, word("some ")), (0.3, word("text")), (0.4, ERROR), (0.4, DONE)
    )
    stream, m = answer.stream, measure(answer)
    assert stream.outcome == "failed"
    assert "EngineCore encountered an issue" in stream.reason
    assert stream.text == "some text"
    assert m.first_token_s == 0.2
    assert isinstance(m.completion_tokens, Absent)
    assert isinstance(m.decode_tok_s, Absent)


def test_vllm_57519_an_error_without_words_is_a_failure_too() -> None:
    stream = read(sse(word("a")), b'data: {"error":{"code":500}}\n\n', DONE)
    assert (stream.outcome, stream.text) == ("failed", "a")


def test_inference_perf_713_the_diagnosis_names_the_failure() -> None:
    m = measured((0.2, word()), (0.4, ERROR), (0.4, DONE))
    none = Absent("none")
    assert [(f.cause, f.confidence) for f in diagnose_answer(m, 400, none, none)] == [
        ("request-failed", HIGH)
    ]


def test_aiperf_tgi_error_events() -> None:
    named = b'event: error\ndata: {"error":"Request failed","error_type":"generation"}\n\n'
    for body in (named, named.partition(b"\n")[2], b"event: error\ndata: gone\n\n"):
        stream = read(sse(word("a")), body)
        assert stream.outcome == "failed"
        assert stream.text == "a"
    assert "Request failed" in read(named).reason


def test_vllm_52852_a_clean_end_in_the_middle_is_truncated() -> None:
    reads = [(0.1 + i / 10, word()) for i in range(10)]
    m = measured(*reads)
    assert m.outcome == "truncated"
    assert isinstance(m.decode_tok_s, Absent)
    none = Absent("none")
    assert [f.cause for f in diagnose_answer(m, 400, none, none)] == ["stream-truncated"]


def test_trtllm_18289_a_finish_reason_without_done_is_an_end() -> None:
    with_finish = read(sse(word("a")), sse(word("b", "length")), sse(usage(2)))
    assert with_finish.outcome == "complete"
    assert not with_finish.done
    assert read(sse(word("a")), sse(word("b")), sse(usage(2))).outcome == "truncated"


def test_lmstudio_2339_nothing_but_done_is_a_failure() -> None:
    for body in ((DONE,), (sse(usage(0)), DONE)):
        stream = read(*body)
        assert stream.outcome == "failed"
        assert "empty" in stream.reason
