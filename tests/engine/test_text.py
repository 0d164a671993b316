"""From tokens to text: stop strings, half characters, marks, the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_attn.engine.text import Answer
from verify_attn.engine.tokenizer import ASSISTANT, BOS, EOS, USER, decode, encode, encode_chat


def feed(answer: Answer, tokens: list[int], size: int) -> tuple[list[int], str]:
    counted: list[int] = []
    text = ""
    for at in range(0, len(tokens), size):
        some, more = answer.add(tokens[at : at + size])
        counted += some
        text += more
        if answer.finish is not None:
            break
    return counted, text


@given(st.text(max_size=40), st.integers(1, 7))
def test_text_comes_out_as_it_went_in(text: str, size: int):
    tokens = encode(text)
    counted, out = feed(Answer(len(tokens) + 1, (), False), [*tokens, EOS], size)
    assert out == decode(tokens)
    assert counted == [*tokens, EOS]


@given(
    st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(1, 5),
)  # fmt: skip
def test_a_stop_string_ends_the_text_before_it(text: str, stops: list[str], size: int):
    answer = Answer(1000, stops, False)
    counted, out = feed(answer, [*encode(text), EOS], size)
    # The first place where some stop string is complete, read from the left.
    ends = [
        (end, start)
        for end in range(len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop) and (start := end - len(stop)) >= 0
    ]
    if ends:
        end = min(ends)[0]
        assert answer.finish == "stop"
        assert len(counted) == end
        assert out == text[: min(start for e, start in ends if e == end)]
    else:
        assert out == text


def test_a_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    answer = Answer(100, ("END",), False)
    assert answer.add(encode("xEN"))[1] == "x"
    assert answer.add(encode("!"))[1] == "EN!"


def test_what_is_held_back_comes_with_the_limit():
    answer = Answer(3, ("END",), False)
    assert answer.add(encode("xEND")) == (tuple(encode("xEN")), "xEN")
    assert answer.finish == "length"


def test_half_a_character_at_the_limit_is_a_replacement():
    answer = Answer(1, (), False)
    assert answer.add(encode("é"))[1] == "�"


@pytest.mark.parametrize("ignore", [False, True])
def test_the_end_mark(ignore: bool):
    answer = Answer(100, (), ignore)
    counted, text = answer.add([97, EOS, 98])
    assert (counted, text, answer.finish) == (
        ((97, EOS, 98), "ab", None) if ignore else ((97, EOS), "a", "stop")
    )


def test_no_text_makes_a_mark_and_id_0_is_ordinary():
    assert max(encode("\x00é\ud800")) < 256
    assert decode(encode("a\ud800b")) == "a\ufffdb"
    assert encode("\x00") == [0]
    assert encode_chat([("user", "hi"), ("assistant", "yo"), ("user", "?")]) == [
        BOS, USER, *b"hi", ASSISTANT, *b"yo", USER, *b"?", ASSISTANT,
    ]  # fmt: skip
