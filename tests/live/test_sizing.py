"""Prompts of the asked length, by the server's own tokenizer where it has a route for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from verify_attn.live.reply import Reply, Unreachable
from verify_attn.live.sizing import TRIES, Tokenizer


class Route:
    """A tokenizer of a token for every 3 characters, as a server shows it."""

    def __init__(self, form: str) -> None:
        self.form, self.asked = form, 0

    async def fetch(self, method: str, path: str, *, body: Any, timeout_s: float) -> Reply:
        assert (method, path) == ("POST", "/tokenize")
        self.asked += 1
        tokens = len(body["content" if self.form == "llama.cpp" else "prompt"]) // 3
        if self.form == "gone":
            raise Unreachable("no answer")
        said: dict[str, Any] = {
            "llama.cpp": {"tokens": list(range(tokens))},
            "vLLM": {"count": tokens, "tokens": None},
            "other": {"detail": "Not Found"},
            "junk": {"count": True, "tokens": {}},
        }[self.form]
        return Reply(404 if self.form == "other" else 200, "application/json",
                     json.dumps(said).encode())  # fmt: skip


async def sized(route: Route, tokens: int) -> tuple[Tokenizer, str]:
    tokenizer = Tokenizer(route.fetch, "m")
    await tokenizer.observe("x" * 300, 112)
    return tokenizer, await tokenizer.sized(lambda chars: "y" * chars, 4 * tokens, tokens)


@pytest.mark.parametrize("form", ["llama.cpp", "vLLM"])
def test_a_prompt_has_the_asked_length_with_what_the_template_adds(form: str) -> None:
    tokenizer, text = asyncio.run(sized(Route(form), 1000))
    assert tokenizer.around == 12
    assert len(text) // 3 + 12 == pytest.approx(1000, rel=0.005)


@pytest.mark.parametrize("form", ["other", "junk", "gone"])
def test_without_one_the_first_guess_stays_and_it_is_asked_once(form: str) -> None:
    route = Route(form)
    tokenizer, text = asyncio.run(sized(route, 1000))
    assert (len(text), route.asked) == (4000, 1)
    assert tokenizer.missing is not None


def test_a_text_that_cannot_have_the_length_ends_the_search() -> None:
    route = Route("vLLM")
    tokenizer = Tokenizer(route.fetch, "m")
    asyncio.run(tokenizer.observe("x" * 30, 10))
    text = asyncio.run(tokenizer.sized(lambda chars: "y" * max(chars, 900), 10, 5))
    assert len(text) == 900
    assert route.asked == 1 + TRIES
