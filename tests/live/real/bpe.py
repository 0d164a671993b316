"""A small byte-level BPE vocabulary, trained on the spot with nothing but Python.

Runs inside a server's own environment too, so it imports the standard library only.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections import Counter
from itertools import pairwise

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary, as GPT-2 has them."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in own)
    letters = {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


class Vocabulary:
    """Special tokens, then all 256 bytes, then what was merged; any text can be encoded."""

    def __init__(self, size: int) -> None:
        letters = byte_letters()
        self.byte_of = {letter: byte for byte, letter in enumerate(letters)}
        self.merges: list[tuple[str, str]] = []
        text = inspect.getsource(argparse).encode("ascii", "ignore").decode()
        words = Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", text))
        split = {w: [letters[b] for b in w.encode()] for w in words}
        while len(SPECIAL) + 256 + len(self.merges) < size:
            pairs: Counter[tuple[str, str]] = Counter()
            for word, parts in split.items():
                for pair in pairwise(parts):
                    pairs[pair] += words[word]
            best = max(pairs, key=lambda pair: (pairs[pair], pair))
            self.merges.append(best)
            for parts in split.values():
                _merge(parts, best)
        self.tokens = [*SPECIAL, *letters, *(a + b for a, b in self.merges)]

    def text(self, token: int) -> str | None:
        """What a token reads as; None for a special one and for a byte that is no ASCII."""
        if token < len(SPECIAL):
            return None
        raw = bytes(self.byte_of[letter] for letter in self.tokens[token])
        return raw.decode() if raw.isascii() else None

    def printable(self) -> list[int]:
        """Tokens that show something in any terminal."""
        texts = ((t, self.text(t)) for t in range(len(self.tokens)))
        return [t for t, text in texts if text and text.isprintable() and text.strip()]


def _merge(parts: list[str], pair: tuple[str, str]) -> None:
    i = 0
    while i < len(parts) - 1:
        if (parts[i], parts[i + 1]) == pair:
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        i += 1
