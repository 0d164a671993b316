"""Small models, parts over shuffled pages, and what a pass should give: for the runners' tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from verify_attn.engine.config import Experts, ModelConfig, Yarn
from verify_attn.engine.model import Model
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.step import Part
from verify_attn.engine.weights import random_weights
from verify_attn.kernels.registry import load
from verify_attn.tree import DraftTree

CPU = torch.device("cpu")
DENSE = ModelConfig(
    name="small", vocabulary=97, hidden=32, layers=3, heads=4, latent_dim=24, rope_dim=8,
    nope_dim=8, value_dim=8, intermediate=48, max_positions=400, query_latent_dim=20,
    yarn=Yarn(factor=4.0, original_positions=64),
)  # fmt: skip
MIXED = ModelConfig(
    name="mixed", vocabulary=97, hidden=32, layers=3, heads=4, latent_dim=24, rope_dim=8,
    nope_dim=8, value_dim=8, intermediate=48, max_positions=400, dense_layers=1,
    experts=Experts(count=6, active=2, intermediate=16, shared=1, scale=2.0),
)  # fmt: skip
TAPS = (0, 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For modules that import it: on tensors this small further threads only cost time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model(config: ModelConfig = DENSE) -> Model:
    """Random, float32, on the CPU."""
    return Model(config, random_weights(config, 5, CPU, torch.float32))


def runner(config: ModelConfig = DENSE, **options) -> LocalRunner:
    """Over a pool of 600 tokens, with the ``torch`` kernel unless told otherwise."""
    page_size = options.pop("page_size", 4)
    return LocalRunner(
        model(config), page_size=page_size, pages=options.pop("pages", 600 // page_size),
        kernel=options.pop("kernel", None) or load("torch"), taps=TAPS,
        graphs=options.pop("graphs", False), **options,
    )  # fmt: skip


class Texts:
    """Requests with tokens and pages: what a host would keep."""

    def __init__(self, pages: int, page_size: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.page_size = page_size
        self.free = self.rng.permutation(pages).astype(np.int32).tolist()
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}

    def add(self, name: int, length: int) -> None:
        """A request with that many committed tokens, none of them in the pool yet."""
        self.tokens[name] = self.draw(length)
        self.tables[name] = []

    def draw(self, count: int) -> list[int]:
        """Random tokens, 0 among them now and then."""
        return self.rng.integers(0, 97, count).tolist()

    def part(self, name: int, prefix: int, tree: DraftTree, tokens: Sequence[int]) -> Part:
        """Those nodes after that prefix, in pages that are taken as needed."""
        table = self.tables[name]
        while len(table) * self.page_size < prefix + len(tree):
            table.append(self.free.pop())
        return Part(list(tokens), tree, np.array(table, dtype=np.int32), prefix)

    def chunk(self, name: int, start: int, end: int) -> Part:
        """A prefill chunk."""
        tokens = self.tokens[name][start:end]
        return self.part(name, start, DraftTree.chain(len(tokens)), tokens)


def truth(tokens: Sequence[int], config: ModelConfig = DENSE) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits [T, vocabulary], features) by plain causal attention: no pool, no kernel."""
    geometry = config.geometry

    def attend(layer: int, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("thd,sd->hts", q, rows) * geometry.softmax_scale
        hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hts,sc->thc", weights, rows[:, : geometry.latent_dim])

    own = model(config)
    with torch.no_grad():
        hidden, features = own.forward(
            torch.tensor(tokens), torch.arange(len(tokens)), attend, TAPS
        )
        return own.logits(hidden), features


def truth_of_tree(
    committed: Sequence[int], part: Part, config: ModelConfig = DENSE
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for each node of a tree, each run on its own path alone."""
    found = []
    for node in range(len(part.tree)):
        path = [part.tokens[i] for i in part.tree.path(node)]
        logits, features = truth([*committed[: part.prefix_len], *path], config)
        found.append((logits[-1], features[-1]))
    return torch.stack([f[0] for f in found]), torch.stack([f[1] for f in found])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of float32 sums."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-4)
