"""A small model with random weights, and generation without a server around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verify_attn.engine.cache import Cache
from verify_attn.engine.config import ModelConfig, Yarn
from verify_attn.engine.decode import Decoder, Running
from verify_attn.engine.drafters.base import Drafter
from verify_attn.engine.model import Model
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.sampling import Sampling
from verify_attn.engine.weights import random_weights
from verify_attn.kernels.registry import load

CONFIG = ModelConfig(
    name="small", vocabulary=32, hidden=48, layers=2, heads=2, latent_dim=16, rope_dim=8,
    nope_dim=8, value_dim=8, intermediate=64, max_positions=512,
    yarn=Yarn(factor=4.0, original_positions=128),
)  # fmt: skip
WEIGHTS = random_weights(CONFIG, 1, torch.device("cpu"), torch.float32)
MODEL = Model(CONFIG, WEIGHTS)


def decoder_of(
    drafter: Drafter, budget: int, *, page_size: int = 1, kernel: str = "torch",
    tokens: int = 2000, **cache,
) -> Decoder:  # fmt: skip
    pages = tokens // page_size
    runner = LocalRunner(
        MODEL, pages=pages, page_size=page_size, kernel=load(kernel), taps=drafter.taps,
        graphs=False, max_nodes=256,
    )  # fmt: skip
    return Decoder(runner, Cache(pages, page_size, **cache), drafter, budget)


def generate(
    decoder: Decoder, prompts: Sequence[Sequence[int]], new: int, *, chunk: int = 64,
    sampling: Sampling | None = None, steps: list[int] | None = None, first_key: int = 1,
) -> list[list[int]]:  # fmt: skip
    """Prompt and at least ``new`` tokens of each, all running side by side."""
    running = []
    for key, prompt in enumerate(prompts, start=first_key):
        held = decoder.cache.admit(prompt, len(prompt) + new + 2 * (decoder.budget + 1))
        running.append(Running(key, list(prompt), len(prompt), held, sampling or Sampling()))
    for request in running:
        while request.in_prefill:
            decoder.prefill(request, chunk)
    while True:
        left = [r for r in running if len(r.tokens) - r.prompt_tokens < new]
        if not left:
            break
        for step in decoder.step(left):
            if steps is not None:
                steps.append(len(step.tokens))
    for request in running:
        decoder.release(request)
    return [request.tokens for request in running]


def logits64(tokens: Sequence[int]) -> torch.Tensor:
    """[T, vocabulary] of a float64 forward of the whole text, without pages or kernels."""
    model = Model(CONFIG, {name: weight.double() for name, weight in WEIGHTS.items()})
    scale = CONFIG.geometry.softmax_scale
    count = len(tokens)
    future = torch.ones(count, count, dtype=torch.bool).triu(1)

    def attend(layer: int, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("thd,sd->hts", q, rows) * scale
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hts,sc->thc", weights, rows[:, : CONFIG.latent_dim])

    hidden, _ = model.forward(torch.tensor(tokens), torch.arange(count), attend)
    return torch.nn.functional.linear(hidden, model.head)


def differs_by(text: Sequence[int], expected: Sequence[int]) -> float:
    """How far apart a float64 forward puts the first two tokens that differ."""
    at = next(i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b)
    last = logits64(text[:at])[-1]
    return abs(float(last[text[at]] - last[expected[at]]))
