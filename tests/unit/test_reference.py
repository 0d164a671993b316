"""The oracle against numbers worked out by hand and naive loops; its twin against the oracle."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verify_attn import reference
from verify_attn.conformance.strategies import CPU, cases
from verify_attn.conformance.tolerance import lse_bound, out_bound
from verify_attn.generate import Case, build
from verify_attn.geometry import AttentionGeometry
from verify_attn.kernels.base import Capabilities
from verify_attn.kernels.torch_kernel import torch_verify
from verify_attn.problem import FP8_DTYPES, VerifyBatch
from verify_attn.reference import Reference, fast_reference, oracle

several = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
drawn = cases(CPU, Capabilities(dtypes=(torch.float32,)))

# Two prefix tokens on one page, three nodes on two others: root 0, its child 1, its child 2.
# D_c is 2, D_r is 1, one head.  Logits are chosen to be logarithms of small whole numbers.
LN2, LN3, LN5 = math.log(2.0), math.log(3.0), math.log(5.0)


def by_hand(**fields: object) -> VerifyBatch:
    pool = torch.full((6, 2, 3), torch.nan, dtype=torch.float64)
    stored = [
        [8.0, 0.0, LN2], [0.0, 6.0, LN3],  # prefix
        [30.0, 60.0, 0.0], [12.0, 0.0, LN5], [0.0, 0.0, LN2],  # nodes
    ]  # fmt: skip
    for position, row in enumerate(stored):
        page = (4, 1, 5)[position // 2]
        pool[page, position % 2] = torch.tensor(row, dtype=torch.float64)
    return VerifyBatch(
        geometry=AttentionGeometry(1, 2, 1, 0.5),
        q=torch.tensor([[[0.0, 0.0, 2.0]]] * 3, dtype=torch.float64),  # logit = the rope entry
        kv_pool=pool,
        page_table=torch.tensor([[4, 1, 5, 99]], dtype=torch.int32),
        prefix_lens=torch.tensor([2], dtype=torch.int32),
        node_offsets=torch.tensor([0, 3], dtype=torch.int32),
        tree_mask=torch.tensor([[0b001], [0b011], [0b101]]),
        softmax_scale=0.5,
        max_prefix_len=2,
        max_nodes=3,
    ).with_fields(**fields)


def naive(batch: VerifyBatch, row: int, head: int, tokens: list[list[float]]) -> tuple:
    """One row of one head, number by number."""
    q = [float(x) for x in batch.q[row, head]]
    scores = [
        batch.softmax_scale * math.fsum(a * b for a, b in zip(q, k, strict=True)) for k in tokens
    ]
    if not scores:
        return [0.0] * batch.geometry.latent_dim, -math.inf
    top = max(scores)
    total = math.fsum(math.exp(s - top) for s in scores)
    out = [
        math.fsum(math.exp(s - top) * k[c] for s, k in zip(scores, tokens, strict=True)) / total
        for c in range(batch.geometry.latent_dim)
    ]
    return out, top + math.log(total)


def tokens_of(batch: VerifyBatch, request: int, node: int) -> list[list[float]]:
    """KV rows that a node attends to, found slot by slot and bit by bit."""
    prefix = int(batch.prefix_lens[request])
    first, last = (int(x) for x in batch.node_offsets[request : request + 2])

    def stored(position: int) -> list[float]:
        page = int(batch.page_table[request, position // batch.page_size])
        row = batch.kv_pool[page, position % batch.page_size]
        return [float(x) * batch.kv_scale for x in row.double()]

    rows = [stored(position) for position in range(prefix)]
    for other in range(last - first):
        word = int(batch.tree_mask[first + node, other // 64]) % 2**64
        if word >> (other % 64) & 1:
            own = batch.node_kv
            rows.append(stored(prefix + other) if own is None else own[first + other].tolist())
    return rows


def assert_close(got: Reference, want: Reference) -> None:
    """To the tolerance that float32 kernels get, its rounding of the output included."""
    assert got.out.dtype == got.lse.dtype == torch.float32
    assert want.out.dtype == want.lse.dtype == torch.float64
    assert ((got.out - want.out).abs() <= out_bound(want, torch.float32)).all()
    empty = torch.isinf(want.lse)
    assert torch.equal(torch.isinf(got.lse), empty)
    assert ((got.lse - want.lse)[~empty].abs() <= lse_bound(want)[~empty]).all()
    assert torch.equal(got.keys, want.keys)
    assert torch.allclose(got.strength.double(), want.strength, rtol=1e-5)
    assert got.dims == want.dims


class TestByHand:
    """Weights of (token 0, token 1, node ...): 2, 3, then 1 for node 0, 5 for node 1, 2 for 2."""

    OUT = torch.tensor(
        [
            [(2 * 8 + 30) / 6, (3 * 6 + 60) / 6],
            [(2 * 8 + 30 + 5 * 12) / 11, (3 * 6 + 60) / 11],
            [(2 * 8 + 30) / 8, (3 * 6 + 60) / 8],
        ],
        dtype=torch.float64,
    )
    LSE = torch.tensor([6.0, 11.0, 8.0], dtype=torch.float64).log()

    def test_oracle(self) -> None:
        got = oracle(by_hand())
        assert torch.allclose(got.out[:, 0], self.OUT, rtol=1e-14)
        assert torch.allclose(got.lse[:, 0], self.LSE, rtol=1e-14)
        assert got.keys.tolist() == [3, 4, 4]
        assert got.dims == 3
        longest = math.sqrt(30.0**2 + 60.0**2)  # node 0 is seen by all
        assert got.strength[:, 0].tolist() == pytest.approx([0.5 * 2 * longest] * 3)

    def test_twin(self) -> None:
        assert_close(fast_reference(by_hand()), oracle(by_hand()))

    def test_scale_of_the_pool(self) -> None:
        """Halved rows and a scale of 2 are the same rows."""
        half = by_hand().kv_pool / 2
        got = oracle(by_hand(kv_pool=half, kv_scale=2.0))
        assert torch.allclose(got.out[:, 0], self.OUT)

    def test_nodes_outside_the_pool_are_not_scaled(self) -> None:
        pool = by_hand().kv_pool
        nodes = torch.cat([pool[1], pool[5, :1]])
        only_prefix = torch.full_like(pool, torch.nan)
        only_prefix[4] = pool[4] / 2
        batch = by_hand(kv_pool=only_prefix, kv_scale=2.0, node_kv=nodes)
        assert torch.allclose(oracle(batch).out[:, 0], self.OUT)
        assert_close(fast_reference(batch), oracle(batch))

    def test_padding(self) -> None:
        """No bits: the prefix alone; without a prefix nothing at all."""
        blank = torch.zeros(3, 1, dtype=torch.int64)
        got = oracle(by_hand(tree_mask=blank))
        assert got.out[:, 0].tolist() == pytest.approx(np.array([[16 / 5, 18 / 5]] * 3))
        assert got.lse.exp().flatten().tolist() == pytest.approx([5.0] * 3)
        nothing = by_hand(
            tree_mask=blank,
            prefix_lens=torch.tensor([0], dtype=torch.int32),
            page_table=torch.tensor([[1, 5]], dtype=torch.int32),
        )
        for answer in (oracle(nothing), fast_reference(nothing)):
            assert answer.out.tolist() == [[[0.0, 0.0]]] * 3
            assert answer.lse.tolist() == [[-math.inf]] * 3
            assert answer.keys.tolist() == [0, 0, 0]

    def test_rows_past_the_last_request_are_left_out(self) -> None:
        q = torch.cat([by_hand().q, torch.full((2, 1, 3), torch.nan, dtype=torch.float64)])
        mask = torch.tensor([[1], [3], [5], [-1], [-1]])
        for answer in (oracle, fast_reference):
            got = answer(by_hand(q=q, tree_mask=mask))
            assert got.out.shape == (3, 1, 2)
            assert torch.allclose(got.out[:, 0].double(), self.OUT)


@settings(several, max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.sampled_from(["random:6:1", "chain:2", "padding:2", "comb:66"])
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.sampled_from(["equal", "planted", "large"]),
)
def test_oracle_against_naive_loops(requests: list, node_kv: bool, values: str) -> None:
    case = Case(
        tuple(requests), geometry="tiny/1", page_size=3, layout="shuffled",
        node_kv=node_kv, values=values, tail_rows=1,
    )  # fmt: skip
    batch = build(case)
    got = oracle(batch)
    for request in range(batch.requests):
        for node in sorted({0, batch.nodes(request) // 2, batch.nodes(request) - 1}):
            row = batch.offset_list[request] + node
            tokens = tokens_of(batch, request, node)
            out, lse = naive(batch, row, 0, tokens)
            assert got.keys[row] == len(tokens)
            assert got.out[row, 0].tolist() == pytest.approx(out, rel=1e-9, abs=1e-12)
            assert got.lse[row, 0].item() == pytest.approx(lse, rel=1e-12)


class TestTwin:
    @several
    @given(drawn)
    def test_equals_the_oracle(self, case: Case) -> None:
        """All that generated cases hold: node_kv, padding, poison, strides, sharing, layouts."""
        batch = build(case)
        want = oracle(batch)
        assert not torch.isnan(want.out).any()
        assert not torch.isnan(want.lse).any()
        assert_close(fast_reference(batch), want)

    @settings(several, max_examples=15)
    @given(drawn, st.sampled_from(FP8_DTYPES), st.sampled_from([0.25, 1.0, 3.0]))
    def test_fp8_pool(self, case: Case, dtype: torch.dtype, scale: float) -> None:
        batch = build(case)
        scaled = batch.with_fields(kv_pool=(batch.kv_pool / scale).to(dtype), kv_scale=scale)
        scaled.validate()
        want = oracle(scaled)
        assert not torch.isnan(want.out).any()
        assert_close(fast_reference(scaled), want)
        same = batch.with_fields(kv_pool=scaled.kv_pool.float() * scale)  # the real rows
        assert torch.allclose(oracle(same).out, want.out, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("scores", [500, 1000, 4000])
    @pytest.mark.parametrize("values", ["planted", "large"])
    def test_long_prefixes_in_pieces(
        self, monkeypatch: pytest.MonkeyPatch, scores: int, values: str
    ) -> None:
        requests = ((500, "random:9:1"), (3, "padding:2"), (0, "padding:1"), (0, "chain:3"))
        batch = build(Case(requests, page_size=16, layout="shuffled", values=values))
        pieces = []
        attend = reference._attend
        monkeypatch.setattr(reference, "_SCORES_AT_ONCE", scores)
        monkeypatch.setattr(
            reference, "_attend", lambda *args: (pieces.append(len(args[2])), attend(*args))[1]
        )
        got = fast_reference(batch)
        assert max(pieces) <= max(9, scores // 8)
        assert sum(pieces) == 503 + 9 + 2 + 1 + 3  # each token of each request once
        monkeypatch.undo()
        assert_close(got, oracle(batch))


def test_rows_and_device() -> None:
    whole = oracle(build(Case(((5, "chain:4"),), geometry="tiny/2")))
    part = whole.rows(slice(1, 3), out=whole.out + 1)
    assert torch.equal(part.out, whole.out[1:3] + 1)
    assert torch.equal(part.lse, whole.lse[1:3])
    assert torch.equal(part.keys, whole.keys[1:3])
    assert whole.to(torch.device("meta")).strength.device.type == "meta"


@pytest.mark.parametrize("judge", [fast_reference, torch_verify])
def test_products_have_all_their_bits(monkeypatch: pytest.MonkeyPatch, judge: object) -> None:
    """Whatever a module that was imported before allowed, and it is allowed again afterwards."""
    seen, exp, matmul = [], torch.exp, torch.backends.cuda.matmul
    batch = build(Case(((5, "chain:4"),), geometry="tiny/2"))
    monkeypatch.setattr(
        torch, "exp", lambda *a, **k: (seen.append(matmul.fp32_precision), exp(*a, **k))[1]
    )
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        judge(batch, *([] if judge is fast_reference else batch.outputs()))
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert set(seen) == {"ieee"}
