"""Numbers that a kernel has not seen, whose right answer is known, and moments to look at it.

Attention stays the same when a dimension changes its sign in q and in every KV row: scores are sums
of products of the two.  The output changes its sign in that dimension.  So each timed call gets
signs of its own, 2^576 ways, at the price of writing q and KV once, and no new reference is made.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference

EVERY = 3  # of so many rounds one is judged
_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_SIGN = {1: 0x80, 2: -(1 << 15), 4: -(1 << 31)}  # the sign's bit, alone


class Moments:
    """``moments(number)``, asked with 0, 1, 2 ...: is this round judged?  One in EVERY is, at a
    place in it that a kernel cannot know."""

    def __init__(self) -> None:
        self._dice = random.SystemRandom()
        self._place = 0

    def __call__(self, number: int) -> bool:
        if number % EVERY == 0:
            self._place = self._dice.randrange(EVERY)
        return number % EVERY == self._place


class Signs:
    """The signs that some batches stand in, ``turned`` [D] bool; all of them as made at first."""

    def __init__(self, wide: int, device: torch.device) -> None:
        self.turned = torch.zeros(wide, dtype=torch.bool, device=device)

    def turn(self, batches: Iterable[VerifyBatch]) -> None:
        """Change some dimensions' signs in place: q, the pool and the nodes' own rows."""
        bits = np.unpackbits(np.frombuffer(os.urandom(len(self.turned)), np.uint8))
        now = torch.from_numpy(bits[: len(self.turned)].astype(np.bool_)).to(self.turned.device)
        self.turned ^= now
        for batch in batches:
            for rows in (batch.q, batch.kv_pool, batch.node_kv):
                if rows is not None:
                    _flip(rows, now)

    def answer(self, reference: Reference) -> Reference:
        """What is right as the batches stand; ``reference`` is of the numbers made at first."""
        latent = self.turned[: reference.out.shape[-1]].to(reference.out.device)
        return replace(reference, out=torch.where(latent, -reference.out, reference.out))


def _flip(rows: torch.Tensor, dims: torch.Tensor) -> None:
    """Bit by bit: fp8 has no arithmetic, and a NaN that stands for poison stays one."""
    size = rows.element_size()
    mask = torch.where(dims, _SIGN[size], 0).to(_INTS[size])
    rows.view(_INTS[size]).bitwise_xor_(mask)
