"""``none``: plain decoding, one token a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verify_attn.engine.drafters.base import NOTHING, Drafted, Proposal


class NoDrafter:
    """See the module's first line."""

    name = "none"
    taps: tuple[int, ...] = ()

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        return [NOTHING] * len(requests)

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        """Nothing is drafted."""

    def forget(self, request: Drafted) -> None:
        """Nothing is kept."""
