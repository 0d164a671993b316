"""SGLang's known defects, found again through the peers `sglang-extend` and `sglang-verify-mla`.

Each test says in which versions the defect is and runs on the one that is installed: on a GPU, or
in Triton's interpreter.  ``pip install --no-deps sglang==0.5.23`` runs the most.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import pytest
import torch

from verify_attn.generate import Case, build
from verify_attn.kernels.base import VerifyKernel
from verify_attn.kernels.registry import load
from verify_attn.problem import VerifyBatch
from verify_attn.reference import oracle

try:
    SGLANG = version("sglang")
except PackageNotFoundError:
    SGLANG = None

pytestmark = pytest.mark.skipif(SGLANG is None, reason="sglang is not installed")


def versions(*known: str) -> pytest.MarkDecorator:
    """Run on these versions alone."""
    return pytest.mark.skipif(
        SGLANG not in known, reason=f"of sglang {' and '.join(known)}, here is {SGLANG}"
    )


@pytest.fixture(scope="module")
def extend() -> VerifyKernel:
    return load("sglang-extend")


@pytest.fixture(scope="module")
def verify_mla() -> VerifyKernel:
    return load("sglang-verify-mla")


@pytest.fixture(scope="module")
def adapters(extend: VerifyKernel) -> ModuleType:
    return importlib.import_module("verify_attn.kernels.peers.sglang")


@pytest.fixture(scope="module")
def device(adapters: ModuleType) -> str:
    return "cpu" if adapters.INTERPRETED else "cuda"


@pytest.fixture(scope="module")
def dtype(device: str) -> str:
    return "float32" if device == "cpu" else "bfloat16"


@pytest.fixture(scope="module")
def bound(device: str) -> float:
    """Of the largest error; outputs are 0.1 to 2."""
    return 5e-6 if device == "cpu" else 2e-2


def outputs(kernel: VerifyKernel, batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel writes, in float64 on the CPU, rows past the last request's left out."""
    assert kernel.unsupported(batch) is None
    out, lse = batch.outputs()
    out.fill_(1e9)
    lse.fill_(1e9)
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    kernel.run(batch, plan, out, lse)
    total = batch.offset_list[-1]
    return out[:total].double().cpu(), lse[:total].double().cpu()


ORDINARY = {
    "mixed": Case(((37, "chain:5"), (0, "[-1,0,0,1]"), (200, "ddtree:31:2")), page_size=3),
    "branches": Case(((130, "random:40:1"), (3, "star:65")), page_size=16, layout="churned"),
    "outside": Case(((70, "comb:33"), (1, "chain:2")), node_kv=True, q="strided", tail_rows=3),
    "padding": Case(((70, "padding:3"), (64, "chain:2")), pool="row-stride", slack=40),
    "mla": Case(((70, "comb:33"), (65, "chain:2")), geometry="kimi-k2.6-tp8/2", q="offset"),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_trees_are_right(
    extend: VerifyKernel, name: str, device: str, dtype: str, bound: float
) -> None:
    batch = build(ORDINARY[name].changed(dtype=dtype), device)
    want = oracle(batch)
    out, lse = outputs(extend, batch)
    assert (out - want.out).abs().max() < bound
    if extend.capabilities.lse:
        assert (lse - want.lse).abs().max() < bound


def test_prepare_again_for_a_shorter_step(
    extend: VerifyKernel, device: str, dtype: str, bound: float
) -> None:
    """A plan may be used for every batch within its bounds; nothing of the last step remains."""
    first = build(Case(((90, "chain:6"), (40, "star:6")), dtype=dtype), device)
    second = build(Case(((3, "star:2"), (90, "comb:6")), dtype=dtype, seed=1), device)
    plan = extend.plan(first)
    for batch in (first, second):
        out, lse = batch.outputs()
        extend.prepare(batch, plan)
        extend.run(batch, plan, out, lse)
        assert (out.double().cpu() - oracle(batch).out).abs().max() < bound


def test_space_between_pages_is_refused(extend: VerifyKernel, device: str, dtype: str) -> None:
    case = Case(((9, "chain:2"),), page_size=4, pool="page-stride", dtype=dtype)
    assert "kv_pool has strides" in str(extend.unsupported(build(case, device)))


class TestEmptyRow:
    """A padding row of a request without a prefix attends to nothing: 0 / 0."""

    @pytest.fixture
    def batch(self, device: str, dtype: str) -> VerifyBatch:
        batch = build(Case(((0, "star:8"), (20, "chain:8")), dtype=dtype), device)
        batch.tree_mask[3] = 0
        batch.validate()
        assert oracle(batch).keys[3] == 0
        return batch

    @versions("0.5.10", "0.5.16")
    def test_is_nan(self, extend: VerifyKernel, batch: VerifyBatch, bound: float) -> None:
        out, _ = outputs(extend, batch)
        assert out[3].isnan().all()
        others = torch.arange(len(out)) != 3
        assert (out - oracle(batch).out)[others].abs().max() < bound

    @versions("0.5.23")
    def test_is_right_since(self, extend: VerifyKernel, batch: VerifyBatch, bound: float) -> None:
        out, lse = outputs(extend, batch)
        assert (out[3] == 0).all()
        assert (lse[3] == -torch.inf).all()
        assert (out - oracle(batch).out).abs().max() < bound


@versions("0.5.23")
class TestVerifyMla:
    def test_chains_are_right(self, verify_mla: VerifyKernel, device: str, dtype: str) -> None:
        batch = build(Case(((130, "chain:8"), (65, "chain:8")), page_size=16, dtype=dtype), device)
        out, _ = outputs(verify_mla, batch)
        assert (out - oracle(batch).out).abs().max() < 2e-2  # its partial results are bfloat16

    def test_request_without_prefix_is_nan(
        self, verify_mla: VerifyKernel, device: str, dtype: str
    ) -> None:
        batch = build(Case(((0, "chain:8"), (65, "chain:8")), dtype=dtype), device)
        out, _ = outputs(verify_mla, batch)
        assert out[:8].isnan().all()
        assert (out - oracle(batch).out)[8:].abs().max() < 2e-2

    def test_trees_and_ragged_batches_are_refused(
        self, verify_mla: VerifyKernel, device: str, dtype: str
    ) -> None:
        for requests in (((9, "star:4"),), ((9, "chain:4"), (9, "chain:3")), ((0, "chain:4"),)):
            batch = build(Case(requests, dtype=dtype), device)
            assert verify_mla.unsupported(batch) is not None


@pytest.mark.parametrize("causal", [True, False])
def test_columns_past_the_tile_are_dropped_if_causal(
    adapters: ModuleType, extend: VerifyKernel, causal: bool, device: str, dtype: str, bound: float
) -> None:
    """With ``is_causal=True`` the mask of a node is read up to the end of its tile of nodes only.

    No tree in topological order is hurt; a mask that shows later nodes is cut without a word.
    `VerifyBatch` forbids such masks, so this one goes to SGLang's function past it.
    """
    nodes, rows_of_a_tile = 40, 32  # BLOCK_M of 576-wide heads everywhere but on sm_100 (16)
    batch = build(Case(((20, f"star:{nodes}"),), geometry="kimi-k2.6-tp8/1", dtype=dtype), device)
    kernel = extend.target
    sizes = kernel.module._get_block_sizes_for_extend_attention(576, 512)
    if sizes[3] != rows_of_a_tile:
        pytest.skip(f"tiles have {sizes[3]} rows on this GPU, the case is for {rows_of_a_tile}")
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    plan.mask.fill_(True)  # every node sees every node
    out, _ = batch.outputs()
    arguments = list(kernel.arguments(batch, plan, out))
    assert arguments[10] is True
    arguments[10] = causal
    adapters.quiet(kernel.function)(*arguments, sm_scale=batch.softmax_scale)

    k = batch.kv_pool[batch.page_table[0, : 20 + nodes].long(), 0].double().cpu()
    weights = torch.softmax(batch.softmax_scale * batch.q[:, 0].double().cpu() @ k.T, dim=1)
    error = (out[:, 0].double().cpu() - weights @ k[:, :512]).abs().amax(1)
    if causal:
        assert error[:rows_of_a_tile].mean() > 0.05
        assert error[rows_of_a_tile:].max() < bound
    else:
        assert error.max() < bound
