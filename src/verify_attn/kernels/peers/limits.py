"""What FlashInfer's and FlashMLA's MLA kernels both cannot take."""

from __future__ import annotations

import torch

from verify_attn.problem import VerifyBatch

LATENT, ROPE = 512, 64  # the widths that they are compiled for
ALIGNMENT_BYTES = 16  # of their vector loads and of TMA


def outside_limits(batch: VerifyBatch, loaded: tuple[str, ...] = ("q", "kv_pool")) -> str | None:
    """Why not: other widths, nodes outside the pool, unaligned rows; ``loaded`` names tensors."""
    geometry = batch.geometry
    if (geometry.latent_dim, geometry.rope_dim) != (LATENT, ROPE):
        given = f"{geometry.latent_dim} + {geometry.rope_dim}"
        return f"takes rows of {LATENT} + {ROPE}, not {given}"
    if batch.node_kv is not None:
        return "reads the nodes' rows from the pool alone; here they are in node_kv"
    for name in loaded:
        if not _aligned(getattr(batch, name)):
            return f"{name} is not aligned to {ALIGNMENT_BYTES} bytes, as its loads are"
    return None


def _aligned(tensor: torch.Tensor) -> bool:
    """Do all rows begin at a multiple of it?"""
    size = tensor.element_size()
    steps = [tensor.stride(d) * size for d in range(tensor.ndim - 1) if tensor.shape[d] > 1]
    return all(step % ALIGNMENT_BYTES == 0 for step in (tensor.data_ptr(), *steps))
