"""Cases with an fp8 pool: what it holds, what q holds, and how far a kernel in fp8 may be off."""

from __future__ import annotations

import pytest
import torch

from verify_attn.assemble import KV_SCALE
from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.tolerance import lse_bound, out_bound
from verify_attn.conformance.trial import Trial
from verify_attn.generate import Case, CaseError, build, contents
from verify_attn.kernels.registry import load
from verify_attn.reference import oracle, request_rows
from verify_attn.values import VALUES

FP8 = torch.float8_e4m3fn
CASE = Case(((300, "random:9:1"), (0, "chain:3"), (70, "star:4")), page_size=4, dtype="bfloat16",
            layout="shuffled", shared_pages=3, kv_dtype="float8_e4m3fn")  # fmt: skip


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("changes", [{}, {"node_kv": True}, {"geometry": "kimi-k2.6-tp8/2"}])
def test_the_pool_holds_the_rows_exactly(values: str, changes: dict) -> None:
    case = CASE.changed(values=values, **changes)
    batch = build(case)
    batch.validate()
    assert (batch.kv_pool.dtype, batch.kv_scale) == (FP8, KV_SCALE)
    for request, content in enumerate(contents(case)):
        prefix, nodes = request_rows(batch, request, torch.float64, batch.device)
        assert torch.equal(prefix, content.prefix.double())
        assert torch.equal(nodes, content.nodes.double())
        assert torch.equal(content.q.to(FP8).to(content.q.dtype), content.q)
        assert content.q.isfinite().all()


@pytest.mark.parametrize("values", ["planted", "dominant", "low"])
def test_rounding_leaves_the_numbers_near_the_case_without_it(values: str) -> None:
    case = CASE.changed(values=values)
    for rounded, plain in zip(contents(case), contents(case.changed(kv_dtype="")), strict=True):
        for name in ("q", "prefix", "nodes"):
            got, want = getattr(rounded, name).float(), getattr(plain, name).float()
            assert ((got - want).abs() <= want.abs() / 16 + 2.0**-9).all()


def test_what_nobody_owns_is_poison() -> None:
    batch = build(CASE.changed(pool="row-stride"))
    owned = torch.zeros(batch.kv_pool.shape[:2], dtype=torch.bool)
    for r in range(batch.requests):
        token = torch.arange(batch.stored_tokens(r))
        owned[batch.page_table[r, token // 4].long(), token % 4] = True
    assert torch.equal(batch.kv_pool.float().isnan().all(-1), ~owned)


@pytest.mark.parametrize("check", ["oracle", "lse", "page-size", "batch-alone", "plan-reuse"])
def test_a_kernel_for_fp8_pools_is_right(check: str) -> None:
    trial = Trial(load("torch"), CASE, torch.device("cpu"))
    CHECKS[check].run(trial)


def test_it_prints_and_reads_back_and_is_off_by_default() -> None:
    assert Case.from_json(CASE.to_json()) == CASE
    plain = CASE.changed(kv_dtype="")
    assert "kv_dtype" not in plain.to_json()
    assert (plain.pool_dtype, CASE.pool_dtype) == (torch.bfloat16, FP8)
    with pytest.raises(CaseError, match="kv_dtype is 'fp8'; it must be one of empty, float8_e4m3"):
        CASE.changed(kv_dtype="fp8")


class TestTolerance:
    def test_only_who_declares_it_gets_more(self) -> None:
        want = oracle(build(CASE))
        plain, wide = out_bound(want, torch.bfloat16), out_bound(want, torch.bfloat16, FP8)
        some = want.out.abs().amax(-1) > 0
        assert (wide > plain)[some].all()
        assert (lse_bound(want, FP8) > lse_bound(want)).all()

    def test_weights_rounded_to_fp8_fit_and_an_answer_of_zeros_does_not(self) -> None:
        case = CASE.changed(geometry="kimi-k2.6-tp8/2", requests=((1500, "chain:4"),))
        batch = build(case)
        want = oracle(batch)
        bound = out_bound(want, torch.bfloat16, FP8)
        prefix, nodes = request_rows(batch, 0, torch.float32, batch.device)
        k = torch.cat([prefix, nodes])
        seen = torch.ones(4, len(k), dtype=torch.bool).tril(len(k) - 4)
        scores = batch.softmax_scale * torch.einsum("nhd,td->nht", batch.q.float(), k)
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        p = torch.exp(scores - scores.amax(2, keepdim=True))
        out = torch.einsum("nht,td->nhd", p.to(FP8).float(), k[:, :512]) / p.sum(2, keepdim=True)
        error = (out - want.out).abs()
        assert (error <= bound).all()
        assert (error > out_bound(want, torch.bfloat16)).any()
        assert (want.out.abs() > bound).any(-1).all()
