"""The numbers and the layout of cases: every planted key matters, nothing else may be read."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.assemble import LAYOUTS, WILD_PAGE
from verify_attn.conformance.tolerance import out_bound
from verify_attn.generate import Case, build, contents
from verify_attn.paging import runs
from verify_attn.problem import VerifyBatch
from verify_attn.reference import fast_reference, oracle, request_rows
from verify_attn.values import SPLIT_COUNTS, STRETCHES, TILE_SIZES, planted_positions

TREE = "[-1,0,0,1,1,3,4]"
CPU = torch.device("cpu")


def logits(batch: VerifyBatch, request: int = 0) -> torch.Tensor:
    """[n, H, tokens] float64 scaled logits of one request, the mask left aside."""
    rows = torch.cat(request_rows(batch, request, torch.float64, CPU))
    q = batch.q[batch.offset_list[request] : batch.offset_list[request + 1]].double()
    return batch.softmax_scale * torch.einsum("nhd,td->nht", q, rows)


def lifted(batch: VerifyBatch, request: int, lift: float) -> set[int]:
    """Token positions whose logit is on average nearer to ``lift`` than to 0."""
    means = logits(batch, request).mean(dim=(0, 1))
    return set(torch.nonzero(means > lift / 2).flatten().tolist())


def without_key(batch: VerifyBatch, position: int) -> VerifyBatch:
    """The batch less one prefix token: the last one takes its place (page_size 1, node_kv)."""
    last = int(batch.prefix_lens[0]) - 1
    table = batch.page_table.clone()
    table[0, position] = table[0, last]
    shorter = torch.tensor([last], dtype=torch.int32)
    return batch.with_fields(page_table=table, prefix_lens=shorter, prefix_lens_host=shorter)


def edges(prefix_len: int, nodes: int, page_size: int) -> set[int]:
    """Positions that must be planted whatever the random numbers."""
    cuts = {page_size, prefix_len // page_size * page_size}
    for size in TILE_SIZES:
        cuts |= {size, prefix_len // size * size, (prefix_len - 1) // size * size}
    for count in SPLIT_COUNTS:  # the last split, of the prefix and of prefix and tree
        cuts |= {-(-total // count) * (count - 1) for total in (prefix_len, prefix_len + nodes)}
    both_sides = {0, prefix_len - 1} | cuts | {cut - 1 for cut in cuts}
    return {position for position in both_sides if 0 <= position < prefix_len}


class TestPlanted:
    @settings(max_examples=100, deadline=None)
    @given(st.integers(1, 200_000), st.integers(1, 300), st.integers(1, 300), st.integers(0, 1000))
    def test_positions(self, prefix_len: int, nodes: int, page_size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        planted = planted_positions(prefix_len, nodes, page_size, rng).tolist()
        assert planted == sorted(set(planted))
        assert edges(prefix_len, nodes, page_size) <= set(planted)
        if prefix_len <= 256:
            assert planted == list(range(prefix_len))
        else:
            assert STRETCHES <= len(planted) <= 200  # one a stretch; few, so each loss is felt
            widest = max(b - a for a, b in pairwise(planted))
            assert widest <= 2 * -(-prefix_len // STRETCHES)

    @pytest.mark.parametrize("tokens", [1_000, 32_000, 185_000])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_losing_any_one_key_shows(self, dtype: str, tokens: int) -> None:
        """A few edges and the four keys that weigh least."""
        case = Case(((tokens, TREE),), geometry="tiny/2", dtype=dtype, node_kv=True, seed=5)
        batch = build(case)
        whole = fast_reference(batch)
        bound = out_bound(whole, batch.q.dtype)
        scores = logits(batch)[..., :tokens]
        planted = planted_positions(tokens, 7, 1, np.random.default_rng([case.seed, 1]))
        heaviest = (scores[..., planted] - whole.lse[..., None]).amax(dim=(0, 1))
        weak = [int(planted[i]) for i in heaviest.argsort()[:4]]
        for position in (0, 63, 64, (tokens - 1) // 128 * 128, tokens - 1, *weak):
            assert position in planted
            less = fast_reference(without_key(batch, position))
            moved = ((less.out - whole.out).abs() / bound).max().item()
            assert moved > 1.5, (position, moved)

    def test_losing_any_one_key_shows_in_a_single_row(self) -> None:
        """One node, one head, the coarsest dtype: the weakest key of all."""
        for seed in range(5):
            case = Case(((1000, "chain:1"),), "tiny/1", "bfloat16", node_kv=True, seed=seed)
            batch = build(case)
            whole = fast_reference(batch)
            planted = planted_positions(1000, 1, 1, np.random.default_rng([seed, 1]))
            weakest = int(planted[logits(batch)[0, 0, planted].argmin()])
            less = fast_reference(without_key(batch, weakest))
            assert ((less.out - whole.out).abs() > out_bound(whole, torch.bfloat16)).any()

    @pytest.mark.parametrize("tokens", [1_000, 32_000])
    def test_they_hold_most_of_the_weight_and_share_it(self, tokens: int) -> None:
        batch = build(Case(((tokens, "star:5"),), geometry="tiny/2", seed=6))
        scores = logits(batch)[..., :tokens]
        lift = math.log(4 * tokens / 160 + 1)
        planted = sorted(lifted(batch, 0, lift) - set(range(tokens, tokens + 5)))
        assert edges(tokens, 5, 1) <= set(planted)
        weights = scores.softmax(dim=-1)[..., planted]
        assert (weights.sum(-1) > 0.6).all()
        assert (weights.sum(-1) < 0.9).all()
        assert weights.max() < 0.1

    def test_every_node_is_planted(self) -> None:
        batch = build(Case(((2000, "random:40:1"),), geometry="tiny/2"))
        assert set(range(2000, 2040)) <= lifted(batch, 0, math.log(4 * 2000 / 160 + 1))

    def test_what_another_request_plants_in_shared_pages(self) -> None:
        lift = math.log(4 * 600 / 160 + 1)
        for seed in range(5):
            batch = build(
                Case(((600, TREE), (300, TREE)), page_size=16, shared_pages=18, seed=seed)
            )
            assert edges(600, 7, 16) <= lifted(batch, 0, lift)
            assert edges(300, 7, 16) <= lifted(batch, 1, lift)


class TestKinds:
    @pytest.mark.parametrize("geometry", ["tiny/2", "small", "kimi-k2.6-tp8/1"])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_large(self, geometry: str, dtype: str) -> None:
        case = Case(((500, TREE),), geometry, dtype, values="large")
        scores = logits(build(case)).abs()
        assert 500 < scores.max() < 3000
        assert scores.median() > 50

    def test_equal(self) -> None:
        batch = build(Case(((300, "chain:3"),), values="equal"))
        want = oracle(batch)
        rows = torch.cat(request_rows(batch, 0, torch.float64, CPU))[:, :32]
        for node in range(3):
            tokens = 300 + node + 1
            assert torch.allclose(want.lse[node], torch.full((4,), math.log(tokens)).double())
            assert torch.allclose(want.out[node], rows[:tokens].mean(dim=0).expand(4, 32))

    @pytest.mark.parametrize("tokens", [0, 1, 300, 9_000])
    def test_dominant(self, tokens: int) -> None:
        batch = build(Case(((tokens, "star:3"),), values="dominant"))
        weights = logits(batch)[0].softmax(dim=-1)  # the root sees prefix and itself
        assert (weights[..., : tokens + 1].max(dim=-1).values > 0.99).all()

    def test_dominant_with_shared_pages(self) -> None:
        """Each request has such a key, also where all of its prefix is another's."""
        requests = ((40, "chain:2"), (9, "chain:2"), (16, "chain:2"), (0, "chain:1"))
        for seed in range(5):
            batch = build(Case(requests, page_size=4, shared_pages=4, values="dominant", seed=seed))
            assert (oracle(batch).lse > 50).all()

    @pytest.mark.parametrize("values", ["planted", "equal", "large", "dominant"])
    def test_seed(self, values: str) -> None:
        case = Case(((50, TREE), (7, "chain:2")), values=values, layout="shuffled")
        once, again = contents(case), contents(case)
        other = contents(case.changed(seed=1))
        for request in range(2):
            assert torch.equal(once[request].prefix, again[request].prefix)
            assert torch.equal(once[request].q, again[request].q)
            assert not torch.equal(once[request].prefix, other[request].prefix)


def page_rows(batch: VerifyBatch) -> list[list[int]]:
    """The pages that each request uses."""
    counts = [-(-batch.stored_tokens(r) // batch.page_size) for r in range(batch.requests)]
    return [batch.page_table[r, :count].tolist() for r, count in enumerate(counts)]


class TestLayout:
    REQUESTS = ((200, "chain:4"), (100, TREE), (0, "chain:2"))

    @pytest.mark.parametrize("page_size", [1, 3])
    def test_runs(self, page_size: int) -> None:
        found = {}
        for layout in LAYOUTS:
            case = Case(self.REQUESTS, layout=layout, page_size=page_size)
            tables = page_rows(build(case))
            every = [page for table in tables for page in table]
            assert len(set(every)) == len(every)
            found[layout] = [runs(table) for table in tables[:2]]
        pages = [-(-204 // page_size), -(-107 // page_size)]
        assert found["contiguous"] == [1, 1]
        assert found["reversed"] == pages
        for layout in ("shuffled", "churned", "interleaved"):
            assert found[layout][0] > pages[0] // 8, layout
            assert found[layout][1] > pages[1] // 8, layout

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_shared_pages(self, layout: str) -> None:
        """The first five pages where both prefixes fill them, else as many as they do."""
        requests = ((30, "chain:2"), (21, "chain:2"), (7, "chain:2"), (3, "chain:2"))
        case = Case(requests, page_size=4, shared_pages=5, layout=layout)
        batch = build(case)
        batch.validate()
        tables = page_rows(batch)
        for request, shared in ((1, 5), (2, 1), (3, 0)):
            assert tables[request][:shared] == tables[0][:shared]
            assert not set(tables[request][shared:]) & set(tables[0])
            same = shared * 4
            rows = [request_rows(batch, r, torch.float32, CPU)[0][:same] for r in (0, request)]
            assert torch.equal(*rows)

    @pytest.mark.parametrize("pool", ["packed", "row-stride", "page-stride"])
    @pytest.mark.parametrize("node_kv", [False, True])
    def test_poison(self, pool: str, node_kv: bool) -> None:
        """NaN in all rows that no token has, a page beyond any pool in all unused entries."""
        case = Case(
            self.REQUESTS, page_size=16, layout="shuffled", pool=pool, node_kv=node_kv,
            tail_rows=2, slack=40,
        )  # fmt: skip
        batch = build(case)
        owned = torch.zeros(batch.kv_pool.shape[:2], dtype=torch.bool)
        for request, pages in enumerate(page_rows(batch)):
            assert (batch.page_table[request, len(pages) :] == WILD_PAGE).all()
            for position in range(batch.stored_tokens(request)):
                owned[pages[position // 16], position % 16] = True
        assert owned.sum() == 300 + (0 if node_kv else 13)
        assert batch.kv_pool[owned].isfinite().all()
        assert batch.kv_pool[~owned].isnan().all()
        assert batch.q[:13].isfinite().all()
        assert batch.q[13:].isnan().all()
        if batch.node_kv is not None:
            assert batch.node_kv[:13].isfinite().all()
            assert batch.node_kv[13:].isnan().all()
