"""The bounds: no wrong answer fits, no honestly rounded one is refused; and comparing to them."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from verify_attn.conformance.compare import identical, within
from verify_attn.conformance.strategies import CPU, cases
from verify_attn.conformance.tolerance import ROUNDOFF, lse_bound, out_bound
from verify_attn.generate import DTYPES, Case, build
from verify_attn.geometry import yarn_mscale
from verify_attn.kernels.base import Capabilities
from verify_attn.problem import VerifyBatch
from verify_attn.reference import (
    Reference,
    fast_reference,
    oracle,
    request_rows,
    visible_nodes,
)

NAN, INF = math.nan, math.inf


def rounded_answer(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """What an honest kernel says: float32 logits and sums, weights in q's dtype, out in it too."""
    dtype = batch.q.dtype
    out, lse = batch.outputs()
    for request in range(batch.requests):
        rows = slice(batch.offset_list[request], batch.offset_list[request + 1])
        prefix, tree = request_rows(batch, request, torch.float32, batch.device)
        k = torch.cat([prefix, tree])
        visible = visible_nodes(batch, request)
        seen = torch.cat([visible.new_ones(len(visible), len(prefix)), visible], dim=1)
        scores = batch.softmax_scale * torch.einsum("nhd,td->nht", batch.q[rows].float(), k)
        scores = scores.masked_fill(~seen[:, None, :], -INF)
        top = scores.amax(2, keepdim=True).clamp(min=-1e30) if len(k) else scores.sum(2, True)
        p = torch.exp(scores - top)
        total = p.sum(2, keepdim=True)
        weighted = p.to(dtype).float() @ k[:, : batch.geometry.latent_dim]
        out[rows] = torch.where(total > 0, weighted / total, 0.0).to(dtype)
        lse[rows] = (top + total.log())[..., 0]
    return out, lse


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(CPU, Capabilities()))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_honest_answer_passes(dtype: str, case: Case) -> None:
    batch = build(case.changed(dtype=dtype))
    out, lse = rounded_answer(batch)
    want = oracle(batch)
    total = len(want.out)
    mismatch, _ = within("out", out[:total], want.out, out_bound(want, batch.q.dtype))
    assert mismatch is None
    mismatch, _ = within("lse", lse[:total], want.lse, lse_bound(want))
    assert mismatch is None


@pytest.fixture(params=DTYPES, scope="module")
def long(request: pytest.FixtureRequest) -> tuple[VerifyBatch, Reference]:
    """185,000 tokens, with the right answer."""
    batch = build(Case(((185_000, "[-1,0,0,1]"),), geometry="tiny/2", dtype=request.param))
    return batch, fast_reference(batch)


class TestWrongAnswers:
    def test_zeros(self, long: tuple[VerifyBatch, Reference]) -> None:
        """Every single row is refused, and nearly every element."""
        batch, want = long
        bound = out_bound(want, batch.q.dtype)
        mismatch, worst = within("out", torch.zeros_like(want.out), want.out, bound)
        assert mismatch is not None
        assert mismatch.count > 0.9 * mismatch.total
        assert worst > 20
        assert (want.out.abs() > bound).any(dim=-1).all()

    def test_zeros_where_all_logits_are_equal(self) -> None:
        """The output is a mean of 185,000 values, some 1/430 of one."""
        batch = build(Case(((185_000, "chain:2"),), "tiny/2", "bfloat16", values="equal"))
        want = fast_reference(batch)
        assert want.out.abs().max() < 0.03
        assert (want.out.abs() > out_bound(want, torch.bfloat16)).any(dim=-1).all()

    def test_softmax_scale_without_mscale(self, long: tuple[VerifyBatch, Reference]) -> None:
        batch, want = long
        scale = batch.softmax_scale / yarn_mscale(64.0) ** 2
        wrong = fast_reference(batch.with_fields(softmax_scale=scale))
        off = (wrong.out - want.out).abs() > out_bound(want, batch.q.dtype)
        assert off.any(dim=-1).all()
        assert ((wrong.lse - want.lse).abs() > lse_bound(want)).all()

    def test_lse_in_log2(self, long: tuple[VerifyBatch, Reference]) -> None:
        _, want = long
        mismatch, _ = within("lse", want.lse / math.log(2.0), want.lse, lse_bound(want))
        assert mismatch is not None
        assert mismatch.count == mismatch.total


class TestBounds:
    @pytest.fixture
    def want(self) -> Reference:
        return oracle(build(Case(((70, "random:5:1"),), geometry="tiny/2")))

    @pytest.mark.parametrize("dtype", DTYPES.values())
    def test_scale_with_the_row(self, want: Reference, dtype: torch.dtype) -> None:
        """No floor: an answer a million million times smaller has a bound as much smaller."""
        bound = out_bound(want, dtype)
        tiny = out_bound(want.rows(slice(None), out=want.out * 1e-12), dtype)
        assert torch.allclose(tiny * 1e12, bound, rtol=1e-9)
        rms = want.out.square().mean(-1).sqrt()
        assert (bound.amax(-1) < 16 * ROUNDOFF[dtype] * rms + 2e-5 * rms).all()
        assert (bound > 4 * ROUNDOFF[dtype] * rms[..., None]).all()

    def test_rows_do_not_share_a_bound(self, want: Reference) -> None:
        out = want.out.clone()
        out[0] = 0
        bound = out_bound(want.rows(slice(None), out=out), torch.float16)
        assert (bound[0] == 0).all()
        assert torch.equal(bound[1:], out_bound(want, torch.float16)[1:])

    def test_grow_with_length_and_strength(self, want: Reference) -> None:
        bound = out_bound(want, torch.float32)
        longer = Reference(want.out, want.lse, want.strength, want.keys * 10_000, want.dims)
        harder = Reference(want.out, want.lse, want.strength * 100, want.keys, want.dims)
        for other in (longer, harder):
            assert (out_bound(other, torch.float32) > 2 * bound).all()
            assert (lse_bound(other) > lse_bound(want)).all()

    def test_rows_without_tokens_and_rows_of_zeros_are_exact(self) -> None:
        batch = build(Case(((0, "padding:2"), (5, "chain:2"))))
        batch.kv_pool[..., :32] = 0.0  # all values
        want = oracle(batch)
        bound, limit = out_bound(want, torch.bfloat16), lse_bound(want)
        assert (bound == 0).all()
        assert limit[:2].tolist() == [[0.0] * 4] * 2
        assert (limit[2:] > 0).all()
        off = want.out.clone()
        off[3, 1, 7] = 1e-30
        mismatch, _ = within("out", off, want.out, bound)
        assert mismatch is not None
        assert mismatch.index == (3, 1, 7)
        assert within("out", -want.out, want.out, bound) == (None, 0.0)  # -0.0 is 0
        for wrong in (0.0, -1e30, NAN, INF):
            lse = want.lse.clone()
            lse[1, 2] = wrong
            mismatch, _ = within("lse", lse, want.lse, limit)
            assert mismatch is not None
            assert (mismatch.index, mismatch.count) == ((1, 2), 1)


class TestWithin:
    @pytest.mark.parametrize(
        ("got", "want", "bad"),
        [
            (1.0, 1.0, False), (1.1, 1.0, False), (1.5, 1.0, False), (1.6, 1.0, True),
            (0.0, -0.0, False), (NAN, 1.0, True), (NAN, NAN, True), (1.0, NAN, True),
            (INF, INF, False), (-INF, -INF, False), (INF, -INF, True), (INF, 1.0, True),
            (1.0, -INF, True), (NAN, -INF, True),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("bound", [0.5, 0.0])
    def test_pairs(self, got: float, want: float, bad: bool, bound: float) -> None:
        values = (torch.tensor([got]), torch.tensor([want]), torch.tensor([bound]))
        mismatch, worst = within("out", *values)
        assert (mismatch is not None) == (bad or (bound == 0 and got != want))
        assert (worst > 1) == (mismatch is not None)

    def test_report(self) -> None:
        want = torch.zeros(2, 3, 4)
        got = want.clone()
        got[0, 2, 1], got[1, 0, 0], got[1, 2, 3], got[0, 0, 0] = 0.2, NAN, -7.0, 0.1
        mismatch, worst = within("out", got, want, torch.full((2, 3, 1), 0.15))
        assert mismatch is not None
        assert (mismatch.count, mismatch.total) == (3, 24)
        assert mismatch.index == (0, 2, 1)
        assert mismatch.got == pytest.approx(0.2)
        assert mismatch.want == 0.0
        assert mismatch.bound == pytest.approx(0.15)
        assert mismatch.worst == worst == INF  # the NaN
        got[1, 0, 0] = 0.0
        assert within("out", got, want, torch.tensor(0.15))[1] == pytest.approx(7 / 0.15)
        fine, worst = within("out", got, want, torch.tensor(14.0))
        assert fine is None
        assert worst == pytest.approx(0.5)

    def test_nothing_to_compare(self) -> None:
        nothing = torch.zeros(0, 3)
        assert within("out", nothing, nothing, nothing) == (None, 0.0)


class TestIdentical:
    def test_bits(self) -> None:
        values = torch.tensor([0.0, 1.0, NAN, INF])
        assert identical("out", values, values.clone()) is None
        mismatch = identical("out", torch.tensor([0.0, -0.0, 1.0, NAN]), torch.zeros(4))
        assert mismatch is not None
        assert (mismatch.count, mismatch.total, mismatch.index) == (3, 4, (1,))
        assert (mismatch.bound, mismatch.worst) == (None, None)

    def test_one_unit_in_the_last_place(self) -> None:
        one = torch.ones(2, 3)
        other = one.clone()
        other[1, 2] = 1 + 2.0**-23
        mismatch = identical("out", other, one)
        assert mismatch is not None
        assert (mismatch.index, mismatch.got, mismatch.want) == ((1, 2), 1 + 2.0**-23, 1.0)

    @pytest.mark.parametrize(
        "dtype",
        [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int32,
         torch.int64, torch.bool],
    )  # fmt: skip
    def test_dtypes_and_strides(self, dtype: torch.dtype) -> None:
        want = torch.tensor([[0, 1, 0], [1, 0, 1]]).to(dtype)
        columns = want.t().contiguous().t()
        assert identical("q", columns, want) is None
        got = torch.tensor([[0, 1, 0], [1, 1, 1]]).to(dtype)
        mismatch = identical("q", got, want)
        assert mismatch is not None
        assert (mismatch.index, mismatch.count) == ((1, 1), 1)
        assert (mismatch.got, mismatch.want) == (1.0, 0.0)
