"""What came of it: bits per byte on held-out text, committed tokens a step on the fixed texts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from training.target import causal

from verify_attn.engine.drafters.base import Drafter
from verify_attn.engine.model import Attend, Model
from verify_attn.engine.tokenizer import BOS, encode, encode_prompt
from verify_attn.tree import DraftTree, accept_walk

TRACE = 16  # tokens; a run of so many that was there before counts as repeated


@torch.inference_mode()
def bits_per_byte(model: Model, texts: list[str], length: int, most: int) -> list[float]:
    """Over the texts end to end, in windows of ``length``: of each quarter of the window's bytes.

    At most ``most`` bytes (or one window) are looked at.
    """
    flat = torch.tensor(encode("\n\n".join(texts))[: max(most, length)], device=model.device)
    count = len(flat) // (length - 1)
    windows = flat[: count * (length - 1)].view(count, length - 1)
    depths = torch.arange(length - 1, device=model.device)
    totals = torch.zeros(length - 1, device=model.device)
    for window in windows:
        inputs = torch.cat([window.new_tensor([BOS]), window[:-1]])
        hidden, _ = model.forward(inputs, depths, causal(model.config, 1))
        totals += cross_entropy(model.logits(hidden), window, reduction="none")
    bits = totals / count / math.log(2)
    return [round(part.mean().item(), 4) for part in bits.chunk(4)]


@dataclass
class Text:
    """A request as a drafter sees it, with its latent rows and what its steps committed."""

    key: int
    tokens: list[int]
    prompt_tokens: int
    cache: Tensor  # [layers, most tokens, D_c + D_r]
    committed: list[int] = field(default_factory=list)


@torch.inference_mode()
def decode(
    model: Model, drafter: Drafter, prompt: str, count: int, budget: int, temperature: float,
    seed: int = 0,
) -> Text:  # fmt: skip
    """``count`` tokens or a few more, by the plainest verify loop; greedy at temperature 0."""
    config, tokens = model.config, encode_prompt(prompt)
    rows = len(tokens) + count + 2 * (budget + 1)
    width = config.latent_dim + config.rope_dim
    cache = torch.zeros(config.layers, rows, width, dtype=model.dtype, device=model.device)
    text = Text(seed, tokens, len(tokens), cache)
    choose = _chooser(temperature, seed)
    prompt_tree = DraftTree.chain(len(tokens))
    chosen, features = _forward(model, drafter, text, tokens, prompt_tree, 0, choose)
    drafter.observe(text, 0, features)
    text.tokens.append(chosen[-1])
    while len(text.tokens) < text.prompt_tokens + count:
        prefix = len(text.tokens) - 1
        proposal = drafter.propose([text], budget)[0]
        nodes = [text.tokens[-1], *proposal.tokens]
        chosen, features = _forward(model, drafter, text, nodes, proposal.tree, prefix, choose)
        accepted, bonus = accept_walk(proposal.tree, nodes, chosen)
        index = torch.tensor(accepted, device=model.device)
        text.cache[:, prefix : prefix + len(accepted)] = text.cache[:, prefix + index]
        drafter.observe(text, prefix, features[index])
        text.tokens += [*(nodes[i] for i in accepted[1:]), bonus]
        text.committed.append(len(accepted))
    drafter.forget(text)
    return text


def acceptance(
    model: Model, drafter: Drafter, texts: list[str], count: int, budget: int, temperature: float
) -> dict[str, object]:
    """Mean committed tokens a step, over all and of each text; and how much repeats itself."""
    done = [
        decode(model, drafter, text, count, budget, temperature, seed)
        for seed, text in enumerate(texts)
    ]
    steps = [step for text in done for step in text.committed]
    return {
        "mean_committed": round(sum(steps) / len(steps), 3),
        "steps": len(steps),
        "each_text": [round(sum(t.committed) / len(t.committed), 2) for t in done],
        "repeated_share": round(sum(map(_repeated, done)) / len(done), 3),
        "first_output": bytes(
            t if t < 256 else 0x7E for t in done[0].tokens[done[0].prompt_tokens :]
        ).decode("utf-8", "replace"),
    }


def _forward(
    model: Model, drafter: Drafter, text: Text, nodes: list[int], tree: DraftTree, prefix: int,
    choose: Callable[[Tensor], list[int]],
) -> tuple[list[int], Tensor]:  # fmt: skip
    depths = prefix + torch.tensor(tree.depths, device=model.device)
    visible = torch.from_numpy(tree.visible).to(model.device)
    hidden, features = model.forward(
        torch.tensor(nodes, device=model.device), depths, _attend(model, text, prefix, visible),
        drafter.taps,
    )  # fmt: skip
    return choose(model.logits(hidden)), features


def _attend(model: Model, text: Text, prefix: int, visible: Tensor) -> Attend:
    scale, latent = model.config.geometry.softmax_scale, model.config.latent_dim

    def attend(layer: int, q: Tensor, rows: Tensor) -> Tensor:
        end = prefix + len(rows)
        text.cache[layer, prefix:end] = rows
        keys = text.cache[layer, :end]
        scores = torch.einsum("nhd,kd->nhk", q, keys) * scale
        scores[:, :, prefix:].masked_fill_(~visible[:, None], float("-inf"))
        return scores.softmax(-1) @ keys[:, :latent]

    return attend


def _chooser(temperature: float, seed: int) -> Callable[[Tensor], list[int]]:
    generator = torch.Generator().manual_seed(seed)

    def choose(logits: Tensor) -> list[int]:
        if temperature == 0:
            return list(map(int, logits.argmax(-1).tolist()))
        odds = (logits.cpu() / temperature).softmax(-1)
        return list(map(int, torch.multinomial(odds, 1, generator=generator)[:, 0].tolist()))

    return choose


def _repeated(text: Text) -> float:
    """The share of generated tokens that end a run which was in the text before."""
    seen, repeated = set(), 0
    for end in range(TRACE, len(text.tokens) + 1):
        run = tuple(text.tokens[end - TRACE : end])
        if end > text.prompt_tokens and run in seen:
            repeated += 1
        seen.add(run)
    return repeated / (len(text.tokens) - text.prompt_tokens)
