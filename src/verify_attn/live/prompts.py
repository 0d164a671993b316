"""Prompts that do not flatter: real text, nothing repeated, a nonce in front, the right length.

A repeated pattern makes a drafter look good, a repeated prompt is answered out of the prefix cache,
and a length in somebody's idea of a token is no context length: the deployment that this project
began with was misled by all three.
"""

from __future__ import annotations

import functools
import random
import re
import secrets
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CORPORA = ("mixed", "prose", "code", "reasoning", "repetitive")
_PARAGRAPH = range(200, 2400)  # characters
_BLOCK = 100  # characters; who has 200 in common with a text has a whole block of it
_USED_UP = 500  # paragraphs in a row that hold nothing new: all have been there
_MIN_LETTERS = 0.7  # of a paragraph of prose; tables and code fall out
# More than any tokenizer makes of these texts: a server that counts fewer does not count them, and
# no prompt gets longer to satisfy it.
MAX_CHARS_A_TOKEN = 20
_INSTRUCTION = (
    "\n\nContinue in the manner of the text above, at length and without repeating any of it."
)
_PATTERN = "The quick brown fox jumps over the lazy dog. "


class CorpusError(ValueError):
    """No such corpus, or one that this Python has no text for."""


def prompt(corpus: str, chars: int, seed: int) -> str:
    """About ``chars`` characters of ``corpus``: a fresh nonce, text by ``seed``, an instruction.

    The nonce differs in every call, whatever the seed, so that no cache knows the prompt.  No 200
    characters in a row occur twice, as long as there is text: Python's own has enough of ``mixed``
    and ``code`` for 400,000 tokens and of ``prose`` for 100,000; ``reasoning`` never ends.  Longer
    prompts begin again in another order, and ``repetitive`` is nothing but repetition.
    """
    nonce = f"[{secrets.token_hex(8)}]\n\n"
    text = _text(corpus, max(0, chars - len(nonce) - len(_INSTRUCTION)), seed)
    return nonce + text + _INSTRUCTION


def _text(corpus: str, chars: int, seed: int) -> str:
    if corpus not in CORPORA:
        raise CorpusError(f"no corpus {corpus!r}; there are: {', '.join(CORPORA)}")
    if corpus == "repetitive":
        return (_PATTERN * (chars // len(_PATTERN) + 1))[:chars]
    parts: list[str] = []
    seen: set[str] = set()
    length = repeated = 0
    for paragraph in _paragraphs(corpus, random.Random(seed)):
        if repeated < _USED_UP:
            own = _blocks_if_new(paragraph, seen)
            repeated = 0 if own else repeated + 1
            if not own:
                continue
            seen |= own
        parts.append(paragraph)
        length += len(paragraph) + 2
        if length - 2 >= chars:  # the last has no line ends after it
            break
    return "\n\n".join(parts)[:chars]


def _blocks_if_new(text: str, seen: set[str]) -> set[str]:
    """Every hundred characters of ``text``; none if some are in ``seen``, or in it twice."""
    own: set[str] = set()
    for i in range(len(text) - _BLOCK + 1):
        window = text[i : i + _BLOCK]
        if window in seen or window in own:
            return set()
        if i % _BLOCK == 0:
            own.add(window)
    return own


def _paragraphs(corpus: str, rng: random.Random) -> Iterator[str]:
    if corpus == "prose":
        yield from _drawn(_prose(), rng)
    elif corpus == "code":
        yield from _drawn(_code(), rng)
    elif corpus == "reasoning":
        yield from _reasoning(rng)
    else:
        prose, code, reasoning = _drawn(_prose(), rng), _drawn(_code(), rng), _reasoning(rng)
        while True:
            for source in (prose, code, prose, code, reasoning):
                yield next(source)


def _drawn(paragraphs: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """Every paragraph once, in the seed's order, before any comes again."""
    if not paragraphs:
        raise CorpusError("this Python was installed without its library's sources")
    while True:
        yield from rng.sample(paragraphs, len(paragraphs))


@functools.cache
def _library() -> tuple[str, ...]:
    """The sources of Python's own library, without its tests and data tables."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "site-packages", "encodings", "idlelib", "lib2to3", "__pycache__"}
    files = sorted(
        path for path in root.rglob("*.py") if left_out.isdisjoint(path.relative_to(root).parts)
    )
    return tuple(path.read_text("utf-8", "replace") for path in files)


@functools.cache
def _code() -> tuple[str, ...]:
    definition = re.compile(r"\n(?=(?: {4})?(?:async def |def |class |@))")
    return _kept(
        block.rstrip() for text in _library() for block in definition.split(text)
        if '"""' not in block
    )  # fmt: skip


@functools.cache
def _prose() -> tuple[str, ...]:
    """The language reference that `help()` shows, and docstrings, where they are sentences."""
    from pydoc_data.topics import topics

    texts = list(topics.values())
    for text in _library():
        texts += re.findall(r'"""(.*?)"""', text, re.DOTALL)
    paragraphs = (part.strip() for text in texts for part in re.split(r"\n[ \t]*\n", text))
    return _kept(p for p in paragraphs if sum(map(str.isalpha, p)) > _MIN_LETTERS * len(p))


def _kept(paragraphs: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(p for p in paragraphs if len(p) in _PARAGRAPH))


_NAMES = ("Ada", "Bela", "Chidi", "Dana", "Emre", "Fatou", "Goran", "Hana", "Iris", "Jonas")
_THINGS = ("crates", "tickets", "pages", "bolts", "seedlings", "tiles", "letters", "coins")
_OPENERS = (
    "Let me work this out.", "First, what is given.", "I should be careful here.",
    "Start from the end and go back.", "There are two ways to see this.", "Try a small case first.",
)  # fmt: skip
_DOUBTS = (
    "Wait, that counts one of them twice.", "Hmm, is that allowed by the wording?",
    "No: the remainder was left out.", "That looks too large, so check it again.",
    "Actually the order does not matter here.", "But the first group was already full.",
)  # fmt: skip


def _reasoning(rng: random.Random) -> Iterator[str]:
    """Worked arithmetic with second thoughts; every number is right and drawn anew."""
    while True:
        name, other = rng.sample(_NAMES, 2)
        a, b, c = rng.randint(12, 998), rng.randint(3, 97), rng.randint(2, 49)
        thing = rng.choice(_THINGS)
        product, rest = a * b, rng.randint(1, a)
        lines = [
            f"{name} has {a} rows of {b} {thing}, gives {rest} to {other}, and packs the others "
            f"in boxes of {c}. How many boxes are full, and how many {thing} are left over?",
            f"{rng.choice(_OPENERS)} The rows hold {a} * {b} = {a} * {b // 10 * 10} + {a} * "
            f"{b % 10} = {a * (b // 10 * 10)} + {a * (b % 10)} = {product} {thing}.",
            rng.choice(_DOUBTS),
            f"After {rest} go to {other} there are {product - rest}. Divided by {c} that is "
            f"{(product - rest) // c} full boxes with {(product - rest) % c} left, since "
            f"{(product - rest) // c} * {c} = {(product - rest) // c * c}.",
        ]
        if rng.random() < 0.5:
            lines.append(
                f"Check with another way: modulo {c}, {a} is {a % c} and {b} is {b % c}, their "
                f"product is {a % c * (b % c) % c}, less {rest % c} gives {(product - rest) % c}."
            )
        if rng.random() < 0.4:
            rng.shuffle(lines)
        yield " ".join(lines)


@dataclass
class Calibration:
    """Tokens of a prompt by its characters, from the server's own counts: overhead + rate * chars.

    Before the first count it guesses four characters a token.
    """

    seen: list[tuple[int, int]] = field(default_factory=list)

    def observe(self, chars: int, tokens: int) -> None:
        """A prompt of ``chars`` characters was ``tokens`` tokens by the server's count."""
        self.seen.append((chars, tokens))

    @property
    def line(self) -> tuple[float, float]:
        """(overhead in tokens, tokens a character).

        The overhead, a chat template's, from the two extremes; the rate from the longest prompt,
        where the overhead weighs least.
        """
        if not self.seen:
            return 0.0, 0.25
        (chars_a, tokens_a), (chars_b, tokens_b) = min(self.seen), max(self.seen)
        least = 1 / MAX_CHARS_A_TOKEN
        if chars_a == chars_b:
            return 0.0, max(tokens_b / chars_b, least)
        rate = max((tokens_b - tokens_a) / (chars_b - chars_a), least)
        overhead = min(max(tokens_a - rate * chars_a, 0.0), float(tokens_a))
        return overhead, max((tokens_b - overhead) / chars_b, least)

    def chars_for(self, tokens: int) -> int:
        """How many characters to ask for."""
        overhead, rate = self.line
        return max(1, round((tokens - overhead) / rate))

    def tokens_of(self, chars: int) -> float:
        """How many tokens so many characters should be."""
        overhead, rate = self.line
        return overhead + rate * chars
