"""Chunked bodies, whatever the cuts between reads, and heads that share a read with them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from itertools import pairwise

import httpcore2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_attn.live.body import Chunked
from verify_attn.live.client import Answer, Client, Limits
from verify_attn.live.target import Target

EVENT = b'data: {"choices":[{"index":0,"text":"word","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CUT_OFF = "peer closed connection"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_any_cut_gives_the_same_bytes(chunks: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(map(chunk, chunks)) + b"0;last\r\nTrailer: x\r\n\r\n" + b"beyond"
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=12))
    edges = [0, *sorted(cuts), len(wire)]
    body = Chunked()
    got = b"".join(body.feed(wire[a:b]) for a, b in pairwise(edges))
    assert got == b"".join(chunks)
    assert body.ended


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    body = Chunked()
    try:
        got = body.feed(data)
    except httpcore2.RemoteProtocolError:
        return
    assert len(got) <= len(data)


@pytest.mark.parametrize(
    "wire", [b"xyz\r\n", b"-1\r\n", b"3\r\nabcd\r\n", b"\r\n", b"1" * 17 + b"\r\n", b"1" * 20_000]
)
def test_what_is_no_chunked_body(wire: bytes) -> None:
    with pytest.raises(httpcore2.RemoteProtocolError, match="malformed chunked body"):
        Chunked().feed(wire)


def answer_to(*writes: bytes) -> Answer:
    """What the client makes of a server that writes these and closes."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            while not received.endswith(b"{}"):
                received += connection.recv(65536)
            for data in writes:
                connection.sendall(data)
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(Target.parse(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        answer = asyncio.run(client.stream("/v1/completions", {}, Limits(stall_s=5)))
        thread.join()
    return answer


ALL = HEAD + chunk(EVENT) + chunk(EVENT) + chunk(DONE)
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT + EVENT + DONE


@pytest.mark.parametrize(
    "writes",
    [
        (ALL,),
        (HEAD, ALL[len(HEAD) :]),
        (ALL[: len(HEAD) - 1], ALL[len(HEAD) - 1 :]),
        (ALL[: len(HEAD) - 3], ALL[len(HEAD) - 3 : len(HEAD) + 5], ALL[len(HEAD) + 5 :]),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + ALL,),
        (ALL.replace(b"Transfer-Encoding: chunked", b"TRANSFER-ENCODING: Chunked"),),
        (UNTIL_CLOSE,),
        (UNTIL_CLOSE.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n"
                             % len(EVENT + EVENT + DONE), 1),),
    ],
    ids=["one", "apart", "in-line-end", "three", "continue", "case", "close", "length"],
)  # fmt: skip
def test_a_body_is_whole_wherever_its_head_ended(writes: tuple[bytes, ...]) -> None:
    stream = answer_to(*writes).stream
    assert stream.outcome == "complete", stream.reason
    assert stream.text == "wordword"


def test_a_chunked_body_that_is_cut_off_is_a_broken_connection() -> None:
    stream = answer_to(HEAD + chunk(EVENT), chunk(EVENT)[:9]).stream
    assert stream.outcome == "failed"
    assert stream.reason.startswith("the connection broke")
    assert CUT_OFF in stream.reason
    assert stream.text == "word"
