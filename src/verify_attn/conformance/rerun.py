"""Likely reasons found by running the kernel again with one thing changed."""

from __future__ import annotations

import torch

from verify_attn.conformance.compare import within
from verify_attn.conformance.support import copied
from verify_attn.conformance.tolerance import out_bound
from verify_attn.conformance.trial import Output, Trial
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference


def kept_reason(
    trial: Trial, batch: VerifyBatch, wrong: Output, reference: Reference
) -> str | None:
    """Right with nothing changed but the plan."""
    if wrong.out.shape == reference.out.shape and _right(trial, batch, reference):
        return "right when run again with a new plan: it keeps something from an earlier run"
    return None


def stride_reason(
    trial: Trial, batch: VerifyBatch, wrong: Output, reference: Reference
) -> str | None:
    """Right once an input is packed: its strides are what the kernel gets wrong."""
    if wrong.out.shape != reference.out.shape:
        return None
    for name in ("q", "kv_pool", "node_kv", "page_table", "tree_mask"):
        tensor = getattr(batch, name)
        if tensor is None or tensor.is_contiguous():
            continue
        packed = batch.with_fields(**{name: tensor.contiguous()})
        if _right(trial, packed, reference):
            return f"does not follow the strides of {name}, {tensor.stride()}"
    return None


def poison_reason(trial: Trial, batch: VerifyBatch) -> str:
    """Clean one kind of poison at a time; the kind without which NaN vanishes is what is read."""
    owned = torch.zeros(batch.kv_pool.shape[:2], dtype=torch.bool, device=batch.device)
    used_pages = torch.zeros(batch.kv_pool.shape[0], dtype=torch.bool, device=batch.device)
    for request in range(batch.requests):
        position = torch.arange(batch.stored_tokens(request), device=batch.device)
        page = batch.page_table[request].long()[position // batch.page_size]
        owned[page, position % batch.page_size] = True
        used_pages[page] = True
    tails, spare = ~owned & used_pages[:, None], (~used_pages)[:, None] & ~owned
    for text, where in (
        ("reads past the end of a request's last page (its tail holds NaN)", tails),
        ("reads a page that no request owns", spare),
    ):
        pool = copied(batch.kv_pool)
        pool[where] = 0
        if _finite(trial.run(batch.with_fields(kv_pool=pool))):
            return text
    if _finite(trial.run(batch.with_fields(q=copied(batch.q).nan_to_num_()))):
        return "lets rows of q that belong to no request reach those that do"
    return "NaN from finite inputs: 0 / 0 or inf - inf"


def _finite(output: Output) -> bool:
    return bool(torch.isfinite(output.out).all())


def _right(trial: Trial, batch: VerifyBatch, reference: Reference) -> bool:
    output = trial.run(batch)
    bound = out_bound(reference, output.out.dtype, trial.kernel.capabilities.products)
    if output.out.shape != bound.shape:
        return False
    return within("out", output.out, reference.out, bound)[0] is None
