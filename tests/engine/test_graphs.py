"""The buckets: padding, and buffers that stay.  The captured graphs are in test_graphs_gpu.py.

Public implementations got these wrong: a mask buffer without room for the tree, positions that were
replaced instead of written in place (so that a graph went on reading the old ones), padding rows
that attend or are stored, requests mapped to each other's masks where trees are unequal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.runners import CPU, DENSE, Texts, close, runner
from tests.engine.runners import one_thread as one_thread
from verify_attn.engine.graphs import Buckets, why_no_graphs
from verify_attn.engine.inputs import Inputs, Shape
from verify_attn.engine.step import Part
from verify_attn.kernels.registry import load
from verify_attn.tree import DraftTree

NODES = 9


class Pair:
    """The same parts through buckets (uncaptured) and through steps of just their shape."""

    def __init__(self, page_size: int = 4, seed: int = 0, config=DENSE) -> None:
        self.plain = runner(config, page_size=page_size)
        self.padded = runner(config, page_size=page_size)
        self.buckets = Buckets(self.padded.machine, NODES, self.padded.context, captured=False)
        self.texts = Texts(self.plain.pages, page_size, seed)
        self.plain.machine.pool.normal_(generator=torch.Generator().manual_seed(seed))
        self.padded.machine.pool.copy_(self.plain.machine.pool)

    def step(self, parts: list[Part]) -> None:
        """Equal logits, features and pools; nothing but the scratch page differs."""
        expected = self.plain.forward(parts, every=True)
        with torch.no_grad():
            found = self.buckets.forward(parts)
        close(found.logits, expected.logits)
        close(found.features, expected.features)
        close(self.padded.machine.pool[:, :-1], self.plain.machine.pool[:, :-1])
        for step in self.buckets.steps.values():
            assert torch.isfinite(step._out).all()


def tree_of(nodes: int, seed: int) -> DraftTree:
    return DraftTree.random(nodes, seed)


def test_steps_that_grow_shrink_and_change_places() -> None:
    """Many requests, then few, then others; prefixes grow; trees are unequal and change."""
    pair = Pair()
    for name in range(9):
        pair.texts.add(name, 0)
    prefixes = [40, 0, 7, 61, 3, 20, 33, 1, 12]
    for seed, names in enumerate(
        ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2], [0, 3], [3, 0], [5, 6, 7, 8, 0, 1, 2, 3], [1], [8])
    ):
        parts = []
        for name in names:
            nodes = 1 + (name * 5 + seed * 3) % NODES
            tree = tree_of(nodes, seed + name)
            parts.append(pair.texts.part(name, prefixes[name], tree, pair.texts.draw(nodes)))
            prefixes[name] += 1 + seed % 3
        pair.step(parts)
    assert {key[0] for key in pair.buckets.steps} == {1, 2, 8}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_any_steps(data) -> None:
    pair = Pair(page_size=data.draw(st.sampled_from([1, 3, 8])), seed=data.draw(st.integers(0, 9)))
    for name in range(4):
        pair.texts.add(name, 0)
    for _ in range(data.draw(st.integers(1, 4))):
        names = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
        parts = []
        for name in names:
            nodes = data.draw(st.integers(1, NODES))
            prefix = data.draw(st.integers(0, 100))
            tree = tree_of(nodes, data.draw(st.integers(0, 5)))
            parts.append(pair.texts.part(name, prefix, tree, pair.texts.draw(nodes)))
        pair.step(parts)


def test_a_full_bucket_at_the_contexts_end() -> None:
    """16 whole trees, one of them where the context ends: no room is missing anywhere."""
    pair = Pair(page_size=1)
    for name in range(16):
        pair.texts.add(name, 0)
    prefixes = [pair.plain.context - NODES] + [2] * 15
    trees = [tree_of(NODES, name) for name in range(16)]
    parts = [pair.texts.part(n, prefixes[n], trees[n], pair.texts.draw(NODES)) for n in range(16)]
    pair.step(parts)
    (step,) = pair.buckets.steps.values()
    assert step.inputs.tree_mask.shape == (16 * NODES, 1)
    assert step.inputs.page_table.shape == (16, pair.plain.context + NODES)


def test_buffers_stay_and_are_written_in_place() -> None:
    pair = Pair()
    pair.texts.add(0, 0)
    tree = DraftTree((-1, 0, 0, 1))
    pair.step([pair.texts.part(0, 5, tree, [1, 2, 3, 4])])
    step = pair.buckets.steps[1, NODES]
    names = (
        "tokens", "depths", "slots", "tree_mask", "prefix_lens", "node_offsets", "page_table"
    )  # fmt: skip
    before = [getattr(step.inputs, name).data_ptr() for name in names]
    assert step.inputs.depths.tolist() == [5, 6, 6, 7] + [0] * 5
    pair.step([pair.texts.part(0, 50, tree, [1, 2, 3, 4])])
    assert pair.buckets.steps[1, NODES] is step
    assert [getattr(step.inputs, name).data_ptr() for name in names] == before
    assert step.inputs.depths.tolist() == [50, 51, 51, 52] + [0] * 5
    assert all(pointer % 128 == before[0] % 128 for pointer in before[:-1])


def test_padding_owns_nothing() -> None:
    """After a larger step: no row, no mask bit, no prefix, and the scratch slot to write to."""
    shape = Shape(4, 4 * NODES, NODES, 100, every=True)
    inputs = Inputs(shape, page_size=2, scratch_slot=77, device=CPU)
    table = np.arange(20, dtype=np.int32)
    whole = Part([9] * NODES, DraftTree.chain(NODES), table, 10)
    inputs.load([whole] * 4)
    assert (inputs.tree_mask != 0).all()
    inputs.load([Part([5, 6], DraftTree((-1, 0)), table, 3)])
    assert inputs.node_offsets.tolist() == [0, 2, 2, 2, 2]
    assert inputs.prefix_lens.tolist() == [3, 0, 0, 0]
    assert inputs.tree_mask[:, 0].tolist() == [1, 3] + [0] * (4 * NODES - 2)
    assert inputs.tokens.tolist() == [5, 6] + [0] * (4 * NODES - 2)
    assert inputs.slots.tolist() == [3, 4] + [77] * (4 * NODES - 2)
    assert torch.equal(inputs.node_offsets_host, inputs.node_offsets)
    assert torch.equal(inputs.prefix_lens_host, inputs.prefix_lens)


def test_buckets() -> None:
    pair = Pair()
    root, tree = DraftTree.chain(1), DraftTree.chain(NODES)
    table = np.arange(10, dtype=np.int32)

    def parts(*trees: DraftTree) -> list[Part]:
        return [Part([0] * len(t), t, table, 0) for t in trees]

    bucket = pair.buckets.bucket
    assert bucket(parts(root)) == (1, 1)
    assert bucket(parts(root, root, root)) == (4, 1)
    assert bucket(parts(root, DraftTree.chain(2))) == (2, NODES)
    assert bucket(parts(*[tree] * 16)) == (16, NODES)
    assert bucket(parts(*[tree] * 17)) is None
    assert bucket(parts(DraftTree.chain(NODES + 1))) is None
    with torch.no_grad():
        pair.buckets.warm()
    assert len(pair.buckets.steps) == 10
    close(pair.padded.machine.pool[:, :-1], pair.plain.machine.pool[:, :-1])


def test_prepare_comes_before_each_run() -> None:
    """With the host's copies of just that step."""
    seen = []
    machine = runner().machine
    kernel = load("torch")
    kernel.prepare = lambda batch, plan: seen.append((batch.prefix_list, batch.offset_list))
    buckets = Buckets(replace(machine, kernel=kernel), NODES, 100, captured=False)
    table = np.arange(20, dtype=np.int32)
    for prefix in (3, 8):
        part = Part([0] * 3, DraftTree.chain(3), table, prefix)
        with torch.no_grad():
            buckets.forward([part])
    assert seen == [([3], [0, 3]), ([8], [0, 3])]


def test_why_there_are_no_graphs() -> None:
    assert "need a GPU, the model is on cpu" in why_no_graphs(runner().machine)
