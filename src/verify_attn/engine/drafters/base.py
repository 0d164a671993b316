"""What a drafter is asked and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from verify_attn.tree import DraftTree


@dataclass(frozen=True)
class Proposal:
    """A draft tree; ``tokens`` are those of its drafted nodes, ``len(tree) - 1`` of them."""

    tree: DraftTree
    tokens: tuple[int, ...] = ()


NOTHING = Proposal(DraftTree.chain(1))


class Drafted(Protocol):
    """A running request as a drafter sees it."""

    @property
    def key(self) -> int:
        """Tells it from all others."""

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed tokens; the last is the root of the next tree."""

    @property
    def prompt_tokens(self) -> int:
        """How many of them are the prompt."""


class Drafter(Protocol):
    """Proposes trees of at most ``budget`` drafted nodes; a proposal may be the root alone."""

    name: str
    taps: tuple[int, ...]  # layers of the target whose hidden states `observe` is given

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        """One tree a request."""

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        """Target features [n, F] of the tokens at positions start..start + n, now committed.

        The tensor is the caller's: copy what is kept.
        """

    def forget(self, request: Drafted) -> None:
        """The request is over."""
