"""`LocalRunner` against plain causal attention on the same model, and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.engine.runners import (
    CPU,
    DENSE,
    MIXED,
    Texts,
    close,
    model,
    runner,
    truth,
    truth_of_tree,
)
from tests.engine.runners import one_thread as one_thread
from verify_attn.engine import memory
from verify_attn.engine.memory import row_bytes, tokens_that_fit
from verify_attn.engine.model import Model
from verify_attn.engine.runner import LocalRunner, RunnerError
from verify_attn.engine.step import Moves, Part
from verify_attn.engine.timing import attention_time, pass_time
from verify_attn.engine.weights import random_weights
from verify_attn.kernels.base import Capabilities, FunctionKernel
from verify_attn.kernels.registry import load
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.tree import DraftTree

TREE = DraftTree((-1, 0, 0, 1, 1, 2, 0, 3))


def kernel(**declared) -> FunctionKernel:
    return FunctionKernel("mine", torch_verify, Capabilities(**declared))


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("config", [DENSE, MIXED], ids=lambda c: c.name)
def test_chunks_give_the_texts_logits(config, page_size: int) -> None:
    run = runner(config, page_size=page_size)
    texts = Texts(run.pages, page_size, seed=1)
    texts.add(0, 90)
    texts.add(1, 41)
    expected = [truth(texts.tokens[name], config) for name in (0, 1)]
    at = 0
    for size in (41, 1, 17, 31):
        names = [n for n in (0, 1) if at < len(texts.tokens[n])]
        parts = [texts.chunk(n, at, at + size) for n in names]
        every = size == 17
        output = run.forward(parts, every=every)
        rows = 0
        for i, (name, part) in enumerate(zip(names, parts, strict=True)):
            end = rows + len(part.tree)
            logits, features = (e[at : at + size] for e in expected[name])
            close(output.features[rows:end], features)
            close(output.logits[rows:end] if every else output.logits[i : i + 1],
                  logits if every else logits[-1:])  # fmt: skip
            rows = end
        assert len(output.logits) == (rows if every else len(parts))
        at += size
    assert at == 90


@pytest.mark.parametrize("name", ["torch", "triton-split", "triton-unsplit"])
def test_a_nodes_logits_are_its_paths(name: str) -> None:
    """Unequal trees at unequal depths, one of them at the beginning of a text."""
    if name != "torch":
        from verify_attn.kernels.triton_common import INTERPRETED, interpreter_fault

        if not INTERPRETED or interpreter_fault():
            pytest.skip(interpreter_fault() or "Triton compiles for the GPU here")
    run = runner(kernel=load(name), page_size=3)
    texts = Texts(run.pages, 3, seed=2)
    for request, length in enumerate((70, 0, 33)):
        texts.add(request, length)
        if length:
            run.forward([texts.chunk(request, 0, length)], every=False)
    parts = [
        texts.part(0, 70, TREE, texts.draw(8)),
        texts.part(1, 0, DraftTree.comb(5), texts.draw(5)),
        texts.part(2, 33, DraftTree.chain(1), texts.draw(1)),
    ]
    output = run.forward(parts, every=True)
    for rows, part, request in ((slice(0, 8), parts[0], 0), (slice(8, 13), parts[1], 1),
                                (slice(13, 14), parts[2], 2)):  # fmt: skip
        logits, features = truth_of_tree(texts.tokens[request], part)
        close(output.logits[rows], logits)
        close(output.features[rows], features)


def test_a_tree_of_more_than_a_word() -> None:
    run = runner()
    texts = Texts(run.pages, 4, seed=3)
    texts.add(0, 20)
    run.forward([texts.chunk(0, 0, 20)], every=False)
    part = texts.part(0, 20, DraftTree.random(131, seed=1), texts.draw(131))
    output = run.forward([part], every=True)
    close(output.logits, truth_of_tree(texts.tokens[0], part)[0])


def test_only_the_nodes_rows_are_touched() -> None:
    """And no row that is not the request's is read: all others are NaN."""
    run = runner()
    run.machine.pool.fill_(torch.nan)
    texts = Texts(run.pages, 4, seed=4)
    texts.add(0, 30)
    assert torch.isfinite(run.forward([texts.chunk(0, 0, 30)], every=False).logits).all()
    part = texts.part(0, 30, TREE, texts.draw(8))
    assert torch.isfinite(run.forward([part], every=True).logits).all()
    own = torch.zeros(run.pages + 1, 4, dtype=torch.bool)
    own[part.table[np.arange(38) // 4], np.arange(38) % 4] = True
    assert (torch.isfinite(run.machine.pool).all(-1) == own).all()


def test_fill_hangs_on_seed_and_length_alone() -> None:
    run = runner(pages=150)
    rng = np.random.default_rng(0)
    one, two = (rng.permutation(150).astype(np.int32) for _ in range(2))

    def rows(table: np.ndarray, tokens: int) -> torch.Tensor:
        position = np.arange(tokens)
        return run.machine.pool[:, table[position // 4], position % 4].clone()

    run.fill(one, 50, seed=7)
    first = rows(one, 50)
    assert not run.machine.pool[:, one[13:]].any()
    assert not run.machine.pool[:, one[12], 2:].any()
    run.fill(two, 50, seed=7)
    assert torch.equal(rows(two, 50), first)
    run.fill(two, 50, seed=8)
    assert not torch.equal(rows(two, 50), first)
    assert 0.9 < first.std() < 1.1
    assert len({float(layer.sum()) for layer in first}) == DENSE.layers  # each its own
    texts = Texts(150, 4, seed=1)
    part = Part(texts.draw(8), TREE, two, 50)
    assert torch.isfinite(run.forward([part], every=True).logits).all()


def test_fill_is_scaled_as_the_layers_rows_are() -> None:
    weights = random_weights(DENSE, 5, CPU, torch.float32)
    weights["model.layers.1.self_attn.kv_a_layernorm.weight"].fill_(3.0)
    run = LocalRunner(
        Model(DENSE, weights), pages=400, page_size=1, kernel=load("torch"), graphs=False
    )
    run.fill(np.arange(400, dtype=np.int32), 400, seed=1)
    latent, rope = run.machine.pool[:, :400, 0].split([24, 8], dim=-1)
    assert latent.std(dim=(1, 2)).tolist() == pytest.approx([1, 3, 1], rel=0.1)
    assert rope.std(dim=(1, 2)).tolist() == pytest.approx([1, 1, 1], rel=0.1)


def test_free_memory_is_this_machines() -> None:
    assert memory.GIB // 16 < memory.free_bytes(CPU) < 100_000 * memory.GIB


def test_move_copies_rows_in_all_layers() -> None:
    run = runner()
    run.machine.pool.normal_()
    before = run.machine.pool.clone().flatten(1, 2)
    # In order: slot 9 gets what 5 had before 5 is written.
    run.move(Moves(np.array([5, 7]), np.array([9, 5])))
    after = run.machine.pool.flatten(1, 2)
    assert torch.equal(after[:, 9], before[:, 5])
    assert torch.equal(after[:, 5], before[:, 7])
    run.move(Moves(np.array([], dtype=np.int64), np.array([], dtype=np.int64)))


def test_a_growing_prefix_keeps_its_plan() -> None:
    plans = []

    class Counting(FunctionKernel):
        def plan(self, batch) -> None:
            plans.append(batch.max_prefix_len)

    counting = Counting("mine", torch_verify, Capabilities())
    run = runner(kernel=counting)
    texts = Texts(run.pages, 4, seed=1)
    texts.add(0, 0)
    del plans[:]
    for prefix in range(250, 262):
        run.forward([texts.part(0, prefix, TREE, texts.draw(8))], every=True)
    assert plans == [256, run.context]
    assert run.context == 400


def test_times() -> None:
    run = runner()
    texts = Texts(run.pages, 4, seed=1)
    texts.add(0, 30)
    run.forward([texts.chunk(0, 0, 30)], every=False)
    before = run.machine.pool.clone()
    parts = [texts.part(0, 30, TREE, texts.draw(8))]
    assert attention_time(run, parts, 2) > 0
    assert torch.equal(run.machine.pool, before)
    assert pass_time(run, parts, 2) > 0
    with pytest.raises(ValueError, match="repeats is 0"):
        pass_time(run, parts, 0)


@pytest.mark.parametrize(
    ("declared", "options", "message"),
    [
        ({"dtypes": (torch.float16,)}, {}, "declares dtypes float16"),
        ({"page_sizes": (64,)}, {}, "declares page sizes .64,., the pool has 4"),
        ({"max_nodes": 8}, {"max_nodes": 9}, "declares max_nodes 8, a request has up to 9"),
        ({"architectures": ((9, 0),)}, {}, "needs a GPU"),
        ({"tree_mask": False}, {}, "chains only"),
        ({"split_pool": True}, {}, "stored apart"),
    ],
)
def test_kernels_that_do_not_fit(declared: dict, options: dict, message: str) -> None:
    with pytest.raises(RunnerError, match=rf"kernel mine .*{message}.*that can: torch"):
        runner(kernel=kernel(**declared), **options)


def test_kernels_that_just_fit() -> None:
    runner(kernel=kernel(max_nodes=8), max_nodes=8)
    runner(kernel=kernel(tree_mask=False), trees=False)


def test_a_pool_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 4 * row_bytes(DENSE, torch.float32)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 11 * page + page - 1)
    cpu = torch.device("cpu")
    assert tokens_that_fit(DENSE, torch.float32, cpu, 4, reserve_bytes=0) == 40
    assert tokens_that_fit(DENSE, torch.float32, cpu, 4, reserve_bytes=3 * page) == 28
    assert tokens_that_fit(DENSE, torch.float32, cpu, 4) == 0  # the default keeps a GiB
    assert runner(pages=10, reserve_bytes=0).pages == 10
    with pytest.raises(RunnerError, match=r"44 tokens of KV take .* cpu; 40 tokens fit"):
        runner(pages=11, reserve_bytes=0)


def test_a_pool_beyond_this_machine() -> None:
    with pytest.raises(RunnerError, match=r"[1-9]\d+ tokens fit: ask for at most that many"):
        runner(pages=10**12)


def test_bad_options() -> None:
    for options, message in (
        ({"pages": 0}, "pages is 0"),
        ({"page_size": -1, "pages": 1}, "page_size -1"),
        ({"max_nodes": 2000}, "max_nodes is 2000"),
        ({"graphs": True}, "tree_nodes is None"),
        ({"graphs": True, "tree_nodes": 9, "max_nodes": 8}, "tree_nodes is 9"),
    ):
        with pytest.raises(RunnerError, match=message):
            runner(**options)
    with pytest.raises(RunnerError, match=r"taps has 3; layers are 0..2"):
        LocalRunner(model(), pages=1, page_size=1, kernel=load("torch"), taps=(1, 3), graphs=False)


def test_the_mode_says_why_it_is_eager() -> None:
    assert runner().mode == "eager: graphs are off"
    there = runner(graphs=True, tree_nodes=8).mode
    assert re.match("eager: CUDA graphs need a GPU", there)


def test_bad_parts_are_refused_before_anything_is_written() -> None:
    run = runner(max_nodes=8)
    table = np.arange(run.pages, dtype=np.int32)
    good = Part([1], DraftTree.chain(1), table, 5)
    wrong = {
        "there are 0 parts": [],
        "there are 17 parts": [good] * 17,
        "part 1 has 2 tokens for 1 nodes": [good, Part([1, 2], DraftTree.chain(1), table, 5)],
        "part 1 has 9 nodes; this runner takes up to 8": [
            good, Part([1] * 9, DraftTree.chain(9), table, 5)
        ],
        r"positions 399..400; the context has 0..399": [
            good, Part([1, 1], DraftTree.chain(2), table, 399)
        ],
        "positions -1": [good, Part([1], DraftTree.chain(1), table, -1)],
        r"tokens 97..97; the vocabulary has 0..96": [
            good, Part([97], DraftTree.chain(1), table, 5)
        ],
        "the table has 1 pages, 2 are needed": [good, Part([1], DraftTree.chain(1), table[:1], 4)],
        "pages 0..150; the pool has 0..149": [
            good, Part([1], DraftTree.chain(1), np.array([0, 150], dtype=np.int32), 4)
        ],
    }  # fmt: skip
    for message, parts in wrong.items():
        with pytest.raises(RunnerError, match=message):
            run.forward(parts, every=True)
    with pytest.raises(RunnerError, match="tokens is 401"):
        run.fill(table, 401, 0)
    with pytest.raises(RunnerError, match="1 pages, 2 are needed"):
        run.fill(table[:1], 5, 0)
    assert not run.machine.pool.any()
