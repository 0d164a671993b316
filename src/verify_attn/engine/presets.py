"""The models that can be served by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from verify_attn.engine.config import ModelConfig, Yarn

if TYPE_CHECKING:
    import torch

    from verify_attn.engine.model import Model
    from verify_attn.engine.parallel import Group

K26_RANK = ModelConfig(
    name="k2.6-rank",
    vocabulary=20_480,
    hidden=7_168,
    layers=61,
    heads=8,
    latent_dim=512,
    rope_dim=64,
    nope_dim=128,
    value_dim=128,
    intermediate=2_304,
    max_positions=204_800,
    query_latent_dim=1_536,
    rope_theta=50_000.0,
    yarn=Yarn(factor=64.0, original_positions=4_096),
    norm_eps=1e-5,
)
"""One of 8 tensor-parallel ranks of Kimi K2.6: the attention of a rank in full, the rest by share.

The mixture of experts is one dense MLP of 2,304 a layer: what one token's 8 routed experts and the
shared one, 2,048 wide each, come to on a rank, (8 + 1) * 2,048 / 8.  A real rank reads more of its
experts the more tokens a pass has, so its feed-forward part takes longer.  The vocabulary is a
rank's share too, 163,840 / 8, and there is no all-reduce.
"""

PRESETS: dict[str, str] = {
    "tiny": "trained byte-level model of the package, for CPUs too",
    "k2.6-rank": (
        "one of 8 tensor-parallel ranks of Kimi K2.6, random weights: 61 layers, 8 heads, latent "
        "512 + rope 64; the experts reduced to one dense MLP of 2,304 a layer (one token's active "
        "share of a rank), vocabulary 20,480 (a rank's share), no all-reduce; bf16: 9.1 GiB of "
        "weights and 13.4 GiB of KV at 204,800 tokens"
    ),
}


class PresetError(ValueError):
    """No such preset and no such folder; the message lists what there is."""


def open_preset(
    name: str, device: torch.device, dtype: torch.dtype | None = None, group: Group | None = None
) -> Model:
    """The model of that preset, or of the folder at that path, on a device.

    ``dtype``   None: bfloat16 on a GPU, float32 on the CPU
    ``group``   the tensor-parallel ranks, each of which opens the same preset

    Raises `PresetError`, and `ConfigError` or `WeightsError` for a folder that is no model.
    """
    import torch

    from verify_attn.engine.weights import load_model

    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    opener = _OPENERS.get(name)
    if opener is not None:
        return opener(device, dtype, group)
    if Path(name).is_dir():
        return load_model(name, device, dtype, group)
    raise PresetError(
        f"no preset and no folder {name!r}; there are: {', '.join(PRESETS)}, or give the path of a "
        "folder with config.json and *.safetensors"
    )


def _tiny(device: torch.device, dtype: torch.dtype, group: Group | None) -> Model:
    from verify_attn.engine import tiny
    from verify_attn.engine.weights import build

    return build(tiny.CONFIG, tiny.weights(dtype), device, dtype, group)


def _k26_rank(device: torch.device, dtype: torch.dtype, group: Group | None) -> Model:
    from verify_attn.engine.weights import build, random_weights

    if group is not None and group.world > 1:
        raise PresetError(
            f"k2.6-rank is one rank already; it is asked for on {group.world}: start it without "
            "torchrun"
        )
    return build(K26_RANK, random_weights(K26_RANK, 0, device, dtype), device, dtype)


_OPENERS: dict[str, Callable[[torch.device, torch.dtype, Group | None], Model]] = {
    "tiny": _tiny,
    "k2.6-rank": _k26_rank,
}
