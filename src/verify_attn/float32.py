"""Products of float32 with all their bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exact_products() -> Iterator[None]:
    """A module that a user's kernel comes from may have allowed TF32, which keeps 11 bits: then the
    judge would be further off than what it judges."""
    matmul = torch.backends.cuda.matmul
    name, exact = _setting(matmul)
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _setting(matmul: Any) -> tuple[str, Any]:
    """Of the two ways to set it the one that is in use: torch takes no mixture."""
    try:
        _ = matmul.allow_tf32
    except RuntimeError:
        return "fp32_precision", "ieee"
    return "allow_tf32", False
