"""Prompts: nothing repeated, a nonce in front, the right length in the server's own tokens."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.live.truth import Tokenizer
from verify_attn.live.prompts import CORPORA, Calibration, CorpusError, prompt

FOUR = 4  # characters a token, about
CALIBRATED = (64, 1024, 1024)  # as a session does it


def repeated(text: str, size: int = 200) -> str | None:
    """The first ``size`` characters that occur a second time."""
    seen: set[int] = set()
    for i in range(len(text) - size + 1):
        key = hash(text[i : i + size])
        if key in seen:
            return text[i : i + size]
        seen.add(key)
    return None


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("corpus", "tokens"),
    [("mixed", 200_000), ("code", 200_000), ("reasoning", 200_000), ("prose", 100_000)],
)
def test_nothing_occurs_twice(corpus: str, tokens: int, seed: int) -> None:
    assert repeated(prompt(corpus, tokens * FOUR, seed)) is None


def test_the_repetitive_one_repeats() -> None:
    assert repeated(prompt("repetitive", 2000, 0)) is not None


def test_longer_than_all_texts() -> None:
    """It begins again, in another order, and ends."""
    text = prompt("prose", 1_500_000, 0)
    assert len(text) == 1_500_000
    assert repeated(text) is not None


@example("mixed", 11556, 942005108)  # ends right after a paragraph
@given(st.sampled_from(CORPORA), st.integers(150, 20_000), st.integers(0, 2**40))
def test_lengths_are_right(corpus: str, chars: int, seed: int) -> None:
    assert len(prompt(corpus, chars, seed)) == chars


def test_a_nonce_in_front_and_the_text_by_the_seed() -> None:
    one, two = prompt("mixed", 3000, 7), prompt("mixed", 3000, 7)
    head = len("[0123456789abcdef]")
    assert one[:head] != two[:head]
    assert one[head:] == two[head:]
    assert prompt("mixed", 3000, 8)[head:] != one[head:]
    # No cache of 16 tokens or more can know the beginning.
    assert len({prompt("prose", 400, 0)[:18] for _ in range(200)}) == 200


def test_unknown_corpus() -> None:
    with pytest.raises(CorpusError, match="there are: mixed, prose"):
        prompt("poetry", 100, 0)


def test_a_guess_before_the_first_count() -> None:
    assert Calibration().chars_for(1000) == 4000
    assert Calibration().tokens_of(4000) == 1000


@pytest.mark.parametrize("inflation", [0.6, 1.0, 1.39, 2.5])
@pytest.mark.parametrize("template", [0, 8, 30, 250])
@pytest.mark.parametrize("per_token", [3.0, 4.0, 4.8])
def test_it_converges(inflation: float, template: int, per_token: float) -> None:
    """Within 2 % of the asked length, at any length, after the session's few small requests."""
    server = Tokenizer(per_token, inflation, template_tokens=template)
    calibration = Calibration()
    for tokens in CALIBRATED:
        text = prompt("mixed", calibration.chars_for(tokens), 1)
        calibration.observe(len(text), server.count(text, chat=True))
    for tokens in (1000, 4096, 16_384, 131_072):
        got = server.count("x" * calibration.chars_for(tokens), chat=True)
        assert abs(got / tokens - 1) < 0.02, (tokens, got)


@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 10**7)), min_size=1, max_size=5))
def test_whatever_a_server_counts(seen: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for chars, tokens in seen:
        calibration.observe(chars, tokens)
    overhead, rate = calibration.line
    assert overhead >= 0
    assert rate > 0
    assert calibration.chars_for(1000) >= 1
