"""Bytes and operations of a case, against counting them in the batch itself."""

from __future__ import annotations

import pytest

from verify_attn.generate import Case, build
from verify_attn.perf.roofline import Rates, flops_of_a_pair, limit, work_of

H200 = Rates(4800, 989.5, "data sheet")
CENTRE = Case(((31_952, "chain:32"),), geometry="kimi-k2.6-tp8", dtype="bfloat16")


def counted(case: Case) -> tuple[int, int, int]:
    """(KV bytes, other bytes, operations) from the batch's own tensors."""
    batch = build(case)
    slots, pages, pairs = set(), 0, 0
    for r in range(batch.requests):
        stored = batch.stored_tokens(r)
        pages += -(-stored // batch.page_size)
        if batch.node_kv is not None:  # rows of their own, outside the pool
            slots |= {("node", r, n) for n in range(batch.nodes(r))}
        for token in range(stored):
            page = int(batch.page_table[r, token // batch.page_size])
            slots.add((page, token % batch.page_size))
        first, last = batch.offset_list[r], batch.offset_list[r + 1]
        bits = batch.tree_mask[first:last]
        seen = sum(bin(int(word) & (2**64 - 1)).count("1") for word in bits.flatten())
        pairs += batch.prefix_list[r] * (last - first) + seen
    out, lse = batch.outputs()
    nodes = batch.offset_list[-1]
    around = sum(t[:nodes].numel() * t.element_size() for t in (batch.q, out, lse, batch.tree_mask))
    geometry = batch.geometry
    operations = 2 * geometry.heads * pairs * (2 * geometry.latent_dim + geometry.rope_dim)
    row = batch.kv_pool.shape[-1] * batch.kv_pool.element_size()
    return len(slots) * row, around + 4 * pages, operations


@pytest.mark.parametrize(
    "case",
    [
        Case(((40, "random:9:1"),)),
        Case(((40, "chain:3"), (7, "star:5"), (0, "comb:4")), page_size=4),
        Case(((64, "ddtree:16:1"), (80, "chain:1")), page_size=8, shared_pages=3),
        Case(((64, "chain:2"), (3, "chain:1"), (17, "star:2")), page_size=4, shared_pages=9),
        Case(((20, "chain:70"),), dtype="float16"),
        Case(((20, "chain:5"), (9, "chain:2")), page_size=4, node_kv=True),
    ],
)
def test_it_is_what_the_batch_holds(case: Case):
    work = work_of(case)
    kv, other, operations = counted(case)
    assert work.kv_bytes == kv
    assert work.flops == operations
    assert work.other_bytes == other


def test_the_known_case():
    """Kimi K2.6 on 8 GPUs: 1,152 bytes a row, 15.1 operations a byte and node."""
    work = work_of(CENTRE)
    assert work.kv_bytes == (31_952 + 32) * 1152
    assert work.flops / work.kv_bytes / 32 == pytest.approx(15.1, rel=0.01)
    assert flops_of_a_pair(CENTRE.attention_geometry) == 2 * 8 * (576 + 512)


@pytest.mark.parametrize(("nodes", "binds"), [(8, "memory"), (12, "memory"), (16, "arithmetic")])
def test_which_limit_binds(nodes: int, binds: str):
    case = Case(((184_728, f"chain:{nodes}"),), geometry="kimi-k2.6-tp8", dtype="bfloat16")
    found = limit(work_of(case), H200)
    assert found.binds == binds
    assert found.seconds == max(found.memory_s, found.arithmetic_s)


def test_padding_rows_see_the_prefix_alone():
    alone = work_of(Case(((30, "chain:4"),)))
    padded = work_of(Case(((30, "chain:4+2"),)))
    one_row = flops_of_a_pair(Case(((1, "chain:1"),)).attention_geometry)
    assert padded.flops - alone.flops == 2 * 30 * one_row
    assert padded.kv_bytes == alone.kv_bytes  # nobody sees their own rows


@pytest.mark.parametrize("changes", [{}, {"page_size": 4, "dtype": "bfloat16"}])
def test_an_fp8_pool_is_half_the_bytes_or_less(changes: dict):
    case = Case(((40, "random:9:1"), (7, "chain:3")), kv_dtype="float8_e4m3fn").changed(**changes)
    kv, other, operations = counted(case)
    work = work_of(case)
    assert (work.kv_bytes, work.other_bytes, work.flops) == (kv, other, operations)
    assert (
        kv * case.changed(kv_dtype="").pool_dtype.itemsize
        == work_of(case.changed(kv_dtype="")).kv_bytes
    )


def test_rows_outside_an_fp8_pool_are_not_fp8():
    case = Case(((40, "chain:5"),), dtype="bfloat16", node_kv=True, kv_dtype="float8_e4m3fn")
    assert work_of(case).kv_bytes == 48 * (40 * 1 + 5 * 2)
