"""Faults on purpose, so that a harness can be shown catching each of them in a real server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from verify_attn.engine.drafters.base import Drafted, Drafter, Proposal

KILLED = 137  # the exit status of a process that the kernel killed for its memory
# What --inject knows: its name, its value, what it does.
KINDS = {
    "acceptance": ("TOKENS", "from so many generated tokens on drafts are spoiled"),
    "step-time": ("MS", "a step takes so many milliseconds more for every 1,000 tokens of context"),
    "out-of-memory": ("TOKENS", "memory runs out once a context has so many tokens"),
    "die-in-prefill": ("TOKENS", "the process dies in the prefill of so long a prompt"),
    "stall": ("TOKENS:SECONDS", "after so many generated tokens nothing comes for a while"),
}


class FaultError(ValueError):
    """An --inject that there is not."""


class InjectedOutOfMemoryError(RuntimeError):
    """What a real one looks like to the engine."""


@dataclass
class Faults:
    """Token counts are of one request; None: that fault is off."""

    acceptance: int | None = None
    step_time_ms: float | None = None
    out_of_memory: int | None = None
    die_in_prefill: int | None = None
    stall: tuple[int, float] | None = None
    _stalled: set[int] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @classmethod
    def parse(cls, given: Iterable[str]) -> Faults:
        """From ``name=value`` texts; raises `FaultError` with what there is."""
        faults, names = cls(), set[str]()
        for text in given:
            name, _, value = text.partition("=")
            if name in names:
                raise FaultError(f"--inject {name} is given twice; give one value")
            names.add(name)
            try:
                faults._set(name, value)
            except ValueError:
                known = "; ".join(f"{n}={v}: {what}" for n, (v, what) in KINDS.items())
                raise FaultError(f"--inject {text}: there are {known}") from None
        return faults

    def _set(self, name: str, value: str) -> None:
        if name == "acceptance":
            self.acceptance = _count(value)
        elif name == "step-time":
            self.step_time_ms = _positive(value)
        elif name == "out-of-memory":
            self.out_of_memory = _count(value)
        elif name == "die-in-prefill":
            self.die_in_prefill = _count(value)
        elif name == "stall":
            tokens, _, seconds = value.partition(":")
            self.stall = (_count(tokens), _positive(seconds))
        else:
            raise ValueError(name)

    def end(self) -> None:
        """The server stops: no fault makes it wait any longer."""
        self._ended.set()

    def before_prefill(self, end: int) -> None:
        """Prompt tokens up to ``end`` are about to be computed."""
        if self.die_in_prefill is not None and end >= self.die_in_prefill:
            os._exit(KILLED)
        self._use_memory(end)

    def before_step(self, requests: Sequence[Drafted]) -> None:
        """A verify step of these is about to begin."""
        contexts = [len(request.tokens) for request in requests]
        self._use_memory(max(contexts))
        if self.step_time_ms is not None:
            self._ended.wait(self.step_time_ms / 1e3 * max(contexts) / 1000)
        if self.stall is not None:
            after, seconds = self.stall
            for request in requests:
                generated = len(request.tokens) - request.prompt_tokens
                if generated >= after and request.key not in self._stalled:
                    self._stalled.add(request.key)
                    self._ended.wait(seconds)

    def _use_memory(self, tokens: int) -> None:
        if self.out_of_memory is not None and tokens >= self.out_of_memory:
            raise InjectedOutOfMemoryError(
                f"out of memory at {tokens} tokens of context (injected at {self.out_of_memory})"
            )


class WrongDrafts:
    """A drafter whose drafts are spoiled from some generated token on: right by chance at best."""

    def __init__(self, drafter: Drafter, first: int, vocabulary: int) -> None:
        self._drafter = drafter
        self._first = first
        self._vocabulary = vocabulary
        self.name = drafter.name
        self.taps = drafter.taps

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        proposals = self._drafter.propose(requests, budget)
        return [
            self._spoiled(proposal)
            if len(request.tokens) - request.prompt_tokens >= self._first
            else proposal
            for request, proposal in zip(requests, proposals, strict=True)
        ]

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        self._drafter.observe(request, start, features)

    def forget(self, request: Drafted) -> None:
        self._drafter.forget(request)

    def _spoiled(self, proposal: Proposal) -> Proposal:
        """Siblings keep different tokens."""
        half = self._vocabulary // 2
        return Proposal(
            proposal.tree, tuple((token + half) % self._vocabulary for token in proposal.tokens)
        )


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:  # what no clock can wait for is no number either
        raise ValueError(text)
    return value
