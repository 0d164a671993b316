"""What a step's slope over the context could be at best: reading the KV, or arithmetic on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verify_attn.live.acceptance import Acceptance
from verify_attn.live.points import Point

NEAR_LIMIT = 0.3  # of the hardware's limit: attention this fast is physics, not a fault
FAR_FROM_LIMIT = 0.1  # of it: no kernel that uses the whole GPU is so slow


@dataclass(frozen=True)
class KvRead:
    """What a step must read and compute for each token of context, to judge a slope by.

    ``bytes_per_token``  of the KV of all layers on one GPU
    ``gb_per_s``         the GPU's memory rate
    ``source``           where the two come from
    ``flops_per_token``  of the attention of one tree node to one context token, all layers
    ``tflops``           the GPU's rate of such products; 0: unknown, only reading is judged
    """

    bytes_per_token: float
    gb_per_s: float
    source: str
    flops_per_token: float = 0.0
    tflops: float = 0.0

    def judge(self, slope_s: float, nodes: float) -> tuple[float, str]:
        """(share of the limit, words) of a step that takes ``slope_s`` more a token of context."""
        rate = self.bytes_per_token / slope_s / 1e9
        reading = rate / self.gb_per_s
        words = (
            f"; that is the KV read at {rate:,.0f} GB/s, {reading:.1%} of {self.gb_per_s:,.0f} "
            f"({self.source})"
        )
        if not self.tflops:
            return reading, words
        arithmetic = nodes * self.flops_per_token / slope_s / 1e12 / self.tflops
        if arithmetic > reading:
            words += (
                f"; with {nodes:,.0f} nodes a step arithmetic is the limit, and this is "
                f"{arithmetic:.1%} of {self.tflops:,.0f} TFLOP/s"
            )
        return max(reading, arithmetic), words


def nodes_of_a_step(points: Sequence[Point]) -> float:
    """What the server says it proposed, and the root; 1 where it does not say."""
    counts = [
        1 + a.proposed_drafts / a.steps
        for point in points
        for trial in point.usable
        if isinstance(a := trial.acceptance, Acceptance) and a.proposed_drafts and a.steps
    ]
    return float(np.median(counts)) if counts else 1.0
