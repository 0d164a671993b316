"""Bytes as tokens: ids 0..255 are the bytes of UTF-8, id 0 an ordinary one; then a few marks."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

BOS, EOS, SYSTEM, USER, ASSISTANT, MASK = range(256, 262)
TINY_VOCABULARY = 272  # bytes and marks, padded to a multiple of 16
_MARKS = frozenset(range(256, TINY_VOCABULARY))
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}


class RoleError(ValueError):
    """A chat message of a role that there is not."""


def encode(text: str) -> list[int]:
    """The text's UTF-8 bytes; marks have no text, so no text can make one.

    A lone surrogate, which JSON can carry, becomes U+FFFD; a pair of them is its character.
    """
    return list(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode())


def encode_prompt(text: str) -> list[int]:
    """A document's beginning."""
    return [BOS, *encode(text)]


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """(role, content) pairs, and the mark after which the assistant answers."""
    tokens = [BOS]
    for role, content in messages:
        if role not in _ROLES:
            raise RoleError(f"role is {role!r}; there are: {', '.join(_ROLES)}")
        tokens += [_ROLES[role], *encode(content)]
    return [*tokens, ASSISTANT]


def token_bytes(token: int) -> bytes:
    """What a token adds to the text: itself, nothing for a mark, printable ASCII past those.

    Ids past the marks occur in models with random weights, whose text means nothing.
    """
    if token < 256:
        return bytes((token,))
    return b"" if token in _MARKS else bytes((32 + token % 95,))


class TextDecoder:
    """Tokens to text as they come; half a character waits for its other half."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Sequence[int]) -> str:
        """The text that is settled by now and was not before."""
        return self._decoder.decode(b"".join(map(token_bytes, tokens)))

    def end(self) -> str:
        """What was waiting; half a character is U+FFFD."""
        return self._decoder.decode(b"", final=True)


def decode(tokens: Sequence[int]) -> str:
    """All at once."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")
