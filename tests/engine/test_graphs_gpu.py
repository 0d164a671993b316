"""On a GPU: compiled kernels in the runner, and the captured graphs of the buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.runners import DENSE, MIXED, TAPS, Texts
from verify_attn.engine.model import Model
from verify_attn.engine.presets import K26_RANK
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.step import Part
from verify_attn.engine.weights import random_weights
from verify_attn.kernels.registry import load
from verify_attn.tree import DraftTree

NODES = 9


def gpu_pair(kernel: str, config=DENSE) -> tuple[LocalRunner, LocalRunner, Texts]:
    """One runner with graphs and one without, over equal pools."""
    cuda = torch.device("cuda")
    there = Model(config, random_weights(config, 5, cuda, torch.bfloat16))
    made = [
        LocalRunner(
            there, pages=600, page_size=1, kernel=load(kernel), taps=TAPS, graphs=graphs,
            tree_nodes=NODES,
        )
        for graphs in (True, False)
    ]  # fmt: skip
    made[0].machine.pool.normal_()
    made[1].machine.pool.copy_(made[0].machine.pool)
    return made[0], made[1], Texts(600, 1, seed=1)


def agree(one: torch.Tensor, other: torch.Tensor) -> None:
    """bf16 through three layers; a wrong mask, position or slot moves logits by about 1."""
    torch.testing.assert_close(one.float(), other.float(), rtol=0.05, atol=0.15)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton-split", "triton-unsplit"])
def test_compiled_kernels_give_what_torch_does(kernel: str) -> None:
    """Prefill in chunks, then unequal trees at unequal depths; each runner keeps its own rows."""
    cuda = torch.device("cuda")
    there = Model(DENSE, random_weights(DENSE, 5, cuda, torch.bfloat16))
    runners = [
        LocalRunner(there, pages=200, page_size=3, kernel=load(name), taps=TAPS, graphs=False)
        for name in (kernel, "torch")
    ]
    texts = Texts(200, 3, seed=2)
    for name, length in enumerate((170, 0, 33)):
        texts.add(name, length)
        for start in range(0, length, 40):
            chunk = texts.chunk(name, start, min(start + 40, length))
            one, other = (run.forward([chunk], every=False) for run in runners)
            agree(one.logits, other.logits)
    sizes = {0: (170, 9), 1: (0, 5), 2: (33, 1)}
    parts = [
        texts.part(name, prefix, DraftTree.random(nodes, name), texts.draw(nodes))
        for name, (prefix, nodes) in sizes.items()
    ]
    one, other = (run.forward(parts, every=True) for run in runners)
    agree(one.logits, other.logits)
    agree(one.features, other.features)
    apart = torch.cdist(other.logits[:9], other.logits[:9], p=torch.inf)
    assert apart.fill_diagonal_(9).min() > 0.3  # so that a node taken for another would show


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["triton-split", "triton-unsplit"])
def test_replays_follow_the_step(kernel: str) -> None:
    """Captured once a bucket; then prefixes, trees, tables and the number of requests change."""
    graphed, eager, texts = gpu_pair(kernel)
    assert graphed.mode.startswith("CUDA graphs")
    for name in range(5):
        texts.add(name, 0)
    prefixes = [40, 0, 7, 90, 3]
    for seed, names in enumerate(([0, 1, 2], [2, 1, 0], [3], [4], [3, 4], [0, 1, 2, 3], [1], [1])):
        parts = []
        for name in names:
            nodes = 1 + (name * 5 + seed * 3) % NODES
            parts.append(
                texts.part(name, prefixes[name], DraftTree.random(nodes, seed), texts.draw(nodes))
            )
            prefixes[name] += 1 + seed % 3
        assert graphed.captures(parts)
        expected = eager.forward(parts, every=True)
        found = graphed.forward(parts, every=True)
        agree(found.logits, expected.logits)
        agree(found.features, expected.features)
        agree(graphed.machine.pool[:, :-1], eager.machine.pool[:, :-1])


@pytest.mark.gpu
def test_a_replay_at_another_depth() -> None:
    """Positions written in place: the same tokens at another prefix rotate otherwise."""
    graphed, eager, texts = gpu_pair("triton-split")
    texts.add(0, 0)
    tokens = texts.draw(NODES)
    parts = [[texts.part(0, prefix, DraftTree.random(NODES, 1), tokens)] for prefix in (10, 300)]
    first, second = (graphed.forward(p, every=True).logits.clone() for p in parts)
    agree(first, eager.forward(parts[0], every=True).logits)
    agree(second, eager.forward(parts[1], every=True).logits)
    assert (first - second).abs().max() > 0.3


@pytest.mark.gpu
def test_a_full_replay_at_the_contexts_end() -> None:
    """Every row of the mask and the last column of the table are used."""
    graphed, eager, texts = gpu_pair("triton-split")
    for name in range(16):
        texts.add(name, 0)
    prefixes = [graphed.context - NODES] + [2] * 15
    for seed in (0, 1):
        parts = [
            texts.part(n, prefixes[n], DraftTree.random(NODES, seed + n), texts.draw(NODES))
            for n in range(16)
        ]
        agree(graphed.forward(parts, every=True).logits, eager.forward(parts, every=True).logits)


@pytest.mark.gpu
def test_padding_rows_leave_no_trace() -> None:
    """A large step, then a small one in the same bucket: other requests' rows stay as they were."""
    graphed, _, texts = gpu_pair("triton-split")
    for name in range(4):
        texts.add(name, 0)
    parts = [texts.part(n, 20, DraftTree.random(NODES, n), texts.draw(NODES)) for n in range(4)]
    graphed.forward(parts, every=True)
    before = graphed.machine.pool[:, :-1].clone()
    small = [Part(p.tokens[:2], DraftTree((-1, 0)), p.table, p.prefix_len) for p in parts[:3]]
    graphed.forward(small, every=True)
    changed = (graphed.machine.pool[:, :-1] != before).any(-1).any(0).flatten()
    own = {int(p.table[20 + i]) for p in small for i in range(2)}
    assert set(changed.nonzero().flatten().tolist()) <= own


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "config", "reason"),
    [("torch", DENSE, "does not declare capture"), ("triton-split", MIXED, "choice of experts")],
)
def test_what_is_not_captured(kernel: str, config, reason: str) -> None:
    graphed, eager, texts = gpu_pair(kernel, config)
    assert reason in graphed.mode
    texts.add(0, 0)
    parts = [texts.part(0, 10, DraftTree.random(NODES, 1), texts.draw(NODES))]
    agree(graphed.forward(parts, every=True).logits, eager.forward(parts, every=True).logits)


@pytest.mark.gpu
def test_all_buckets_at_once() -> None:
    graphed, eager, texts = gpu_pair("triton-split")
    graphed.warm()
    texts.add(0, 0)
    part = texts.part(0, 50, DraftTree.random(5, 1), texts.draw(5))
    agree(graphed.forward([part], every=True).logits, eager.forward([part], every=True).logits)


@pytest.mark.gpu
def test_a_layer_of_k26s_rank() -> None:
    """The real widths, two layers of them, at a long context."""
    config = replace(K26_RANK, layers=2)
    cuda = torch.device("cuda")
    there = Model(config, random_weights(config, 0, cuda, torch.bfloat16))
    made = [
        LocalRunner(
            there, pages=40_000, page_size=1, kernel=load("triton-split"), graphs=graphs,
            tree_nodes=32,
        )
        for graphs in (True, False)
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    table = rng.permutation(40_000).astype(np.int32)
    for prefix in (30_000, 39_000):
        part = Part(
            rng.integers(0, 20_480, 32).tolist(), DraftTree.random(32, prefix), table, prefix
        )
        logits = []
        for run in made:
            run.fill(table, prefix, seed=3)
            logits.append(run.forward([part], every=True).logits.clone())
        agree(*logits)
