"""Moving rows: what one copy after the other gives, however the moves depend on each other."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.defrag import plan_compaction
from verify_attn.engine import rows as rows_module
from verify_attn.engine.rows import independent_lists, move_rows, rows_of, stretches
from verify_attn.engine.step import Moves
from verify_attn.kernels.registry import choose_triton_mode

choose_triton_mode()  # Triton reads its mode when the module is imported
rows_triton = importlib.import_module("verify_attn.engine.rows_triton")

LAYERS, PAGES, PAGE_SIZE = 2, 4, 3
SLOTS = PAGES * PAGE_SIZE
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where the kernel runs, if it does
# Where there is a GPU, on the GPU: `pytest -m gpu` is to run them too.
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []
runs_the_kernel = pytest.mark.skipif(
    DEVICE == "cpu" and not rows_triton.triton.knobs.runtime.interpret,
    reason="Triton is told to compile, and there is no GPU",
)


def make(pairs: list[tuple[int, int]]) -> Moves:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Moves(array[:, 0].copy(), array[:, 1].copy())


def filled(dtype: torch.dtype = torch.int16, width: int = 5) -> torch.Tensor:
    elements = LAYERS * SLOTS * width
    return torch.arange(elements).to(dtype).view(LAYERS, PAGES, PAGE_SIZE, width)


def one_by_one(pool: torch.Tensor, moves: Moves) -> torch.Tensor:
    """The definition."""
    flat = pool.clone().view(pool.shape[0], -1, pool.shape[3])
    for source, target in zip(moves.sources.tolist(), moves.targets.tolist(), strict=True):
        flat[:, target] = flat[:, source].clone()
    return flat.view(pool.shape)


# Few slots and many moves: chains, cycles, slots read after they were written and written twice.
any_moves = st.lists(
    st.tuples(st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1)), max_size=20
).map(make)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(any_moves, st.integers(1, 6))
def test_plain_moves_are_one_after_the_other(moves: Moves, most: int) -> None:
    pool = filled()
    expected = one_by_one(pool, moves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "STRETCH", most)
        move_rows(pool, moves)
    assert torch.equal(pool, expected)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(any_moves, st.integers(1, 4))
def test_lists_share_no_slot_and_keep_their_order(moves: Moves, most: int) -> None:
    if not len(moves):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "SHORT", 0)
        order, starts = independent_lists(moves, most)
    assert sorted(order.tolist()) == list(range(len(moves)))
    assert starts[0] == 0
    assert starts[-1] == len(moves)
    assert 1 <= len(starts) - 1 <= most
    seen: set[int] = set()
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        mine = order[first:end]
        assert mine.size
        assert (np.diff(mine) > 0).all()
        slots = {*moves.sources[mine].tolist(), *moves.targets[mine].tolist()}
        assert not slots & seen
        seen |= slots


@runs_the_kernel
@settings(max_examples=40, deadline=None, derandomize=True)
@given(any_moves, st.integers(1, 4))
def test_the_kernel_is_the_same(moves: Moves, most: int) -> None:
    if not len(moves):
        return
    pool = filled()
    expected = one_by_one(pool, moves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "SHORT", 0)
        patch.setattr(
            rows_triton, "independent_lists", lambda moves: independent_lists(moves, most)
        )
        pool = pool.to(DEVICE)
        rows_triton.launch(rows_of(pool), moves)
    assert torch.equal(pool.cpu(), expected)


@runs_the_kernel
def test_the_kernel_moves_wide_rows_and_leaves_the_rest() -> None:
    # Three tiles a row, the last one partial; a cycle of pages, parked on page 3.
    pool = filled(torch.int64, 2 * rows_triton.BLOCK + 7)
    pages = [(0, 3), (1, 0), (2, 1), (3, 2)]
    moves = make([(PAGE_SIZE * a + r, PAGE_SIZE * b + r) for a, b in pages for r in range(3)])
    expected = pool[:, [1, 2, 0, 0]]
    pool = pool.to(DEVICE)
    rows_triton.launch(rows_of(pool), moves)
    assert torch.equal(pool.cpu(), expected)


@pytest.mark.parametrize(
    ("dtype", "width", "word"),
    [
        (torch.bfloat16, 576, torch.int64),
        (torch.float32, 3, torch.int32),
        (torch.float16, 3, torch.int16),
        (torch.float8_e4m3fn, 5, torch.uint8),
        (torch.float64, 1, torch.int64),
    ],
)
def test_any_dtype_is_moved_bit_for_bit(dtype: torch.dtype, width: int, word: torch.dtype) -> None:
    raw = torch.randint(0, 256, (LAYERS, PAGES, PAGE_SIZE, width * dtype.itemsize)).byte()
    pool = raw.clone().view(dtype)  # some are NaN, of any payload
    assert rows_of(pool).dtype == word
    moves = make([(3, 7), (7, 1), (1, 3)])
    move_rows(pool, moves)
    assert torch.equal(pool.view(torch.uint8), one_by_one(raw, moves))


def test_a_pool_that_begins_inside_its_storage() -> None:
    whole = torch.arange(1 + LAYERS * SLOTS * 4, dtype=torch.int16)
    pool = whole[1:].view(LAYERS, PAGES, PAGE_SIZE, 4)
    assert rows_of(pool).dtype == torch.int16  # 8 bytes a row, but none at a multiple of 4
    expected = one_by_one(pool, make([(0, 5)]))
    move_rows(pool, make([(0, 5)]))
    assert torch.equal(pool, expected)


def test_a_whole_compaction_is_a_few_stretches_and_even_lists() -> None:
    rng = np.random.default_rng(0)
    table = rng.permutation(5000)[:4500]
    copies = plan_compaction({0: table}, 5000)
    moves = make([(c.source, c.target) for c in copies])
    assert len(list(stretches(moves))) <= 2 + len(moves) // rows_module.STRETCH + 3
    _, starts = independent_lists(moves, 64)
    lengths = np.diff(starts)
    assert len(lengths) == 64
    assert lengths.max() <= 2 * lengths.mean()


def test_what_cannot_be_moved() -> None:
    pool = filled()
    with pytest.raises(ValueError, match=r"move 1 has target slot 12; the pool has slots 0\.\.11"):
        move_rows(pool, make([(0, 1), (1, SLOTS)]))
    with pytest.raises(ValueError, match="move 0 has source slot -1"):
        move_rows(pool, make([(-1, 1)]))
    with pytest.raises(ValueError, match="2 sources, 1 targets"):
        move_rows(pool, Moves(np.array([0, 1]), np.array([2])))
    with pytest.raises(ValueError, match="contiguous"):
        move_rows(pool.transpose(0, 1), make([(0, 1)]))
    assert torch.equal(pool, filled())


def test_no_move_is_none() -> None:
    pool = filled()
    move_rows(pool, make([]))
    assert torch.equal(pool, filled())
