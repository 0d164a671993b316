"""The ``tiny`` preset: a byte model whose weights are in the package, and its block drafter.

Both are trained by ``training/train_tiny.py``; what on, how long and how well is in
``training/README.md``.
"""

from __future__ import annotations

from importlib.resources import as_file, files

import torch
from safetensors.torch import load_file
from torch import Tensor

from verify_attn.engine.block_model import BlockSettings
from verify_attn.engine.config import ModelConfig, Yarn
from verify_attn.engine.model import WeightsError
from verify_attn.engine.tokenizer import TINY_VOCABULARY

TARGET_FILE, BLOCK_FILE = "tiny.safetensors", "block.safetensors"
MOST_BYTES = 10_000_000  # of both files together

# No query latent and no experts: they save memory that a model of this size does not use.
CONFIG = ModelConfig(
    name="tiny", vocabulary=TINY_VOCABULARY, hidden=256, layers=5, heads=4,
    latent_dim=64, rope_dim=16, nope_dim=32, value_dim=32, intermediate=768,
    max_positions=32_768, yarn=Yarn(factor=8.0, original_positions=4096),
)  # fmt: skip

DRAFTER = BlockSettings(
    vocabulary=TINY_VOCABULARY, taps=(1, 3, 4), target_hidden=CONFIG.hidden,
    block=16, window=64, hidden=192, layers=2, heads=4, intermediate=512,
)  # fmt: skip


def weights(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The target's, by the names that `Model` takes; raises `WeightsError` if they are not here."""
    return _load(TARGET_FILE, dtype, device)


def block_weights(
    dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The drafter's, for `BlockModel` with `DRAFTER`; raises `WeightsError` likewise."""
    return _load(BLOCK_FILE, dtype, device)


def _load(name: str, dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    resource = files("verify_attn.engine").joinpath("data", name)
    if not resource.is_file():
        raise WeightsError(
            f"the package has no engine/data/{name}; install it whole, or train the file with "
            "training/train_tiny.py"
        )
    with as_file(resource) as path:
        stored = load_file(path)
    return {key: weight.to(device, dtype) for key, weight in stored.items()}
