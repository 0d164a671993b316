"""Every rule of a `VerifyBatch`, broken: the message names field, index, value and rule."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from verify_attn.conformance.strategies import CPU, cases
from verify_attn.generate import Case, build
from verify_attn.kernels.base import Capabilities
from verify_attn.problem import VerifyBatch
from verify_attn.validation import BatchError

REQUESTS = ((7, "[-1,0,0,1]"), (0, "padding:2"), (9, "chain:3"))
PAGE_SIZE = 4
NODES, HEADS, WIDE = 9, 4, 48


def good(**case: Any) -> VerifyBatch:
    """Three requests on pages of 4: 1-3, 4, 5-7; nodes 0-3, 4-5, 6-8; tables 3 pages wide."""
    return build(Case(**({"requests": REQUESTS, "page_size": PAGE_SIZE} | case)))


def with_entry(batch: VerifyBatch, field: str, index: Any, value: int) -> VerifyBatch:
    """The batch with one entry of one tensor changed, host copy too."""
    fields = {}
    for name in (field, f"{field}_host"):
        tensor = getattr(batch, name, None)
        if tensor is not None:
            fields[name] = tensor.clone()
            fields[name][index] = value
    return batch.with_fields(**fields)


def refused(batch: VerifyBatch, message: str) -> None:
    with pytest.raises(BatchError, match=re.escape(message)):
        batch.validate()


def test_the_good_batch() -> None:
    batch = good()
    batch.validate()
    assert batch.page_table.tolist()[0] == [1, 2, 3]
    assert batch.page_table.tolist()[2] == [5, 6, 7]
    assert batch.page_table[1, 1] > 10**9  # unused entries are not looked at
    assert batch.node_offsets.tolist() == [0, 4, 6, 9]
    assert batch.tree_mask.flatten().tolist() == [1, 3, 5, 11, 0, 0, 1, 3, 7]
    assert (batch.rows, batch.max_prefix_len, batch.max_nodes) == (NODES, 9, 4)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(CPU, Capabilities()))
def test_generated_cases(case: Case) -> None:
    build(case).validate()
    assert Case.from_json(case.to_json()) == case
    assert "\n" not in case.to_json()


BF16, F32, I64, I32 = torch.bfloat16, torch.float32, torch.int64, torch.int32
FP8 = torch.float8_e4m3fn


class TestShapes:
    @pytest.mark.parametrize(
        ("field", "shape", "message"),
        [
            ("q", (NODES, 3, WIDE), "q.shape is (9, 3, 48); it must be [N, 4, 48]"),
            ("q", (NODES, HEADS, 47), "q.shape is (9, 4, 47); it must be [N, 4, 48]"),
            ("q", (NODES, WIDE), "q.shape is (9, 48); it must be [N, 4, 48]"),
            ("kv_pool", (9, PAGE_SIZE, 32), "kv_pool.shape is (9, 4, 32); it must be [pages,"),
            ("kv_pool", (9, WIDE), "kv_pool.shape is (9, 48); it must be [pages, page_size, 48]"),
            ("kv_pool", (0, 4, WIDE), "kv_pool.shape is (0, 4, 48); it must be [pages, page_size"),
            ("kv_pool", (9, 0, WIDE), "kv_pool.shape is (9, 0, 48)"),
            ("node_kv", (NODES - 1, WIDE), "node_kv.shape is (8, 48); it must be (9, 48)"),
            ("node_kv", (NODES, 32), "node_kv.shape is (9, 32); it must be (9, 48)"),
            ("prefix_lens", (), "prefix_lens.shape is (); [R] with R >= 1"),
            ("prefix_lens", (0,), "prefix_lens.shape is (0,); [R] with R >= 1"),
            ("prefix_lens", (3, 1), "prefix_lens.shape is (3, 1); it must be (3,)"),
            ("page_table", (2, 3), "page_table.shape is (2, 3); it must be (3, None)"),
            ("page_table", (9,), "page_table.shape is (9,); it must be (3, None)"),
            ("node_offsets", (3,), "node_offsets.shape is (3,); it must be (4,)"),
            ("tree_mask", (NODES - 1, 1), "tree_mask.shape is (8, 1); it must be (9, None)"),
            ("tree_mask", (NODES,), "tree_mask.shape is (9,); it must be (9, None)"),
            ("tree_mask", (NODES, 0), "tree_mask.shape is (9, 0); max_nodes 4 needs 1 words"),
            ("prefix_lens_host", (4,), "prefix_lens_host.shape is (4,); it must be (3,)"),
            ("node_offsets_host", (3,), "node_offsets_host.shape is (3,); it must be (4,)"),
        ],
    )
    def test_shape(self, field: str, shape: tuple[int, ...], message: str) -> None:
        batch = good(node_kv=field == "node_kv")
        dtype = getattr(batch, field).dtype
        refused(batch.with_fields(**{field: torch.zeros(shape, dtype=dtype)}), message)

    @pytest.mark.parametrize(
        ("field", "dtype", "message"),
        [
            ("q", torch.int32, "q.dtype is torch.int32; it must be one of"),
            ("kv_pool", BF16, "kv_pool.dtype is torch.bfloat16; it must be q's, or an fp8 type"),
            ("node_kv", BF16, "node_kv.dtype is torch.bfloat16; it must be q's, torch.float32"),
            ("page_table", I64, "page_table.dtype is torch.int64; it must be torch.int32"),
            ("prefix_lens", I64, "prefix_lens.dtype is torch.int64; it must be torch.int32"),
            ("node_offsets", F32, "node_offsets.dtype is torch.float32; it must be torch.int32"),
            ("tree_mask", I32, "tree_mask.dtype is torch.int32; it must be torch.int64"),
            ("prefix_lens_host", I64, "prefix_lens_host.dtype is torch.int64; it must be"),
            ("node_offsets_host", I64, "node_offsets_host.dtype is torch.int64; it must be"),
        ],
    )
    def test_dtype(self, field: str, dtype: torch.dtype, message: str) -> None:
        batch = good(node_kv=field == "node_kv")
        refused(batch.with_fields(**{field: getattr(batch, field).to(dtype)}), message)

    @pytest.mark.parametrize(
        ("field", "rule"),
        [
            ("kv_pool", "all on one device"),
            ("node_kv", "all on one device"),
            ("page_table", "it must be cpu"),
            ("prefix_lens", "it must be cpu"),
            ("node_offsets", "it must be cpu"),
            ("tree_mask", "it must be cpu"),
            ("prefix_lens_host", "it must be cpu"),
            ("node_offsets_host", "it must be cpu"),
        ],
    )
    def test_device(self, field: str, rule: str) -> None:
        batch = good(node_kv=field == "node_kv")
        elsewhere = getattr(batch, field).to("meta")
        refused(batch.with_fields(**{field: elsewhere}), f"{field}.device is meta; {rule}")

    @pytest.mark.parametrize(
        "field", ["q", "kv_pool", "node_kv", "page_table", "prefix_lens", "node_offsets"]
    )
    def test_stride(self, field: str) -> None:
        batch = good(node_kv=field == "node_kv")
        every_other = torch.stack([getattr(batch, field)] * 2, dim=-1)[..., 0]
        refused(
            batch.with_fields(**{field: every_other}),
            f"{field}.stride is {every_other.stride()}; the last must be 1",
        )

    def test_stride_of_the_mask(self) -> None:
        batch = good(requests=((1, "chain:65"),))
        columns = batch.tree_mask.t().contiguous().t()
        refused(batch.with_fields(tree_mask=columns), "tree_mask.stride is (1, 65); the last must")
        one_word = good().tree_mask.t().contiguous().t()  # a dimension of 1 is never stepped
        good().with_fields(tree_mask=one_word.as_strided((NODES, 1), (1, 5))).validate()


class TestNumbers:
    @pytest.mark.parametrize("field", ["kv_scale", "softmax_scale"])
    @pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
    def test_scales(self, field: str, value: float) -> None:
        refused(
            good().with_fields(**{field: value}),
            f"{field} is {value}; it must be positive and finite",
        )

    def test_kv_scale_needs_fp8(self) -> None:
        refused(good().with_fields(kv_scale=0.5), "kv_scale is 0.5; it must be 1.0: the pool is")
        fp8 = good().kv_pool.to(FP8)
        good().with_fields(kv_scale=0.5, kv_pool=fp8).validate()

    def test_negative_length(self) -> None:
        refused(
            with_entry(good(), "prefix_lens", 1, -3),
            "prefix_lens[1] is -3; a length must not be negative",
        )

    @pytest.mark.parametrize(
        ("index", "value", "message"),
        [
            (0, 1, "node_offsets[0] is 1; it must be 0"),
            (2, 3, "node_offsets[2] is 3; offsets must not fall"),
            (3, 10, "node_offsets[3] is 10; it must be at most q's 9 rows"),
        ],
    )
    def test_node_offsets(self, index: int, value: int, message: str) -> None:
        refused(with_entry(good(), "node_offsets", index, value), message)

    @pytest.mark.parametrize(
        ("field", "index", "message"),
        [
            ("prefix_lens_host", 2, "prefix_lens_host[2] is 10; it must equal the device's copy"),
            ("node_offsets_host", 1, "node_offsets_host[1] is 5; it must equal the device's"),
        ],
    )
    def test_host_copies(self, field: str, index: int, message: str) -> None:
        batch = good()
        other = getattr(batch, field).clone()
        other[index] += 1
        refused(batch.with_fields(**{field: other}), message)
        batch.with_fields(**{field: None}).validate()

    def test_bounds(self) -> None:
        refused(good().with_fields(max_prefix_len=8), "max_prefix_len is 8; prefix_lens holds 9")
        refused(good().with_fields(max_nodes=3), "max_nodes is 3; a request has 4 nodes")
        refused(
            good().with_fields(max_nodes=65),
            "tree_mask.shape is (9, 1); max_nodes 65 needs 2 words a row",
        )
        good().with_fields(max_prefix_len=99, max_nodes=64).validate()


class TestMask:
    """Request 0 (rows 0-3) has the tree [-1, 0, 0, 1], request 2 (rows 6-8) a chain."""

    @pytest.mark.parametrize(
        ("row", "bits", "message"),
        [
            (3, 0b11011, "tree_mask[3] (request 0, node 3) sets bit 4; the request has 4 nodes: "
             "bits at or above the node count must be 0"),
            (8, 0b1111, "tree_mask[8] (request 2, node 2) sets bit 3; the request has 3 nodes"),
            (3, -(2**63), "tree_mask[3] (request 0, node 3) sets bit 63; the request has 4 nodes"),
            (1, 0b1011, "tree_mask[1] (request 0, node 1) sets bit 3; a parent's index must be "
             "below its child's; a node sees itself and its ancestors: put the nodes in "
             "topological order"),
            (3, 0b0011, "tree_mask[3] (request 0, node 3) sets bit 1 but not 3; a node sees"),
            (2, 0b100, "tree_mask[2] (request 0, node 2) shows node 2 alone; only node 0 is a"),
            (3, 0b1111, "tree_mask[3] (request 0, node 3) shows nodes [0, 1, 2, 3]; its parent 2 "
             "shows [0, 2]: a node sees its parent's nodes and itself, no others"),
            (3, 0b1010, "tree_mask[3] (request 0, node 3) shows nodes [1, 3]; its parent 1 shows "
             "[0, 1]"),
            (7, 0b0000, "tree_mask[8] (request 2, node 2) shows nodes [0, 1, 2]; its parent 1 "
             "shows []"),
        ],
    )  # fmt: skip
    def test_rows(self, row: int, bits: int, message: str) -> None:
        refused(with_entry(good(), "tree_mask", (row, 0), bits), message)

    def test_bits_in_words_past_the_nodes(self) -> None:
        wide = torch.cat([good().tree_mask, torch.zeros(NODES, 1, dtype=torch.int64)], dim=1)
        batch = good().with_fields(tree_mask=wide)
        batch.validate()
        refused(
            with_entry(batch, "tree_mask", (0, 1), 2),
            "tree_mask[0] (request 0, node 0) sets bit 65; the request has 4 nodes",
        )

    def test_any_bits_past_the_last_request(self) -> None:
        batch = good(tail_rows=2)
        assert batch.tree_mask[NODES:].tolist() == [[-1], [-1]]
        batch.validate()


class TestPages:
    @pytest.mark.parametrize(
        ("index", "value", "message"),
        [
            ((0, 1), -1, "page_table[0][1] is -1; the pool has pages 0.."),
            ((2, 2), 11, "page_table[2][2] is 11; the pool has pages 0..10"),
            ((0, 2), 1, "page_table[0][2] is 1, which the request uses already; a slot may hold"),
            ((2, 0), 2, "page_table[2][0] is 2, a page of request 0 too; a shared page must lie "
             "wholly inside both prefixes"),  # page 2: tokens 4-7, the prefix has 7
            ((2, 2), 1, "page_table[2][2] is 1, a page of request 0 too"),  # 9 tokens end in it
            ((1, 0), 1, "page_table[1][0] is 1, a page of request 0 too"),  # nodes
        ],
    )  # fmt: skip
    def test_entries(self, index: tuple[int, int], value: int, message: str) -> None:
        refused(with_entry(good(), "page_table", index, value), message)

    def test_a_page_inside_both_prefixes_may_be_shared(self) -> None:
        with_entry(good(), "page_table", (2, 0), 1).validate()
        with_entry(good(), "page_table", (2, 1), 1).validate()  # wherever it comes

    def test_sharing_between_later_requests(self) -> None:
        """Page 1 is inside the prefixes of 0 and 1, but holds the last token of 2 and its node."""
        batch = good(requests=((4, "chain:1"), (4, "chain:1"), (3, "chain:1")))
        batch = with_entry(batch, "page_table", (1, 0), 1)
        batch.validate()
        refused(
            with_entry(batch, "page_table", (2, 0), 1),
            "page_table[2][0] is 1, a page of request 1 too",
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda b: with_entry(b, "prefix_lens", 2, 10).with_fields(max_prefix_len=10),
             "prefix_lens[2] + nodes is 13 tokens, 4 pages of 4; page_table has room for 3"),
            (lambda b: b.with_fields(page_table=b.page_table[:, :2].contiguous()),
             "prefix_lens[0] + nodes is 11 tokens, 3 pages of 4; page_table has room for 2: "
             "lengths must fit the page table"),
        ],
    )  # fmt: skip
    def test_room(self, change: Callable[[VerifyBatch], VerifyBatch], message: str) -> None:
        refused(change(good()), message)

    def test_nodes_outside_the_pool_need_no_room(self) -> None:
        batch = good(node_kv=True)
        assert batch.page_table.shape[1] == 3
        with_entry(batch, "prefix_lens", 0, 8).validate()  # a tree of 4 more would not fit
        refused(
            with_entry(batch, "prefix_lens", 0, 13).with_fields(max_prefix_len=13),
            "prefix_lens[0] + nodes is 13 tokens, 4 pages of 4",
        )
