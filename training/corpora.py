"""What ``tiny`` reads: the fetched texts, generated ones, and which of them are held out.

A text is held out by a hash of its name, so that it is so whatever else there is: half of Python's
library (the prompts of ``sweep`` come from all of it), one in twelve of the others.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from training import reasoning

from verify_attn.engine.tokenizer import ASSISTANT, BOS, EOS, SYSTEM, USER, encode

Tokens = npt.NDArray[np.uint16]

HELD_OUT = {"addresses": 12, "moby-dick": 12, "python": 2, "topics": 2}  # one in so many
REASONING_BYTES = 6_000_000
REPETITIVE_BYTES = 2_000_000
MIXED_BYTES = 3_000_000

_INSTRUCTIONS = (
    "Continue in the manner of the text above.", "Continue the text.", "Go on from here.",
    "Continue in the manner of the text above, at length and without repeating any of it.",
    "What comes next?", "Please continue.",
)  # fmt: skip


_SYSTEMS = ("You are a helpful assistant.", "You continue texts.", "Be brief.", "Be careful.")


def texts(directory: Path, *, held_out: bool) -> dict[str, list[str]]:
    """The fetched texts by kind: those to train on, or the others."""
    found: dict[str, list[str]] = {}
    for kind, one_in in HELD_OUT.items():
        paths = sorted((directory / kind).iterdir())
        found[kind] = [p.read_text("utf-8") for p in paths if _is_out(p.name, one_in) == held_out]
    return found


def _is_out(name: str, one_in: int) -> bool:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % one_in == 0


def stream(directory: Path, seed: int) -> tuple[Tokens, dict[str, int]]:
    """All training documents, shuffled, end to end; and how many tokens of each kind."""
    rng = random.Random(seed)
    fetched = texts(directory, held_out=False)
    paragraphs = [p for group in fetched.values() for text in group for p in _paragraphs(text)]
    documents: list[tuple[str, list[int]]] = []
    for kind, group in fetched.items():
        for text in group:
            documents += [(kind, _document(piece, rng)) for piece in _pieces(text, rng)]
    for kind, generated, size in (
        ("reasoning", _reasoning(rng), REASONING_BYTES),
        ("repetitive", _repetitive(paragraphs, rng), REPETITIVE_BYTES),
        ("mixed", _mixed(paragraphs, rng), MIXED_BYTES),
    ):
        while size > 0:
            document = next(generated)
            documents.append((kind, document))
            size -= len(document)
    rng.shuffle(documents)
    counts: dict[str, int] = {}
    for kind, document in documents:
        counts[kind] = counts.get(kind, 0) + len(document)
    return np.concatenate([np.array(d, dtype=np.uint16) for _, d in documents]), counts


def _paragraphs(text: str) -> list[str]:
    """Its paragraphs; addresses have none, so every few sentences of a long one are a paragraph."""
    parts = (
        part.strip("\n")
        for long in re.split(r"\n[ \t]*\n", text)
        for part in ([long] if len(long) < 2400 else re.findall(r".{200,1200}?\. ", long))
    )
    return [part.rstrip() for part in parts if 100 <= len(part) <= 2400]


def _pieces(text: str, rng: random.Random) -> Iterator[str]:
    """The text whole or, as often, in pieces: so that many beginnings are seen."""
    if len(text) < 6000 or rng.random() < 0.5:
        yield text
        return
    between = "\n\n" if "\n\n" in text else ". "
    at = 0
    while at < len(text):
        cut = text.find(between, at + rng.randint(1000, 9000))
        cut = len(text) if cut < 0 else cut + len(between)
        yield text[at:cut].strip("\n")
        at = cut


def _document(text: str, rng: random.Random) -> list[int]:
    """The text as it is, with an end, or as a chat in which the assistant goes on with it."""
    if rng.random() < 0.2:
        text = f"[{rng.getrandbits(64):016x}]\n\n{text}"
    draw = rng.random()
    if draw < 0.3 and len(text) > 200:
        cut = text.find(" ", int(len(text) * rng.uniform(0.1, 0.7)))
        first, rest = text[:cut], text[cut:].lstrip()
        if rng.random() < 0.6:
            first += "\n\n" + rng.choice(_INSTRUCTIONS)
        system = [SYSTEM, *encode(rng.choice(_SYSTEMS))] if rng.random() < 0.15 else []
        return [BOS, *system, USER, *encode(first), ASSISTANT, *encode(rest), EOS]
    return [BOS, *encode(text), *([EOS] if draw < 0.7 else [])]


def _reasoning(rng: random.Random) -> Iterator[list[int]]:
    while True:
        pairs = [reasoning.problem(rng.randrange(reasoning.HELD_OUT)) for _ in range(40)]
        if rng.random() < 0.5:
            tokens = [BOS]
            for question, answer in pairs[: rng.randint(1, 6)]:
                tokens += [USER, *encode(question), ASSISTANT, *encode(answer)]
            yield [*tokens, EOS]
        else:
            between = rng.choice(("\n", " ", "\n\n"))
            count = rng.randint(1, 40)
            yield _document("\n\n".join(q + between + a for q, a in pairs[:count]), rng)


def _repetitive(paragraphs: list[str], rng: random.Random) -> Iterator[list[int]]:
    """One passage over and over, plain or counted; or a few paragraphs twice."""
    while True:
        source, form = rng.choice(paragraphs), rng.randrange(4)
        if form == 3:
            several = "\n\n".join(rng.sample(paragraphs, rng.randint(2, 8)))
            yield _document(f"{several}\n\n{several}", rng)
            continue
        length = rng.randint(15, 220)
        at = rng.randrange(max(1, len(source) - length))
        pattern = " ".join(source[at : at + length].split(" ")[1:]) or source
        times = rng.randint(500, 5000) // len(pattern) + 2
        if form == 2:
            first, word = rng.randrange(1000), rng.choice(("", "line ", "item ", "[", "#"))
            close = "]" if word == "[" else rng.choice((":", "."))
            lines = (f"{word}{first + i}{close} {pattern}" for i in range(times))
            yield _document("\n".join(lines), rng)
        else:
            yield _document(rng.choice((" ", "\n", "")).join([pattern] * times), rng)


def _mixed(paragraphs: list[str], rng: random.Random) -> Iterator[list[int]]:
    """Paragraphs from anywhere, one after the other, as in the prompts of a sweep."""
    while True:
        parts = rng.sample(paragraphs, rng.randint(4, 60))
        for i in range(len(parts)):
            if rng.random() < 0.2:
                parts[i] = " ".join(reasoning.problem(rng.randrange(reasoning.HELD_OUT)))
        yield _document("\n\n".join(parts), rng)
