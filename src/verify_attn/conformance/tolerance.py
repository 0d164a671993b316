"""How far a right kernel may be from the oracle, and why.

Let u be the unit roundoff of q's dtype (2^-8 bfloat16, 2^-11 float16, 2^-24 float32) and
e = 2^-24 that of the float32 accumulators.  Per output row, with RMS the root mean square of the
oracle's row, an element may differ by

    RMS * (4 u + e * (16 + (4 + D / 16) S + 3 sqrt(n))) + 1.01 u |element|

* ``4 u RMS``: the softmax weights are rounded to q's dtype before they meet the values.  Each
  weight's error is independent with standard deviation at most u / 2 of it, so the sum's is at
  most u / 2 * |p|_2 * RMS(v), and |p|_2 * RMS(v) is the row's RMS for independent values.  4 u is
  8 standard deviations: enough for the largest of 10^10 elements.
* ``e * (4 + D / 16) S``: a logit is a float32 sum of D products whose magnitudes add up to at
  most S = softmax_scale * |q| * max |k|; its error scales the weight.  Tensor cores add 16 dims
  at a time and truncate where others round, so the errors of their D / 16 steps do not cancel.
* ``e * 3 sqrt(n)``: float32 accumulation over n tokens, one after the other at worst; roundings
  are independent, each at most e of the running sum: 5 standard deviations.  ``e * 16``: exp2,
  log2, the division and the merge.
* ``1.01 u |element|``: the output itself is rounded to q's dtype.

There is no absolute floor: at 185k tokens an output is a few hundredths of a value, and any fixed
floor would pass an all-zero answer.  A row that may attend to nothing must be exactly 0, -inf.

The LSE is float32 throughout and may differ by ``e * (64 + (4 + D / 16) S + 2 |lse| +
3 sqrt(n))``.

A kernel may declare that it takes products in fp8 (`Capabilities.products`).  Then, for it alone,
the same terms take what that costs: u of the weights is fp8's (2^-4 for e4m3); and the tensor
cores of Hopper, which add 32 such products at a time, keep 14 bits of the sum (DeepSeek-V3's
report, arXiv 2412.19437, 3.3.2 and 3.5.2), so e = 2^-13 and D / 32 steps in a logit and in the sum
of weighted values, but not in exp2 and the merge.  Rounding q to fp8 costs nothing: cases with an
fp8 pool hold such q as fp8 holds.

Where two runs of kernels are compared, each may be off by the bound, so they may differ by twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verify_attn.reference import Reference

ROUNDOFF = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
}
ACCUMULATOR = 2.0**-24


@dataclass(frozen=True)
class _Sums:
    """Of products on tensor cores: the accumulator's roundoff, and dims added in one step."""

    roundoff: float = ACCUMULATOR
    step: int = 16


_SUMS = {torch.float8_e4m3fn: _Sums(2.0**-13, 32)}


def out_bound(
    reference: Reference, dtype: torch.dtype, products: torch.dtype | None = None
) -> torch.Tensor:
    """[N', H, D_c] float64: the largest allowed difference of ``out`` in that dtype.

    ``products``: the kernel's declaration, where it takes them in a narrower dtype.
    """
    out = reference.out.double()
    rms = out.square().mean(dim=-1, keepdim=True).sqrt()
    sums = _sums(products)
    noise = 16 * ACCUMULATOR + sums.roundoff * (
        _logit_term(reference, sums) + _length_term(reference)
    )
    weights = 4 * ROUNDOFF[products or dtype]
    return rms * (weights + noise[..., None]) + 1.01 * ROUNDOFF[dtype] * out.abs()


def lse_bound(reference: Reference, products: torch.dtype | None = None) -> torch.Tensor:
    """[N', H] float64: the largest allowed difference of ``lse``; 0 where it is -inf."""
    lse = reference.lse.double()
    empty = torch.isinf(lse)
    size = torch.where(empty, 0.0, lse.abs())
    sums = _sums(products)
    logits = sums.roundoff * _logit_term(reference, sums)
    bound = logits + ACCUMULATOR * (64 + 2 * size + _length_term(reference))
    return torch.where(empty, 0.0, bound)


def _sums(products: torch.dtype | None) -> _Sums:
    return _Sums() if products is None else _SUMS.get(products, _Sums())


def _logit_term(reference: Reference, sums: _Sums) -> torch.Tensor:
    return (4 + reference.dims / sums.step) * reference.strength.double()


def _length_term(reference: Reference) -> torch.Tensor:
    return (3 * reference.keys.double().sqrt())[:, None]
