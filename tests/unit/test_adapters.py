"""Masks, indices and rows in other people's layouts: literal vectors, definitions, round trips."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.generate import Case, build
from verify_attn.kernels import adapters
from verify_attn.kernels.adapters import LayoutError
from verify_attn.kernels.base import declared
from verify_attn.problem import VerifyBatch
from verify_attn.reference import oracle, request_rows, visible_nodes
from verify_attn.tree import DraftTree, pack_words

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "tree_vectors.json").read_text())


def bits(rows: list[str]) -> list[bool]:
    """Rows such as ``110`` as one flat list."""
    return [bit == "1" for row in rows for bit in row]


def batch_of(prefix_lens: list[int], parents: list[list[int]], **case: object) -> VerifyBatch:
    requests = tuple((p, json.dumps(tree)) for p, tree in zip(prefix_lens, parents, strict=True))
    return build(Case(requests, geometry="tiny/1", **case))


@st.composite
def batches(draw: st.DrawFn) -> VerifyBatch:
    trees = st.one_of(
        st.builds("random:{}:{}".format, st.integers(1, 70), st.integers(0, 99)),
        st.builds("padding:{}".format, st.integers(1, 9)),
    )
    requests = draw(st.lists(st.tuples(st.integers(0, 40), trees), min_size=1, max_size=4))
    return build(
        Case(
            tuple(requests),
            geometry="tiny/1",
            page_size=draw(st.sampled_from([1, 3, 16])),
            layout=draw(st.sampled_from(["contiguous", "shuffled", "interleaved"])),
            pool=draw(st.sampled_from(["packed", "row-stride"])),
            tail_rows=draw(st.integers(0, 3)),
            node_kv=draw(st.booleans()),
            slack=draw(st.integers(0, 5)),
        )
    )


several = settings(max_examples=60, deadline=None)


class TestLiteralVectors:
    """Numbers out of other projects' tests."""

    @pytest.fixture(params=["eagle_tree", "ngram_tree"])
    def vector(self, request: pytest.FixtureRequest) -> dict:
        return VECTORS[request.param]

    @pytest.fixture
    def batch(self, vector: dict) -> VerifyBatch:
        trees = [DraftTree.from_links(*links) for links in self.links(vector)]
        return batch_of(vector["prefix_lens"], [list(tree.parents) for tree in trees])

    @staticmethod
    def links(vector: dict) -> list[tuple[list[int], list[int]]]:
        return list(zip(vector["next_token"], vector["next_sibling"], strict=True))

    def test_tree_only(self, vector: dict, batch: VerifyBatch) -> None:
        flat, indptr = adapters.tree_only_mask(batch)
        n = len(vector["next_token"][0])
        assert flat.tolist() == bits([row for rows in vector["mask_rows"] for row in rows])
        assert indptr.tolist() == [n * n * r for r in range(batch.requests + 1)]

    def test_full(self, vector: dict, batch: VerifyBatch) -> None:
        flat, indptr = adapters.full_mask(batch)
        want = [
            "1" * prefix_len + row
            for prefix_len, rows in zip(vector["prefix_lens"], vector["mask_rows"], strict=True)
            for row in rows
        ]
        assert flat.tolist() == bits(want)
        n = len(vector["next_token"][0])
        assert np.diff(indptr.tolist()).tolist() == [n * (p + n) for p in vector["prefix_lens"]]

    def test_packed_one_word_a_row(self, vector: dict, batch: VerifyBatch) -> None:
        rows = [row for rows in vector["mask_rows"] for row in rows]
        want = [int(row[::-1], 2) for row in rows]  # the first node is the least bit
        for width in (8, 16, 32, 64):
            packed = adapters.packed_mask(batch, width)
            assert packed.tolist() == [[word] for word in want]
            assert torch.equal(adapters.tree_mask_from_packed(packed[:, 0], width), batch.tree_mask)

    def test_links(self, vector: dict, batch: VerifyBatch) -> None:
        child, sibling = vector["next_token"], vector["next_sibling"]
        assert torch.equal(adapters.tree_mask_from_links(child, sibling), batch.tree_mask)
        given_tensors = torch.tensor(child), torch.tensor(sibling)
        assert torch.equal(adapters.tree_mask_from_links(*given_tensors), batch.tree_mask)

    def test_links_where_a_sibling_has_the_lower_index(self) -> None:
        vector = VECTORS["greedy_walk"]
        mask = adapters.tree_mask_from_links(vector["next_token"], vector["next_sibling"])
        first = ["100000", "110000", "111000", "100100", "100110", "100111"]
        second = ["100000", "110000", "111000", "111100", "100010", "100011"]
        assert mask.flatten().tolist() == [int(row[::-1], 2) for row in first + second]

    def test_packed_full(self) -> None:
        vector = VECTORS["packed_full_mask"]
        assert vector["depths"] == [[1, 2], [1, 1]]  # a chain and a star under their roots
        batch = batch_of(vector["prefix_lens"], [[-1, 0, 1], [-1, 0, 0]])
        flat, indptr = adapters.full_mask(batch)
        assert flat.tolist() == bits(["11100", "11110", "11111", "1100", "1110", "1101"])
        assert indptr.tolist() == [0, 15, 27]
        packed, offsets = adapters.packed_full_mask(batch)
        # 11100111 1011111. and 11001110 1101...., least bit first
        assert packed.tolist() == [0b11100111, 0b1111101, 0b01110011, 0b1011]
        assert packed.dtype == torch.uint8
        assert offsets.tolist() == [0, 2, 4]
        assert offsets.dtype == torch.int32

    def test_more_nodes_than_a_word_has_bits(self) -> None:
        batch = batch_of([1], [[-1, *range(32)]])  # a chain of 33
        assert adapters.packed_mask(batch, 32)[-1].tolist() == [-1, 1]
        assert adapters.packed_mask(batch, 8)[8].tolist() == [255, 1, 0, 0, 0]
        xqa = adapters.packed_mask(batch, 32).view(torch.uint16)
        assert xqa[16].tolist() == [65535, 1, 0, 0]


class TestRoundTrips:
    @several
    @given(batches())
    def test_masks(self, batch: VerifyBatch) -> None:
        total, words = batch.offset_list[-1], batch.tree_mask.shape[1]
        mask, offsets = batch.tree_mask[:total], batch.node_offsets
        full, indptr = adapters.full_mask(batch)
        assert torch.equal(
            adapters.tree_mask_from_full(full, batch.prefix_lens, offsets, words), mask
        )
        packed, byte_offsets = adapters.packed_full_mask(batch)
        unpacked = [
            np.unpackbits(packed.numpy()[start:], count=b - a, bitorder="little")
            for start, (a, b) in zip(byte_offsets.tolist(), pairwise(indptr.tolist()), strict=False)
        ]
        assert np.array_equal(np.concatenate(unpacked), full.numpy())
        assert len(packed) == byte_offsets[-1]
        tree, _ = adapters.tree_only_mask(batch)
        for flat in (tree, tree.to(torch.uint8)):
            assert torch.equal(adapters.tree_mask_from_tree_only(flat, offsets.tolist()), mask)

    @several
    @given(batches(), st.sampled_from([8, 16, 32, 64]))
    def test_packed_rows(self, batch: VerifyBatch, width: int) -> None:
        rows = adapters.packed_mask(batch, width)
        total = batch.offset_list[-1]
        assert rows.shape == (batch.rows, -(-batch.max_nodes // width))
        assert rows.is_contiguous()
        assert not rows[total:].any()
        back = adapters.tree_mask_from_packed(rows, width)
        assert torch.equal(back[:total], batch.tree_mask[:total])

    @several
    @given(st.lists(st.tuples(st.integers(1, 70), st.integers(0, 99)), min_size=1, max_size=3))
    def test_links(self, shapes: list[tuple[int, int]]) -> None:
        trees = [DraftTree.random(*shape) for shape in shapes]
        mask = adapters.tree_mask_from_links(*zip(*(tree.links for tree in trees), strict=True))
        want = [pack_words(tree.visible, mask.shape[1]) for tree in trees]
        assert np.array_equal(mask.numpy(), np.concatenate(want))


class TestDefinitions:
    @several
    @given(batches())
    def test_mask_of_each_request(self, batch: VerifyBatch) -> None:
        full, indptr = adapters.full_mask(batch)
        tree, tree_indptr = adapters.tree_only_mask(batch)
        for request, prefix_len in enumerate(batch.prefix_list):
            n = batch.nodes(request)
            block = full[indptr[request] : indptr[request + 1]].view(n, prefix_len + n)
            visible = visible_nodes(batch, request)
            assert block[:, :prefix_len].all()
            assert torch.equal(block[:, prefix_len:], visible)
            block = tree[tree_indptr[request] : tree_indptr[request + 1]]
            assert torch.equal(block.view(n, n), visible)

    @several
    @given(batches())
    def test_rows(self, batch: VerifyBatch) -> None:
        pool = adapters.slot_view(batch)
        indptr, indices = adapters.kv_indices(batch)
        assert indptr.dtype == torch.int32
        assert indices.dtype == torch.int64
        nodes = adapters.node_rows(batch)
        assert nodes.shape == (batch.offset_list[-1], batch.geometry.qk_dim)
        for request in range(batch.requests):
            prefix, tree = request_rows(batch, request, torch.float32, torch.device("cpu"))
            assert torch.equal(pool[indices[indptr[request] : indptr[request + 1]]], prefix)
            own = slice(batch.offset_list[request], batch.offset_list[request + 1])
            assert torch.equal(nodes[own], tree)
            if batch.node_kv is None:
                assert torch.equal(pool[adapters.node_slots(batch)[own]], tree)

    def test_node_rows_of_an_fp8_pool_are_real_rows(self) -> None:
        batch = batch_of([3], [[-1, 0]])
        scaled = batch.with_fields(kv_pool=batch.kv_pool.to(torch.float8_e4m3fn), kv_scale=0.5)
        want = request_rows(scaled, 0, torch.float32, torch.device("cpu"))[1]
        assert torch.equal(adapters.node_rows(scaled), want)

    def test_strided_tree_mask(self) -> None:
        batch = batch_of([2], [[-1, *range(69)]])
        columns = batch.tree_mask.t().contiguous().t()
        assert torch.equal(
            adapters.packed_mask(batch.with_fields(tree_mask=columns), 32),
            adapters.packed_mask(batch, 32),
        )


def test_the_function_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wrap-a-kernel.md").read_text()
    names: dict = {}
    exec(text.split("```python")[1].split("```")[0], names)
    batch = build(
        Case(
            ((37, "comb:5"), (0, "[-1,0,0]"), (0, "padding:2"), (90, "random:70:1")),
            page_size=4,
            pool="page-stride",
            q="strided",
            tail_rows=2,
        )
    )
    want = oracle(batch)
    out, lse = batch.outputs()
    names["sdpa"](batch, out, lse)
    assert (out[: len(want.out)] - want.out).abs().max() < 5e-6
    assert declared(names["sdpa"]).lse is False


class TestErrors:
    def test_hidden_prefix_token(self) -> None:
        flat = torch.ones(2 * 5, dtype=torch.bool)
        flat[5 + 1] = False
        with pytest.raises(LayoutError, match=r"node 1 hides prefix token 1.*prefix_lens\[0\]"):
            adapters.tree_mask_from_full(flat, [3], [0, 2])

    def test_length(self) -> None:
        with pytest.raises(LayoutError, match=r"has 9 elements.*prefix_len.*is 10"):
            adapters.tree_mask_from_full(torch.ones(9, dtype=torch.bool), [3], [0, 2])
        with pytest.raises(LayoutError, match=r"has 9 elements.*n \* n.*is 4"):
            adapters.tree_mask_from_tree_only(torch.ones(9, dtype=torch.bool), [0, 2])

    def test_too_few_words(self) -> None:
        with pytest.raises(LayoutError, match="words is 1; 65 nodes need 2"):
            adapters.tree_mask_from_tree_only(torch.ones(65 * 65, dtype=torch.bool), [0, 65], 1)

    @pytest.mark.parametrize("width", [0, 1, 24])
    def test_width(self, width: int) -> None:
        with pytest.raises(LayoutError, match=f"bits is {width}; a word has 8, 16, 32 or 64"):
            adapters.packed_mask(batch_of([1], [[-1]]), width)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.float16, torch.bool])
    def test_dtype(self, dtype: torch.dtype) -> None:
        with pytest.raises(LayoutError, match="words of 16 bits are integers of 2 bytes"):
            adapters.tree_mask_from_packed(torch.zeros(3, 1, dtype=dtype), 16)

    def test_broken_links(self) -> None:
        with pytest.raises(LayoutError, match="request 1: node 0 links to 7"):
            adapters.tree_mask_from_links([[-1], [7, -1]], [[-1], [-1, -1]])

    def test_nodes_outside_the_pool_have_no_slots(self) -> None:
        with pytest.raises(LayoutError, match=r"take node_rows\(batch\)"):
            adapters.node_slots(batch_of([1], [[-1]], node_kv=True))

    def test_space_between_pages(self) -> None:
        batch = batch_of([9], [[-1]], page_size=4, pool="page-stride")
        with pytest.raises(LayoutError, match=r"strides .*stride\(0\) = 192.*by page and row"):
            adapters.slot_view(batch)
        single = batch_of([9], [[-1]], page_size=1, pool="page-stride")
        assert adapters.slot_view(single).shape == (single.kv_pool.shape[0], 48)
