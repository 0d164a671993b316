"""Checks against what is right: the oracle, the reference kernel, the contract."""

from __future__ import annotations

import torch

from verify_attn.conformance.check import check
from verify_attn.conformance.compare import Mismatch
from verify_attn.conformance.support import bits_differ, needs_lse, padding_request
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Trial,
    is_poison,
)
from verify_attn.problem import VerifyBatch


@check("oracle", "out equals the float64 oracle's, to the tolerance")
def _oracle(trial: Trial) -> None:
    trial.compare(trial.output, trial.reference, trial.batch, "out differs from the oracle's")


@check("lse", "lse equals the oracle's, natural log")
def _lse(trial: Trial) -> None:
    needs_lse(trial)
    trial.compare_lse(trial.output, trial.reference, trial.batch)


@check("reference", "out equals triton-unsplit's, to the tolerance")
def _reference(trial: Trial) -> None:
    from verify_attn.kernels.registry import load

    if trial.kernel.name == "triton-unsplit":
        raise NotApplicable("triton-unsplit is the reference itself")
    baseline = load("triton-unsplit")
    reason = baseline.unsupported(trial.batch)
    if reason:
        raise NotApplicable(f"triton-unsplit cannot judge this case: {reason}")
    judge = Trial(baseline, trial.case, trial.device)
    right = judge.run(trial.batch)
    like = trial.reference.rows(slice(None), out=right.out, lse=right.lse)
    trial.compare(trial.output, like, trial.batch, "out differs from triton-unsplit's", 2)


@check("written", "every element of out and lse is written")
def _written(trial: Trial) -> None:
    output = trial.output
    tensors = [("out", output.out)]
    if trial.kernel.capabilities.lse:
        tensors.append(("lse", output.lse))
    for name, tensor in tensors:
        left = is_poison(tensor)
        if left.any():
            index = tuple(int(i) for i in left.nonzero()[0])
            count, total = int(left.sum()), left.numel()
            mismatch = Mismatch(name, count, total, index, float("nan"), float("nan"), None, None)
            raise CheckFailed(f"{name} still holds what stood there before the run", mismatch)


@check("empty", "a row that may attend to nothing has out 0 and lse -inf")
def _empty(trial: Trial) -> None:
    batch = trial.arrange([*trial.contents, padding_request(trial, 0, 2)], trial.case.arrangement)
    output = trial.run(batch)
    first = batch.offset_list[-2]
    zero = torch.zeros_like(output.out[first:])
    mismatch = bits_differ("out", output.out[first:], zero, first, signed_zero=True)
    if mismatch is None and trial.kernel.capabilities.lse:
        nothing = torch.full_like(output.lse[first:], -torch.inf)
        mismatch = bits_differ("lse", output.lse[first:], nothing, first)
    if mismatch:
        raise CheckFailed(
            "a row with no bit set and no prefix must have out 0 and lse -inf",
            mismatch,
            batch,
            _nan_reason(trial, batch, first) if mismatch.got != mismatch.got else None,
        )


def _nan_reason(trial: Trial, batch: VerifyBatch, first: int) -> str | None:
    """The rows' own NaN, or one that is read from where nothing may be read."""
    clean = {
        name: tensor.float().nan_to_num().to(tensor.dtype)  # fp8 has no nan_to_num
        for name in ("q", "kv_pool", "node_kv")
        if (tensor := getattr(batch, name)) is not None
    }
    again = trial.run(batch.with_fields(**clean))
    return "NaN from an empty row: 0 / 0" if again.out[first:].isnan().any() else None
