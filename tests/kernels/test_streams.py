"""Streams and CUDA graphs: work that is not where the caller asked, and a capture that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.hostile import right
from tests.kernels.test_hostile import as_kernel
from verify_attn.conformance import trial
from verify_attn.conformance.fuzz import attempt
from verify_attn.conformance.trial import KernelRaised
from verify_attn.cuda_graph import CaptureError
from verify_attn.generate import Case
from verify_attn.kernels.base import Capabilities
from verify_attn.kernels.registry import load
from verify_attn.problem import VerifyBatch

ON_GPU = Case(
    ((300, "random:9:1"), (40, "chain:3")), geometry="tiny/2", page_size=16, seed=11,
    dtype="bfloat16",
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("default", [False, True])
def test_work_on_another_stream_is_caught(default: bool, joined: bool) -> None:
    other = torch.cuda.default_stream() if default else torch.cuda.Stream()

    inner = load("triton-split")  # does not wait for the GPU

    class Elsewhere:
        capabilities = inner.capabilities

        def plan(self, batch: VerifyBatch) -> Any:
            return inner.plan(batch)

        def prepare(self, batch: VerifyBatch, plan: Any) -> None:
            inner.prepare(batch, plan)

        def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
            current = torch.cuda.current_stream()
            if joined:
                other.wait_stream(current)
            with torch.cuda.stream(other):
                inner.run(batch, plan, out, lse)
            if joined:
                current.wait_stream(other)

    kernel = as_kernel("elsewhere", Elsewhere())
    outcome = attempt(kernel, ON_GPU, "stream", torch.device("cuda"), explain=False)
    assert outcome["status"] == ("pass" if joined else "fail"), outcome
    assert joined or "wrong on a side stream" in outcome["text"]


class Synchronises:
    capabilities = Capabilities(capture=True)

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        assert batch.q.isnan().any().item() in (True, False)
        right(batch, out, lse)


@pytest.mark.gpu
def test_a_capture_that_fails_is_the_kernels_failure_and_harms_no_other() -> None:
    device = torch.device("cuda")
    for _ in range(2):
        kernel = as_kernel("synchronises", Synchronises())
        outcome = attempt(kernel, ON_GPU, "capture", device, explain=False)
        assert outcome["status"] == "fail"
        assert "declares capture, but no CUDA graph could be captured" in outcome["text"]
        assert ".item() in (True, False)" in outcome["text"]
        outcome = attempt(load("triton-split"), ON_GPU, "capture", device)
        assert outcome["status"] == "pass", outcome


def test_a_capture_that_fails_is_told_with_the_kernels_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(launches: list[Callable[[], object]], index: int) -> None:
        try:
            launches[0]()
        except ValueError as error:
            raise CaptureError(str(error), error) from None

    def launch() -> None:
        raise ValueError("this waits")

    monkeypatch.setattr(trial, "capture", fails)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(KernelRaised, match="this waits") as raised:
        trial.Trial(as_kernel("right", right), ON_GPU, torch.device("cpu")).capture(launch)
    assert "declares capture, but no CUDA graph could be captured: this waits" in str(raised.value)
    assert 'raise ValueError("this waits")' in str(raised.value)
