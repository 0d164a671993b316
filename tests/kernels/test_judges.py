"""What answers are held to is right itself; what cannot judge or run here says so."""

from functools import cache

import pytest
import torch

from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.trial import Output, Trial
from verify_attn.doctor import _kernels
from verify_attn.generate import Case, build
from verify_attn.kernels import triton_common
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.registry import load
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference, oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Where there is a GPU, on the GPU: `pytest -m gpu` is to run them too.
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


class Watched(Trial):
    """Keeps what the check holds the answer to."""

    held: list[tuple[Reference, VerifyBatch]]

    def compare(
        self, output: Output, reference: Reference, batch: VerifyBatch, what: str, times: int = 1
    ) -> None:
        self.held.append((reference, batch))


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 1e-12), ("float16", 1e-5), ("bfloat16", 1e-5)]
)
def test_causal_attention_is_more_exact_than_what_it_judges(dtype: str, error: float) -> None:
    """A float32 answer held to float32 attention failed by 1.02 times its bound on 480 nodes."""
    case = Case(((5, "chain:40"), (3, "[-1]")), geometry="kimi-k2.6-tp8/2", dtype=dtype)
    trial = Watched(load("torch"), case, DEVICE)
    trial.held = []
    CHECKS["chain-is-causal"].run(trial)
    ((held, batch),) = trial.held
    right = oracle(batch).out
    rms = right.square().mean(dim=-1, keepdim=True).sqrt()
    assert held.out.shape == right.shape
    assert float(((held.out.cpu().double() - right).abs() / rms).max()) < error


class BrokenLoop:
    def __getitem__(self, grid: tuple[int, ...]) -> object:
        def launch(*_: object) -> None:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

        return launch


def test_an_interpreter_that_cannot_loop_is_not_the_kernels_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in BUILTIN:
        load(name)  # imports Triton in its own mode
    uncached = triton_common.interpreter_fault.__wrapped__
    monkeypatch.setattr(triton_common, "interpreter_fault", cache(uncached))
    monkeypatch.setattr(triton_common, "INTERPRETED", True)
    monkeypatch.setattr(triton_common, "_count", BrokenLoop())
    batch = build(Case(((3, "[-1,0]"),), dtype="float16"))
    said = dict(_kernels())
    for name in ("triton-unsplit", "triton-split"):
        assert "cannot loop: only 0-dimensional" in str(load(name).unsupported(batch))
        assert said[name].startswith("cannot run: the interpreter of Triton ")
    assert load("torch").unsupported(batch) is None
    assert said["torch"].startswith("runs with ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it may run")
def test_a_kernel_for_gpus_alone_cannot_run_without_one() -> None:
    assert dict(_kernels())["sm120"].startswith("cannot run: it needs a GPU of compute capability")
