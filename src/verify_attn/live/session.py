"""One session with one server: get to know it, then ask it for measured answers.

What a server grants and how it counts is learnt once, on small requests, before anything is timed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.causes import MEDIUM, Finding
from verify_attn.live.chunk import Chunk
from verify_attn.live.client import Answer, Client, Limits
from verify_attn.live.fits import fit
from verify_attn.live.measure import Measurement, measure
from verify_attn.live.prompts import Calibration, prompt
from verify_attn.live.reply import Unreachable
from verify_attn.live.requests import Dialect, Refused, granted, negotiate
from verify_attn.live.server import Fact, ServerFacts, read_server
from verify_attn.live.settings import Settings
from verify_attn.live.sizing import ROUTE, Tokenizer

PROBE_TOKENS = 16
CALIBRATION_TOKENS = (64, 1024, 1024)
PROBE_TIMEOUT_S = 60.0
PROBE_AGAIN_S = (1.0, 3.0)  # after an error of a server that still answers
FIRST_TOKEN_S = 600.0  # nothing is known of the server yet
WARM_UP = 3.0  # times the second request of the same size


class Unusable(Exception):
    """The server answers, but cannot be measured: a wrong key, model or URL (exit code 2)."""


class Dead(Exception):
    """The server does not answer (exit code 4)."""


@dataclass
class Session:
    """What is known of the server so far."""

    client: Client
    settings: Settings
    facts: ServerFacts
    dialect: Dialect
    grants: dict[str, bool] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    first_tokens: list[tuple[int, float]] = field(default_factory=list)  # prompt tokens, seconds
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sent: int = 0
    tokenizer: Tokenizer | None = None

    @staticmethod
    async def open(client: Client, settings: Settings) -> Session:
        """Identify the server, settle how to ask it, and calibrate prompt lengths."""
        try:
            facts = await read_server(client.fetch)
        except Unreachable as error:
            raise Dead(f"no answer from {client.target.root}: {error}") from None
        listed = facts.model_ids.value if isinstance(facts.model_ids, Fact) else []
        model = settings.model or (settings.request or {}).get("model") or next(iter(listed), None)
        if model is None:
            root, said = client.target.root, facts.asked.get("/v1/models", "")
            if said in ("401", "403"):
                raise Unusable(_key_refused(root, f"HTTP {said} for /v1/models"))
            why = facts.model_ids.reason if isinstance(facts.model_ids, Absent) else "an empty list"
            raise Unusable(
                f"{root} names no model ({why}); give one with --model, and check that the URL is "
                "an OpenAI-compatible server's"
            )
        session = Session(client, settings, facts, Dialect(settings.endpoint or "chat", model))
        await session._settle()
        if settings.request is None:
            await session._calibrate()
        return session

    async def _settle(self) -> None:
        """The first requests: which endpoint, which extras."""

        async def send(dialect: Dialect) -> Answer:
            text = prompt(self.settings.corpus, 256, self.settings.seed)
            return await self.send(dialect.body(text, PROBE_TOKENS), FIRST_TOKEN_S, dialect.path)

        try:
            self.dialect, answers = await negotiate(self.dialect, send)
        except Refused as refused:
            answer = refused.answer
            if self.settings.endpoint is not None or not _no_chat(answer):
                raise _unusable(answer, self.client.target.root, self.dialect.model) from None
            self.notes.append(f"no chat here ({answer.failure}); completions are measured")
            self.dialect = Dialect("completions", self.dialect.model)
            try:
                self.dialect, answers = await negotiate(self.dialect, send)
            except Refused as again:
                failed = again.answer
                raise _unusable(failed, self.client.target.root, self.dialect.model) from None
        self.grants = granted(answers[-1].stream)
        self._first_s = measure(answers[-1]).first_token_s
        self._requests = len(answers)

    async def _calibrate(self) -> None:
        """A few one-token requests, by which a prompt's length is known in the server's tokens."""
        self.tokenizer = Tokenizer(self.client.fetch, self.dialect.model)
        longest = max(self.settings.contexts)
        first: float | Absent = self._first_s
        for i, tokens in enumerate(CALIBRATION_TOKENS):
            chars = self.calibration.chars_for(min(tokens, longest))
            m = await self._small(chars, i)
            if i == 0 and not isinstance(first, Absent) and self._requests == 1:
                self._warm_up(first, m.first_token_s)

    async def _small(self, chars: int, number: int) -> Measurement:
        text = prompt(self.settings.corpus, chars, self.settings.seed + 1000 + number)
        answer = await self.send(self.dialect.body(text, 1), FIRST_TOKEN_S)
        m = measure(answer)
        self.learn(len(text), m)
        if self.tokenizer is not None and not isinstance(m.prompt_tokens, Absent):
            await self.tokenizer.observe(text, m.prompt_tokens)
        if answer.failure is not None and answer.unreachable is not None:
            raise Dead(f"the server stopped answering: {answer.failure}")
        return m

    def _warm_up(self, first: float, second: float | Absent) -> None:
        if isinstance(second, Absent) or first < WARM_UP * second or first - second < 0.5:
            return
        text = f"the first request took {first:.3g} s to its first token, the next {second:.3g} s"
        self.findings.append(Finding("warm-up", MEDIUM, text))

    def learn(self, chars: int, m: Measurement) -> None:
        """Take a measured prompt into the calibration and the forecast of prefill times."""
        if not isinstance(m.prompt_tokens, Absent):
            self.calibration.observe(chars, m.prompt_tokens)
            if not isinstance(m.first_token_s, Absent):
                self.first_tokens.append((m.prompt_tokens, m.first_token_s))

    @property
    def sized_by(self) -> str:
        """How prompts get their length."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            return "the recorded request's own length"
        if tokenizer.missing is None and tokenizer.seen:
            return f"the server's {ROUTE}"
        return f"tokens a character ({tokenizer.missing or 'the server sent no usage'})"

    async def text(self, tokens: int, seed: int) -> str:
        """A prompt of so many tokens: counted by the server's own tokenizer, else by the rate."""

        def make(chars: int) -> str:
            return prompt(self.settings.corpus, chars, seed)

        chars = self.calibration.chars_for(tokens)
        if self.tokenizer is None:
            return make(chars)
        return await self.tokenizer.sized(make, chars, tokens)

    def first_token_limit_s(self, context: int, streams: int) -> float:
        """Time allowed to the first token: half as much again as the measured prompts foretell.

        Prefill grows at most with the square of the length, so the longest measured prompt scaled
        so bounds it; a minute at least, and all of it for every stream that has to queue.
        """
        if self.settings.first_token_s is not None:
            return self.settings.first_token_s
        if len(self.first_tokens) < 2:
            return FIRST_TOKEN_S
        n, seconds = max(self.first_tokens)
        expected = seconds * max(1.0, context / n) ** 2
        lengths = np.array([n for n, _ in self.first_tokens], dtype=np.float64)
        curve = fit(lengths, np.array([t for _, t in self.first_tokens]))
        if curve is not None:
            expected = max(expected, curve.at(context))
        return max(60.0, 30.0 + 1.5 * expected * streams)

    async def send(
        self,
        body: dict[str, object],
        first_token_s: float,
        path: str | None = None,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> Answer:
        """One streamed request within the settings' limits."""
        self.sent += 1
        limits = Limits(
            first_token_s=first_token_s,
            stall_s=self.settings.stall_s,
            decode_s=self.settings.decode_limit_s,
            min_tokens=self.settings.min_tokens,
        )
        return await self.client.stream(path or self.dialect.path, body, limits, on_chunk)

    async def alive(self) -> str | None:
        """A real one-token request, now that nothing of ours runs; None, or what went wrong.

        `/health` is asked only to say what it answered beside: it is 200 on many a dead server.
        """
        limits = Limits(first_token_s=PROBE_TIMEOUT_S, stall_s=PROBE_TIMEOUT_S)
        first: str | None = None
        for pause_s in (*PROBE_AGAIN_S, None):
            body = self.dialect.body(prompt("prose", 200, time.monotonic_ns() % 2**31), 1)
            answer = await self.client.stream(self.dialect.path, body, limits)
            if answer.failure is None or answer.status == 429:
                if first is not None:
                    self.notes.append(f"a one-token request failed ({first}), a later one did not")
                return None
            if answer.status is None or answer.status < 500 or pause_s is None:
                break
            # It answers: overloaded for a moment, maybe.
            first = first or answer.failure
            await asyncio.sleep(pause_s)
        try:
            reply = await self.client.fetch("GET", "/health", timeout_s=5)
            health = f"/health says {reply.status}"
        except Unreachable as error:
            health = f"/health: {error}"
        return f"a one-token request failed: {answer.failure} ({health})"

    async def rest(self) -> None:
        """A moment for counters to be brought up to date."""
        await asyncio.sleep(0.05)


def _no_chat(answer: Answer) -> bool:
    """Does the server say that it has no chat endpoint, or no template for one?"""
    return answer.status in (404, 405, 501) or "chat template" in answer.message.lower()


def _unusable(answer: Answer, root: str, model: str) -> Exception:
    if answer.unreachable is not None:
        return Dead(f"no answer from {root}: {answer.unreachable}")
    if answer.status in (401, 403):
        return Unusable(_key_refused(root, str(answer.failure)))
    if answer.status == 404:
        return Unusable(
            f"{root} has no such model or endpoint: {model!r} (HTTP 404: {answer.message}); see "
            "--model and --endpoint"
        )
    if answer.error_body is None and "html" in answer.content_type and not answer.location:
        return Unusable(
            f"{root} answers with {answer.content_type}, not with JSON: this is no "
            "OpenAI-compatible server, or a proxy's page in front of one"
        )
    if answer.status is not None and answer.status >= 500:
        return Dead(f"{root} cannot answer: {answer.failure}")
    return Unusable(f"{root} cannot be measured: {answer.failure}")


def _key_refused(root: str, words: str) -> str:
    return (
        f"{root} refuses the API key ({words}); put a valid one into the environment variable "
        "VERIFY_ATTN_API_KEY"
    )
