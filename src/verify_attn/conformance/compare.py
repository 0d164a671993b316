"""Two tensors side by side: how many elements are off, the first of them, the worst."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Mismatch:
    """What differs.

    ``name``    ``out`` or ``lse``
    ``count``, ``total``  elements off, elements compared
    ``index``   the first bad element
    ``got``, ``want``, ``bound``  there; the bound is None where bits were compared
    ``worst``   the largest difference over its bound; infinite for NaN, None where bits were
    """

    name: str
    count: int
    total: int
    index: tuple[int, ...]
    got: float
    want: float
    bound: float | None
    worst: float | None


def within(
    name: str, got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor
) -> tuple[Mismatch | None, float]:
    """Compare to a bound; returns (mismatch or None, the largest difference over its bound).

    NaN is always off.  Infinite values must be equal.  A bound of 0 asks for equality.
    """
    got, want = got.double(), want.to(got.device).double()
    bound = bound.to(got.device)
    difference = torch.where(got == want, 0.0, (got - want).abs())
    bad = ~(difference <= bound)  # NaN compares false: bad
    ratio = torch.where(
        difference == 0, 0.0, torch.nan_to_num(difference / bound, nan=torch.inf, posinf=torch.inf)
    )
    worst = float(ratio.max()) if ratio.numel() else 0.0
    if not bad.any():
        return None, worst
    return _first(name, bad, got, want, bound, worst), worst


def identical(name: str, got: torch.Tensor, want: torch.Tensor) -> Mismatch | None:
    """Compare bits; NaN equals the same NaN."""
    bits = BITS[got.element_size()]
    if got.dtype == torch.bool:
        bad = got != want
    else:
        bad = got.contiguous().view(bits) != want.contiguous().view(bits)
    return _first(name, bad, got, want, None, None) if bad.any() else None


def _first(
    name: str,
    bad: torch.Tensor,
    got: torch.Tensor,
    want: torch.Tensor,
    bound: torch.Tensor | None,
    worst: float | None,
) -> Mismatch:
    at = int(bad.flatten().to(torch.uint8).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), bad.shape))
    limit = None if bound is None else float(bound.expand_as(got)[index])
    return Mismatch(
        name,
        int(bad.sum()),
        bad.numel(),
        index,
        float(got[index]),
        float(want[index]),
        limit,
        worst,
    )
