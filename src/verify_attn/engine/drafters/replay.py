"""``replay``: proposes a recorded continuation, so that acceptance becomes a dial.

The record is proposed as a path; what the budget leaves is filled with decoys beside it, so that
the verified tree has the asked number of nodes and branches.  A share of the path's tokens is
corrupted.  With ``pin`` a step commits so many tokens of the record whatever the target says:
right for measuring time at a known acceptance, and not lossless.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verify_attn.engine.drafters.base import Drafted, Proposal
from verify_attn.tree import DraftTree

DEPTH = 15  # of the path, as a block drafter of 16 has it


class ReplayError(ValueError):
    """A record or a dial that cannot be; the message says which rule it breaks."""


class ReplayDrafter:
    """``record`` is taken from the first generated token on, and again from its start."""

    name = "replay"
    taps: tuple[int, ...] = ()

    def __init__(
        self, record: Sequence[int], vocabulary: int, *, corrupt: float = 0.0,
        pin: int | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """Raises `ReplayError`.  ``corrupt`` is a share (0..1), ``pin`` committed tokens a step."""
        if not record:
            raise ReplayError("the record is empty; it needs at least one token to propose")
        if not all(0 <= token < vocabulary for token in record):
            raise ReplayError(f"the record has a token outside the vocabulary of {vocabulary}")
        if not 0.0 <= corrupt <= 1.0:
            raise ReplayError(f"corrupt is {corrupt}; it is a share and must lie in 0..1")
        if pin is not None and not 1 <= pin <= DEPTH + 1:
            raise ReplayError(
                f"pin is {pin}; a step commits 1 to {DEPTH + 1} tokens of a path of {DEPTH} drafts"
            )
        self._record = np.asarray(record, dtype=np.int64)
        self._vocabulary = vocabulary
        self._corrupt = corrupt
        self.pin = pin
        self._seed = seed

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        if self.pin is not None and self.pin - 1 > budget:
            raise ReplayError(
                f"pin is {self.pin} and the budget {budget}; to commit {self.pin} tokens a step "
                f"takes {self.pin - 1} drafted nodes"
            )
        return [self._one(request, budget) for request in requests]

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        """Nothing to learn from features."""

    def forget(self, request: Drafted) -> None:
        """Nothing is kept."""

    def forced(self, request: Drafted, proposal: Proposal) -> tuple[tuple[int, ...], int] | None:
        """(accepted nodes, bonus token) of a pinned step; None: the target decides."""
        if self.pin is None:
            return None
        generated = len(request.tokens) - request.prompt_tokens
        return tuple(range(self.pin)), self._at(generated + self.pin - 1)

    def _at(self, generated: int) -> int:
        return int(self._record[generated % len(self._record)])

    def _one(self, request: Drafted, budget: int) -> Proposal:
        """The path's nodes first, then decoys, one beside each of its nodes in turn."""
        generated = len(request.tokens) - request.prompt_tokens
        depth = min(budget, DEPTH)
        rng = np.random.default_rng((self._seed, generated))
        path = np.array([self._at(generated + i) for i in range(depth)], dtype=np.int64)
        wrong = rng.random(depth) < self._corrupt
        # Another token than the record's, whatever it is.
        shift = rng.integers(1, self._vocabulary, size=depth)
        path[wrong] = (path[wrong] + shift[wrong]) % self._vocabulary
        beside = np.arange(budget - depth) % max(depth, 1)
        offset = np.arange(budget - depth) // max(depth, 1) + 1  # distinct from its siblings
        decoys = (path[beside] + offset) % self._vocabulary
        tree = DraftTree((*range(-1, depth), *(int(parent) for parent in beside)))
        return Proposal(tree, (*path.tolist(), *decoys.tolist()))
