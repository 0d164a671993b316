"""The SSE decoder: the standard's rules, any cut between reads, two other decoders beside it."""

import base64
import json
from pathlib import Path

import pytest
from httpx_sse._decoders import SSEDecoder as HttpxSseDecoder
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder as OpenAiDecoder

from verify_attn.live.sse import Decoder, Event
from verify_attn.live.stream import Stream

STREAMS = json.loads((Path(__file__).parents[1] / "data/live/sse_streams.json").read_text())


def decode(*reads: bytes) -> list[Event]:
    decoder = Decoder()
    events = [event for read in reads for event in decoder.feed(read)]
    last = decoder.close()
    return events if last is None else [*events, last]


def read_stream(reads: list[bytes]) -> Stream:
    stream = Stream()
    for i, read in enumerate(reads):
        stream.feed(i, read)
    stream.end()
    return stream


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
@pytest.mark.parametrize("cut", ["as sent", "byte by byte", "in one"])
def test_recorded_streams(case: dict, cut: str) -> None:
    reads = [base64.b64decode(read) for read in case["reads_base64"]]
    whole = b"".join(reads)
    reads = {"as sent": reads, "in one": [whole]}.get(cut, [bytes([b]) for b in whole])
    stream, expected = read_stream(reads), case["expected"]
    assert stream.outcome == expected["outcome"], stream.reason
    if expected["text"] is not None:
        assert stream.text == expected["text"]
    assert stream.reasoning == expected["reasoning"]
    counted = stream.usage.completion_tokens if stream.usage else None
    assert counted == expected["completion_tokens"]


def test_html_standard_examples() -> None:
    """The four examples of section 9.2.6."""
    assert [e.data for e in decode(b"data: YHOO\ndata: +2\ndata: 10\n\n")] == ["YHOO\n+2\n10"]
    second = (
        b": test stream\n\ndata: first event\nid: 1\n\n"
        b"data:second event\nid\n\ndata:  third event\n\n"
    )
    assert [(e.data, e.id) for e in decode(second)] == [
        ("first event", "1"), ("second event", ""), (" third event", ""),
    ]  # fmt: skip
    assert [e.data for e in decode(b"data\n\ndata\ndata\n\ndata:") if e.complete] == ["", "\n"]
    assert [e.data for e in decode(b"data:test\n\ndata: test\n\n")] == ["test", "test"]


def test_fields() -> None:
    assert decode(b"event: error\ndata: x\n\ndata: y\n\n") == [Event("x", "error"), Event("y")]
    assert decode(b"id: a\0b\ndata: x\n\n") == [Event("x")]
    assert decode(b"\xef\xbb\xbfdata: x\n\n") == [Event("x")]
    assert decode(b"\xef", b"\xbb", b"\xbf", b"data: x\n\n") == [Event("x")]
    assert decode(b"data: \xff\n\n") == [Event("�")]
    assert decode(b"data: x") == [Event("x", complete=False)]
    assert decode(b"data: a\r", b"\n\r", b"\ndata: b\r\r") == [Event("a"), Event("b")]


def test_trtllm_13952_a_line_of_600_kb() -> None:
    big = b"x" * 600_000
    body = b"data: " + big + b"\n\n"
    assert decode(*(body[i : i + 997] for i in range(0, len(body), 997)))[0].data == big.decode()


# Lines with everything that the standard gives a meaning to, in bytes that need not be UTF-8.
line_ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
values = st.text(st.sampled_from('ab: {}"\u2028\u0085é世\ufeff'), max_size=8).map(str.encode)
lines = st.one_of(
    st.tuples(st.sampled_from([b"data", b"event", b"id", b"retry", b"", b"junk"]),
              st.sampled_from([b":", b": ", b""]), values | st.binary(max_size=5)).map(b"".join),
    st.just(b""),
).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))  # fmt: skip
streams = st.lists(st.tuples(lines, line_ends).map(b"".join), max_size=12).map(b"".join)


def cut(body: bytes, where: list[int]) -> list[bytes]:
    ends = sorted({w % (len(body) + 1) for w in where})
    return [body[a:b] for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]


@settings(max_examples=400)
@given(streams, st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cut_gives_the_same_events(body: bytes, where: list[int]) -> None:
    assert decode(*cut(body, where)) == decode(body)


@settings(max_examples=200)
@given(streams)
def test_line_ends_are_equal(body: bytes) -> None:
    lf = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decode(lf) == decode(lf.replace(b"\n", b"\r")) == decode(lf.replace(b"\n", b"\r\n"))


@settings(max_examples=200)
@given(streams, st.integers(0, 11), values)
def test_a_comment_anywhere_changes_nothing(body: bytes, at: int, comment: bytes) -> None:
    lf = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").removeprefix(b"\xef\xbb\xbf")
    parts = lf.split(b"\n")
    at %= len(parts)
    with_comment = b"\n".join([*parts[:at], b":" + comment, *parts[at:]])
    assert decode(with_comment) == decode(lf)


@settings(max_examples=300)
@given(streams)
def test_agrees_with_other_decoders(body: bytes) -> None:
    """httpx-sse and the OpenAI SDK, on what they get right: UTF-8, no byte order mark, and a
    stream that ends with a blank line.  Events with empty data are left out: both dispatch one
    after a lone id (openai-python#2722), which the standard forbids."""
    body = body.decode("utf-8", "ignore").replace("\ufeff", "").replace("\0", "").encode() + b"\n\n"
    ours = [(e.data, e.type, e.id) for e in decode(body)]
    found = OpenAiDecoder().iter_bytes([body])
    openai = [(e.data, e.event or "message", e.id or "") for e in found]
    assert [e for e in openai if e[0]] == [e for e in ours if e[0]]
    decoder = HttpxSseDecoder()
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").decode().split("\n")
    sses = [sse for line in lines if (sse := decoder.decode(line)) is not None]
    assert [(e.data, e.event, e.id) for e in sses if e.data] == [e for e in ours if e[0]]
