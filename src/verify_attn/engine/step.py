"""What one forward pass is given and gives back, and who can do one.

The host decides (which tokens, which pages, which rows move); a runner computes.  All that a runner
is given are plain values, so that a tensor-parallel one can send them to its other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from verify_attn.engine.config import ModelConfig
from verify_attn.tree import DraftTree

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One request's share of a forward pass.

    ``tokens``      the nodes' tokens, the root's first; a prefill chunk is a chain
    ``tree``        as many nodes; node i lies at token position prefix_len + i, at depth
                    prefix_len + tree.depths[i]
    ``table``       the request's pages in token order (int32), enough for all its nodes
    ``prefix_len``  committed tokens that are in the pool
    """

    tokens: Sequence[int]
    tree: DraftTree
    table: npt.NDArray[np.int32]
    prefix_len: int


@dataclass(frozen=True)
class Output:
    """Of a forward pass over T nodes of all parts, in their order; on the runner's device.

    ``logits``    [T, vocabulary] float32; of each part's last node alone if not ``every``
    ``features``  [T, F] hidden states for a drafter (F may be 0)

    A runner may overwrite both in its next pass.
    """

    logits: torch.Tensor
    features: torch.Tensor


@dataclass(frozen=True)
class Moves:
    """Rows to copy, in all layers, as though one after the other in this order.

    ``sources`` and ``targets`` are slots (page * page_size + row).
    """

    sources: Slots
    targets: Slots

    def __len__(self) -> int:
        return len(self.sources)


class Runner(Protocol):
    """A model with its KV pool of ``pages`` pages of ``page_size`` rows."""

    config: ModelConfig
    page_size: int
    pages: int

    @property
    def device(self) -> torch.device:
        """Where outputs are."""

    def forward(self, parts: Sequence[Part], *, every: bool) -> Output:
        """Write the nodes' rows into the pool and attend; up to 16 parts."""

    def move(self, moves: Moves) -> None:
        """Copy rows within the pool, in all layers, in one launch where there is a GPU."""

    def fill(self, table: npt.NDArray[np.int32], tokens: int, seed: int) -> None:
        """Random rows for token positions 0..tokens, the same for the same seed and length."""

    def close(self) -> None:
        """Let other ranks end; free the pool."""
