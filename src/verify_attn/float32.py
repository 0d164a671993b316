"""Products of float32 with all their bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_products() -> Iterator[None]:
    """A module that a user's kernel comes from may have allowed TF32, which keeps 11 bits: then the
    judge would be further off than what it judges."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
