"""How time grows with context: least squares with parts that cannot be negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from verify_attn.live.tokens import Floats


@dataclass(frozen=True)
class Fit:
    """``seconds = fixed_s + linear_s * n + quadratic_s * n ** 2`` at n tokens, no part negative."""

    fixed_s: float
    linear_s: float
    quadratic_s: float

    def at(self, n: float) -> float:
        """Seconds at ``n`` tokens."""
        return self.fixed_s + self.linear_s * n + self.quadratic_s * n * n

    def shares_at(self, n: float) -> tuple[float, float, float]:
        """The three parts' shares of the time at ``n`` tokens."""
        whole = self.at(n)
        return self.fixed_s / whole, self.linear_s * n / whole, self.quadratic_s * n * n / whole

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "fixed_s": self.fixed_s, "linear_s_per_token": self.linear_s,
            "quadratic_s_per_token2": self.quadratic_s,
        }  # fmt: skip


def fit(n: Floats, seconds: Floats) -> Fit | None:
    """Fit with relative errors, so that short times count as much as long ones.

    Needs two different lengths; as many parts are fitted as there are lengths.
    """
    lengths = len(np.unique(n))
    if lengths < 2 or np.any(seconds <= 0):
        return None
    parts = np.stack([np.ones_like(n), n, n * n], axis=1)[:, : min(3, lengths)]
    scale = parts.max(axis=0)
    solution, _ = nnls(parts / scale / seconds[:, None], np.ones_like(seconds))
    values = [*(solution / scale), 0.0, 0.0][:3]
    return Fit(*(float(v) for v in values))


def steepness(n: Floats, seconds: Floats) -> float | None:
    """Exponent of the growth over the last stretch: 1 is linear, 2 quadratic.

    Between the longest length and the longest of at most two thirds of it.
    """
    order = np.argsort(n)
    n, seconds = n[order], seconds[order]
    before = np.flatnonzero(n <= n[-1] / 1.5)
    if len(before) == 0 or np.any(seconds <= 0):
        return None
    i = before[-1]
    return float(np.log(seconds[-1] / seconds[i]) / np.log(n[-1] / n[i]))
