"""Trains the block drafter on what the target itself goes on to write, greedily and sampled."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from training.target import Weights, autocast, causal, initial, optimizer, shares, step, windows

from verify_attn.engine.block_model import BlockModel, BlockSettings
from verify_attn.engine.config import ModelConfig
from verify_attn.engine.model import Model

LENGTH, PROMPT = 768, 320  # of a training text; the target wrote what is past the prompt
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)  # in equal parts
ANCHORS = 48  # roots a text
DECAY = 5.0  # weight of position k: exp(-(k - 1) / DECAY), as DFlash: early ones gate the others
GENERATION_SHARE = 0.25  # of the time, before the first step
CORPUS_SHARE = 0.2  # of a batch


@torch.no_grad()
def continuations(config: ModelConfig, weights: Weights, stream: Tensor, count: int) -> Tensor:
    """[count, LENGTH] int64: PROMPT tokens of the corpus, and how the target goes on."""
    dtype = torch.bfloat16 if stream.is_cuda else torch.float32
    model = Model(config, {name: weight.to(dtype) for name, weight in weights.items()})
    device, scale = stream.device, config.geometry.softmax_scale
    texts = windows(stream, count, LENGTH - 1)
    width = config.latent_dim + config.rope_dim
    cache = torch.zeros(config.layers, count, LENGTH, width, dtype=dtype, device=device)
    whole = causal(config, count)

    def prefill(layer: int, q: Tensor, rows: Tensor) -> Tensor:
        cache[layer, :, :PROMPT] = rows.view(count, PROMPT, width)
        return whole(layer, q, rows)

    depths = torch.arange(PROMPT, device=device).repeat(count)
    hidden, _ = model.forward(texts[:, :PROMPT].flatten(), depths, prefill)
    hidden = hidden.view(count, PROMPT, -1)[:, -1]
    chosen = torch.tensor(TEMPERATURES, device=device)[torch.arange(count, device=device) % 4]
    for at in range(PROMPT, LENGTH):
        logits = model.logits(hidden)
        noise = torch.rand_like(logits).clamp_min(1e-20).log().neg().clamp_min(1e-20).log().neg()
        texts[:, at] = (logits + chosen[:, None] * noise).argmax(-1)  # Gumbel's way to sample

        def attend(layer: int, q: Tensor, rows: Tensor, at: int = at) -> Tensor:
            cache[layer, :, at] = rows
            keys = cache[layer, :, : at + 1]
            scores = torch.matmul(q, keys.transpose(1, 2)).float() * scale
            return torch.matmul(scores.softmax(-1).to(q.dtype), keys[..., : config.latent_dim])

        hidden, _ = model.forward(texts[:, at], torch.full_like(texts[:, at], at), attend)
    return texts


def loss(model: BlockModel, texts: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """`loss_at` the same random roots of all texts.

    Half of the windows are cut to a random part, as after a prefix cache hit.
    """
    window, device = model.settings.window, texts.device
    length = texts.shape[1]
    roots = torch.randint(1, length - model.settings.block + 1, (ANCHORS,), device=device)
    shape = (len(texts), ANCHORS)
    cut = torch.rand(shape, device=device) < 0.5
    known = torch.where(cut, torch.randint(1, window + 1, shape, device=device), window)
    return loss_at(model, texts, features, roots, torch.minimum(known, roots))


def loss_at(
    model: BlockModel, texts: Tensor, features: Tensor, roots: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss, [L] share of positions where the likeliest token is the right one).

    ``texts`` [n, length] and ``features`` [n, length, F] of them; ``roots`` [A] positions, and
    ``known`` [n, A] how many tokens before each the drafter sees, at most the root's position.
    """
    settings, device, count = model.settings, texts.device, len(texts)
    window, drafted = settings.window, settings.block - 1
    context = model.context(features, torch.arange(texts.shape[1], device=device))
    context = pad(context, (0, 0, 0, 0, 0, 0, window, 0))  # position p is now row p + window
    back = torch.arange(window, device=device)
    rows = context[:, (roots[:, None] + back).flatten()]
    rows = rows.unflatten(1, (len(roots), window)).flatten(0, 1)
    seen = back >= window - known[..., None]
    ahead = roots[:, None] + torch.arange(1, drafted + 1, device=device)
    logits = model.logits(texts[:, roots].flatten(), roots.repeat(count), rows, seen.flatten(0, 1))
    labels = texts[:, ahead].flatten(0, 1)  # [n * A, L]
    each = cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(0)
    weight = torch.exp(-torch.arange(drafted, device=device) / DECAY)
    right = (logits.detach().argmax(-1) == labels).float().mean(0)
    return (each * weight).sum() / weight.sum(), right


def train(
    config: ModelConfig, settings: BlockSettings, target: Weights, stream: Tensor, minutes: float,
    batch: int, log: list[dict[str, object]],
) -> Weights:  # fmt: skip
    """``batch`` texts a step, for that many minutes; ``log`` gets a line every 50 steps."""
    device = stream.device
    start = time.monotonic()
    pool = [
        continuations(config, target, stream, batch * 16).to(torch.int16)
        for _ in shares(minutes * GENERATION_SHARE)
    ]
    written = torch.cat(pool)
    print(f"drafter: {len(written)} texts in {time.monotonic() - start:.1f} s", flush=True)

    weights = initial(settings.shapes, device, seed=2)
    adam = optimizer(weights)
    model = BlockModel(settings, weights)
    frozen = Model(config, target)
    depths = torch.arange(LENGTH, device=device).repeat(batch)
    plain = math.ceil(batch * CORPUS_SHARE)
    left = minutes - (time.monotonic() - start) / 60
    for number, share in enumerate(shares(max(left, 0.05))):
        drawn = torch.randint(len(written), (batch - plain,), device=device)
        texts = torch.cat([written[drawn].long(), windows(stream, plain, LENGTH - 1)])
        with autocast(device):
            with torch.no_grad():
                _, features = frozen.forward(
                    texts.flatten(), depths, causal(config, batch), settings.taps
                )
            value, right = loss(model, texts, features.view(batch, LENGTH, -1))
        step(weights, adam, value, share)
        if number % 50 == 0:
            line: dict[str, object] = {
                "step": number, "seconds": round(time.monotonic() - start, 1),
                "loss": round(value.item(), 4),
                "right": [round(r, 3) for r in right[[0, 1, 3, 7, 14]].tolist()],
            }  # fmt: skip
            log.append(line)
            print("drafter", line, flush=True)
    return {name: weight.detach() for name, weight in weights.items()}
