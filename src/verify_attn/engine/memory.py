"""How much a device has left, and how many tokens of KV fit into it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from verify_attn.engine.config import ModelConfig

GIB = 1 << 30
# Kept free for activations, logits and a kernel's workspace.
GPU_RESERVE_BYTES = 4 * GIB
CPU_RESERVE_BYTES = GIB


def free_bytes(device: torch.device) -> int:
    """Memory that could be allocated now, what torch holds in its cache included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: half of what there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def row_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one token's KV in all layers (70,272 for bf16 Kimi K2.6)."""
    return config.layers * (config.latent_dim + config.rope_dim) * dtype.itemsize


def tokens_that_fit(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    page_size: int,
    reserve_bytes: int | None = None,
) -> int:
    """Tokens of KV that a pool could hold now, in whole pages; 0 if not even one page fits.

    ``reserve_bytes``  left free; None: 4 GiB on a GPU, 1 GiB on the CPU.  The one page that a
    runner keeps for itself is counted.
    """
    if reserve_bytes is None:
        reserve_bytes = GPU_RESERVE_BYTES if device.type == "cuda" else CPU_RESERVE_BYTES
    room = free_bytes(device) - reserve_bytes
    pages = room // (row_bytes(config, dtype) * page_size) - 1
    return max(int(pages), 0) * page_size
