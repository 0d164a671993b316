"""How many tokens a prompt has, by the server's own tokenizer, before it is sent.

What holds on average over a corpus is a few percent off for one text of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from verify_attn.live.prompts import MAX_CHARS_A_TOKEN
from verify_attn.live.reply import Reply, Unreachable

ROUTE = "/tokenize"
CLOSE = 0.005  # of the asked length
TRIES = 10  # a short prompt's count hangs on its nonce; a long one needs two or three
TIMEOUT_S = 20.0


@dataclass
class Tokenizer:
    """The server's, as far as it has a route for it; ``fetch`` as `Client.fetch`.

    ``around``  tokens that the server adds to a text: a chat template's, once known
    """

    fetch: Callable[..., Awaitable[Reply]]
    model: str
    missing: str | None = None
    seen: list[int] = field(default_factory=list)

    @property
    def around(self) -> int:
        """The median of what was seen."""
        return round(statistics.median(self.seen)) if self.seen else 0

    async def count(self, text: str) -> int | None:
        """Tokens of the text alone; None where the server does not say."""
        if self.missing is not None:
            return None
        # llama.cpp knows ``content`` alone; vLLM and SGLang know ``prompt``.
        body = {"model": self.model, "prompt": text, "content": text}
        try:
            reply = await self.fetch("POST", ROUTE, body=body, timeout_s=TIMEOUT_S)
        except Unreachable as error:
            self.missing = f"{ROUTE}: {error}"
            return None
        found = _counted(reply.json()) if reply.status == 200 else None
        if found is None:
            self.missing = f"{ROUTE}: HTTP {reply.status}"
        return found

    async def observe(self, text: str, prompt_tokens: int) -> None:
        """A prompt of this text had so many tokens in all."""
        found = await self.count(text)
        if found is not None:
            self.seen.append(prompt_tokens - found)

    async def sized(self, make: Callable[[int], str], chars: int, tokens: int) -> str:
        """The text of ``make``, given characters, that has about so many tokens in all.

        ``chars`` is the first guess, and the last where the server does not count.
        """
        longest = MAX_CHARS_A_TOKEN * tokens
        best, miss = make(min(chars, longest)), float("inf")
        wanted = max(1, tokens - self.around)
        below, above = (0, 0), None  # (characters, tokens) on either side of what is wanted
        text = best
        for _ in range(TRIES):
            found = await self.count(text) if self.seen else None
            if not found:
                break
            off = abs(found + self.around - tokens)
            if off < miss:
                best, miss = text, off
            if off <= max(2, CLOSE * tokens):
                break
            if found < wanted:
                below = max(below, (len(text), found))
            else:
                above = min(above or (len(text), found), (len(text), found))
            if above is None or above[0] <= below[0]:
                text = make(max(1, min(longest, round(len(text) * wanted / found))))
                continue
            # By the two nearest: where the text is figures, its next characters are denser.
            share = (wanted - below[1]) / (above[1] - below[1])
            text = make(round(below[0] + share * (above[0] - below[0])))
        return best


def _counted(said: Any) -> int | None:
    if not isinstance(said, dict):
        return None
    count, tokens = said.get("count"), said.get("tokens")
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    return len(tokens) if isinstance(tokens, list) and tokens else None
