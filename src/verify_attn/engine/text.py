"""Tokens to text for one answer, up to a stop string, an end mark or the length limit."""

from __future__ import annotations

from collections.abc import Sequence

from verify_attn.engine.job import FinishReason
from verify_attn.engine.tokenizer import EOS, TextDecoder


class Answer:
    """Feeds on committed tokens; what could become a stop string is held back."""

    def __init__(self, most_tokens: int, stop: Sequence[str], ignore_eos: bool) -> None:
        self._most = most_tokens
        self._stop = [text for text in stop if text]
        self._ignore_eos = ignore_eos
        self._decoder = TextDecoder()
        self._held = ""
        self.tokens = 0
        self.finish: FinishReason | None = None
        self._stopped = False  # by a stop string

    def add(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """(the tokens that count, the text that is settled); sets ``finish`` where it ends.

        The stop string is not part of the text; a stop may cut a verify step.
        """
        counted = 0
        text = ""
        for token in tokens:
            counted += 1
            self.tokens += 1
            if token == EOS and not self._ignore_eos:
                self.finish = "stop"
                break
            text += self._settled(self._decoder.add((token,)))
            if self.finish is None and self.tokens >= self._most:
                self.finish = "length"
            if self.finish is not None:
                break
        if self.finish == "length" or (self.finish == "stop" and not self._stopped):
            text += self._settled(self._decoder.end())
            if not self._stopped:
                text += self._held
                self._held = ""
        return tuple(tokens[:counted]), text

    def _settled(self, new: str) -> str:
        """Of what is held back and ``new``: what no stop string can begin in any more."""
        self._held += new
        ends = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if ends:
            settled, self._held = self._held[: min(ends)], ""
            self.finish, self._stopped = "stop", True
            return settled
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        settled, self._held = self._held[:cut], self._held[cut:]
        return settled


def _overlap(text: str, stop: str) -> int:
    """The longest end of ``text`` that is a beginning of ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
