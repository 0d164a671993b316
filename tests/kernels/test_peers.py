"""Adapters of other projects' kernels, on stand-ins that give wrong numbers for a wrong call."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels import stand_ins
from verify_attn.assemble import assemble
from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.trial import CheckFailed, NotApplicable, Trial
from verify_attn.generate import Case, build, contents
from verify_attn.kernels.base import KernelError, ObjectKernel
from verify_attn.kernels.peers import flashinfer, flashmla
from verify_attn.kernels.registry import choose_triton_mode
from verify_attn.reference import oracle

CPU = torch.device("cpu")
MLA = {"geometry": "kimi-k2.6-tp8/4", "dtype": "bfloat16"}
RAGGED = Case(((70, "chain:5"), (0, "chain:9"), (3, "chain:1")), page_size=3,
              layout="shuffled", **MLA)  # fmt: skip
EQUAL = Case(((70, "chain:4"), (0, "chain:4"), (130, "chain:4")), page_size=64, tail_rows=2,
             layout="reversed", **MLA)  # fmt: skip
ONE = Case(((200, "chain:6"),), page_size=64, slack=130, **MLA)
FP8 = EQUAL.changed(kv_dtype="float8_e4m3fn")
# What changes for an adapter from one call to the next; the others need a kernel that writes.
ASKED = ("oracle", "lse", "written", "page-size", "batch-alone", "plan-reuse", "chain-is-causal",
         "page-permutation", "inputs-untouched")  # fmt: skip


def asked(target: Any, case: Case, checks: tuple[str, ...] = ASKED) -> set[str]:
    """Run checks on an adapter, whatever GPU it asks for; returns those that could be made."""
    capabilities = replace(target.capabilities, architectures=None)
    made = set()
    for check in checks:
        try:
            CHECKS[check].run(Trial(ObjectKernel("peer", target, capabilities), case, CPU))
            made.add(check)
        except NotApplicable:
            continue
    return made


def asked_batch(target: Any, case: Case) -> Any:
    """The batch of a case for an adapter; `NotApplicable` where it cannot take it."""
    capabilities = replace(target.capabilities, architectures=None)
    return Trial(ObjectKernel("peer", target, capabilities), case, CPU).batch


def broken(kind: type, **changes: Any) -> Any:
    """A stand-in of that class with other methods."""
    return type(kind.__name__, (kind,), changes)


class Module:
    """A module `flashinfer.mla` with that wrapper."""

    def __init__(self, wrapper: type = stand_ins.BatchMLAPagedAttentionWrapper) -> None:
        self.BatchMLAPagedAttentionWrapper = wrapper


class TestFlashInfer:
    @pytest.mark.parametrize("kind", [flashinfer.Fa2, flashinfer.Fa3])
    @pytest.mark.parametrize("case", [RAGGED, EQUAL, ONE.changed(dtype="float16")])
    def test_right(self, kind: type, case: Case) -> None:
        made = asked(kind(Module()), case)
        assert made >= {"oracle", "page-size", "plan-reuse", "page-permutation"}
        assert ("lse" in made) == (kind is flashinfer.Fa3)

    def test_an_older_version_says_its_lse_in_base_2(self) -> None:
        run = stand_ins.BatchMLAPagedAttentionWrapper.run

        def older(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False):
            return run(self, q_nope, q_pe, ckv_cache, kpe_cache, out, lse, return_lse)

        wrapper = broken(stand_ins.BatchMLAPagedAttentionWrapper, run=older)
        assert asked(flashinfer.Fa3(Module(wrapper)), RAGGED, ("oracle", "lse")) == {
            "oracle",
            "lse",
        }

    @pytest.mark.parametrize(
        ("at", "wrong"),
        [
            (0, torch.zeros_like),  # qo_indptr
            (1, torch.zeros_like),  # kv_indptr
            (2, lambda pages: pages.flip(0)),
            (3, lambda lengths: lengths - 1),
            (8, lambda causal: not causal),
            (9, lambda scale: 576**-0.5),
        ],
    )
    def test_a_wrong_argument_shows(self, at: int, wrong: Any) -> None:
        plan = stand_ins.BatchMLAPagedAttentionWrapper.plan

        def changed(self, *given):
            plan(self, *given[:at], wrong(given[at]), *given[at + 1 :])

        wrapper = broken(stand_ins.BatchMLAPagedAttentionWrapper, plan=changed)
        with pytest.raises(CheckFailed):
            asked(flashinfer.Fa2(Module(wrapper)), RAGGED, ("oracle",))

    def test_base_2_would_show(self) -> None:
        run = stand_ins.BatchMLAPagedAttentionWrapper.run

        def base_2(self, *args, return_lse_base_on_e=False, **more):
            return run(self, *args, **more)

        wrapper = broken(stand_ins.BatchMLAPagedAttentionWrapper, run=base_2)
        wrapper.run.__signature__ = inspect.signature(run)
        with pytest.raises(CheckFailed, match="lse differs"):
            asked(flashinfer.Fa3(Module(wrapper)), RAGGED, ("lse",))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"geometry": "tiny"}, "512 + 64, not 32 + 16"),
            ({"node_kv": True}, "from the pool alone"),
            ({"q": "offset"}, "q is not aligned to 16 bytes"),
        ],
    )
    def test_what_it_cannot_take_is_said(self, changes: dict[str, Any], reason: str) -> None:
        batch = build(RAGGED.changed(**changes))
        said = flashinfer.Fa2(Module()).unsupported(batch)
        assert said is not None
        assert reason in said

    def test_more_tiles_than_its_plan_holds(self) -> None:
        batch = build(Case(((1, "chain:1"),), **MLA))
        many = torch.arange(0, 17_001, dtype=torch.int32)
        lengths = torch.ones(17_000, dtype=torch.int32)
        batch = batch.with_fields(
            node_offsets=many, node_offsets_host=many, prefix_lens=lengths, prefix_lens_host=lengths
        )
        said = flashinfer.Fa2(Module()).unsupported(batch)
        assert said == "the batch has 17000 tiles of rows; its plan has room for 15872"

    def test_trees_and_gpus(self) -> None:
        kernel = ObjectKernel("fa3", fa3 := flashinfer.Fa3(Module()), fa3.capabilities)
        assert "needs a GPU" in str(kernel.unsupported(build(RAGGED)))
        with pytest.raises(NotApplicable, match="chains only"):
            asked_batch(fa3, Case(((9, "star:4"),), **MLA))


class TestFlashMla:
    @pytest.mark.parametrize("case", [EQUAL, ONE, ONE.changed(requests=((64, "chain:1"),))])
    def test_right(self, case: Case) -> None:
        made = asked(flashmla.FlashMla(stand_ins.FlashMla()), case)
        assert made >= {"oracle", "lse", "written", "page-permutation", "inputs-untouched"}

    @pytest.mark.parametrize("kind", [flashmla.FlashMla, flashmla.FlashMlaFp8])
    def test_one_plan_for_other_lengths(self, kind: type) -> None:
        case = FP8 if kind.fp8 else EQUAL
        other = case.changed(requests=((3, "chain:4"), (64, "chain:4"), (90, "chain:4")), seed=1)
        adapter = kind(stand_ins.FlashMla())
        first = build(case)
        second = assemble(case.attention_geometry, contents(other), other.arrangement, like=first)
        plan = adapter.plan(first)
        trial = Trial(ObjectKernel("peer", adapter, adapter.capabilities), case, CPU)
        adapter.prepare(first, plan)
        schedule = plan.schedule.num_splits
        for batch in (first, second, first):
            output, right = trial.run(batch, plan), oracle(batch)
            trial.compare(output, right, batch, "one plan")
            trial.compare_lse(output, right, batch)
        assert plan.schedule.num_splits is schedule  # a captured run reads these

    def test_fp8(self) -> None:
        adapter = flashmla.FlashMlaFp8(stand_ins.FlashMla())
        assert asked(adapter, FP8) >= {"oracle", "lse", "written", "page-permutation"}
        adapter.capabilities = replace(adapter.capabilities, products=None)
        with pytest.raises(CheckFailed, match="out differs"):  # only who declares it may round so
            asked(adapter, FP8, ("oracle",))

    @pytest.mark.parametrize("name", ["descale_k", "softmax_scale", "causal", "cache_seqlens"])
    @pytest.mark.parametrize("kind", [flashmla.FlashMla, flashmla.FlashMlaFp8])
    def test_a_wrong_argument_shows(self, kind: type, name: str) -> None:
        if name == "descale_k" and not kind.fp8:
            return
        call = stand_ins.FlashMla.flash_mla_with_kvcache
        wrong = {
            "descale_k": lambda scale: torch.ones(1),
            "softmax_scale": lambda scale: None,
            "causal": lambda causal: False,
            "cache_seqlens": lambda lengths: lengths - 1,
        }[name]

        def changed(self, *args, **more):
            given = inspect.signature(call).bind(self, *args, **more)
            given.arguments[name] = wrong(given.arguments[name])
            return call(*given.args, **given.kwargs)

        module = broken(stand_ins.FlashMla, flash_mla_with_kvcache=changed)
        module.flash_mla_with_kvcache.__signature__ = inspect.signature(call)
        with pytest.raises(CheckFailed):
            asked(kind(module()), FP8 if kind.fp8 else EQUAL, ("oracle", "lse"))

    def test_a_transposed_lse_shows(self) -> None:
        call = stand_ins.FlashMla.flash_mla_with_kvcache

        def transposed(self, *args, use_legacy=False, **more):
            out, lse = call(self, *args, use_legacy=use_legacy, **more)
            return out, lse.transpose(1, 2)

        module = broken(stand_ins.FlashMla, flash_mla_with_kvcache=transposed)
        with pytest.raises(CheckFailed, match="lse differs"):  # 4 heads, 4 nodes
            asked(flashmla.FlashMla(module()), EQUAL, ("lse",))

    def test_what_it_cannot_take_is_said(self) -> None:
        adapter = flashmla.FlashMla(stand_ins.FlashMla())
        for changes, reason in (
            ({"requests": ((9, "chain:3"), (9, "chain:4"))}, "as many nodes as max_nodes"),
            ({"node_slack": 1}, "here 5, and no others; the requests have 4 to 4"),
            ({"node_kv": True}, "from the pool alone"),
            ({"page_size": 16}, "declares page sizes (64,)"),
            ({"kv_dtype": "float8_e4m3fn"}, "declares KV dtypes bfloat16"),
        ):
            with pytest.raises(NotApplicable) as raised:
                asked_batch(adapter, EQUAL.changed(**changes))
            assert reason in str(raised.value)

    def test_another_flash_mla_is_refused(self) -> None:
        class Original:
            def flash_mla_with_kvcache(self, q, k_cache, block_table, cache_seqlens):
                raise AssertionError

        with pytest.raises(KernelError, match="has no use_legacy"):
            flashmla.FlashMla(Original())


@pytest.fixture(scope="module")
def adapters() -> Any:
    choose_triton_mode()
    from verify_attn.kernels.peers import sglang

    return sglang


@pytest.mark.skipif(torch.cuda.is_available(), reason="SGLang's adapter takes GPU batches here")
class TestSGLang:
    @pytest.mark.parametrize("version", ["0510", "0516", "0523"])
    def test_every_signature(self, adapters: Any, version: str) -> None:
        adapter = adapters.Extend(getattr(stand_ins, f"SGLang{version}")())
        assert adapter.capabilities.lse == (version != "0510")
        case = Case(((37, "ddtree:9:1"), (0, "star:3"), (5, "chain:2")), page_size=3, tail_rows=2)
        made = asked(adapter, case)
        assert made >= {"oracle", "page-size", "plan-reuse"}
        assert ("lse" in made) == adapter.capabilities.lse
        asked(adapter, case.changed(node_kv=True, q="strided"), ("oracle",))

    def test_verify_mla(self, adapters: Any) -> None:
        adapter = adapters.VerifyMla(stand_ins.SGLang0523())
        case = Case(((37, "chain:4"), (5, "chain:4")))
        assert "oracle" in asked(adapter, case, ("oracle",))
        for requests in (((9, "star:4"),), ((9, "chain:4"), (9, "chain:3")), ((0, "chain:4"),)):
            assert adapter.unsupported(build(Case(requests))) is not None

    @pytest.mark.parametrize("name", ["kv_indices", "custom_mask", "mask_indptr", "sm_scale"])
    def test_a_wrong_argument_shows(self, adapters: Any, name: str) -> None:
        wrong = {
            "kv_indices": lambda t: t.roll(1),
            "custom_mask": torch.ones_like,
            "mask_indptr": torch.zeros_like,
            "sm_scale": lambda s: 2 * s,
        }[name]

        class Broken(stand_ins.SGLang0523):
            def attend(self, a: dict[str, Any]) -> None:
                super().attend(a | {name: wrong(a[name])})

        with pytest.raises(CheckFailed):
            asked(adapters.Extend(Broken()), Case(((37, "star:9"), (9, "star:9"))), ("oracle",))
