"""The block drafter: one pass of a small network for all requests, then a DDTree for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verify_attn.ddtree import ddtree
from verify_attn.engine.block_model import BlockModel
from verify_attn.engine.drafters.base import NOTHING, Drafted, Proposal


@dataclass
class _Window:
    """What the target said of a request's last tokens, as the network's keys and values.

    A ring: position p is in row p % W.  Rows past the first ``seen`` observed ones hold zeros.
    """

    rows: Tensor  # [W, layers, 2, D]
    start: int  # first position observed without a gap
    end: int  # one past the last

    @property
    def seen(self) -> int:
        """How many rows there are."""
        return min(self.end - self.start, len(self.rows))


class BlockDrafter:
    """Proposes the best tree under the network's distributions (see `ddtree`).

    A request of which nothing was observed yet gets the root alone.  After a prefix cache hit the
    window may hold as little as one token, and fills up as the request goes on.
    """

    name = "block"

    def __init__(self, model: BlockModel) -> None:
        self.taps = model.settings.taps
        self._model = model
        self._windows: dict[int, _Window] = {}

    def observe(self, request: Drafted, start: int, features: Tensor) -> None:
        """See `Drafter`; a ``start`` that does not follow the last call's end begins anew."""
        count = len(features)
        if not count:
            return
        settings, device = self._model.settings, self._model.device
        window = self._windows.get(request.key)
        if window is None or window.end != start:
            rows = torch.zeros(
                settings.window, settings.layers, 2, settings.hidden,
                dtype=self._model.dtype, device=device,
            )  # fmt: skip
            window = self._windows[request.key] = _Window(rows, start, start)
        window.end = start + count
        kept = min(count, settings.window)
        positions = torch.arange(window.end - kept, window.end, device=device)
        with torch.inference_mode():
            last = features[count - kept :].to(device, self._model.dtype)
            window.rows[positions % settings.window] = self._model.context(last, positions)

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        """One tree a request, of at most ``budget`` drafted nodes."""
        known = [request for request in requests if request.key in self._windows]
        if not known or budget < 1:
            return [NOTHING] * len(requests)
        trees = (ddtree(logits, budget) for logits in self._logits(known).numpy())
        proposals = {
            request.key: Proposal(tree.tree, tree.tokens)
            for request, tree in zip(known, trees, strict=True)
        }
        return [proposals.get(request.key, NOTHING) for request in requests]

    def forget(self, request: Drafted) -> None:
        """See `Drafter`; a request that was never observed is none of its business."""
        self._windows.pop(request.key, None)

    def _logits(self, requests: Sequence[Drafted]) -> Tensor:
        """[R, L, V] float32 on the CPU."""
        device = self._model.device
        windows = [self._windows[request.key] for request in requests]
        roots = torch.tensor([request.tokens[-1] for request in requests], device=device)
        positions = torch.tensor([len(request.tokens) - 1 for request in requests], device=device)
        with torch.inference_mode():
            return self._model.logits(
                roots, positions, torch.stack([window.rows for window in windows]),
                self._seen(windows),
            ).cpu()  # fmt: skip

    def _seen(self, windows: Sequence[_Window]) -> Tensor:
        """[R, W] bool."""
        width, device = self._model.settings.window, self._model.device
        starts = torch.tensor([w.end - w.seen for w in windows], device=device)[:, None]
        seen = torch.tensor([w.seen for w in windows], device=device)[:, None]
        return (torch.arange(width, device=device) - starts) % width < seen
