"""Checks on bits: of outputs at equal shapes, bounds and schedule, and of inputs.

For a kernel that does not declare itself deterministic, the tolerance of `oracle` takes the place
of the bits.
"""

from __future__ import annotations

import numpy as np
import torch

from verify_attn.conformance.check import check
from verify_attn.conformance.compare import Mismatch, identical
from verify_attn.conformance.support import INPUTS, change_node, copied, same_bits
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Trial,
    poisoned_outputs,
)


@check("deterministic", "two runs give the same bits")
def _deterministic(trial: Trial) -> None:
    if not trial.kernel.capabilities.deterministic:
        raise NotApplicable("does not declare deterministic")
    same_bits(trial, trial.run(trial.batch), slice(None), "a second run gives other bits")


@check("page-permutation", "renaming the pages changes no bit")
def _page_permutation(trial: Trial) -> None:
    batch = trial.batch
    pages = batch.kv_pool.shape[0]
    if trial.case.high_slots:
        raise NotApplicable("the pool is too large to permute")
    order = torch.from_numpy(trial.rng.permutation(pages)).to(batch.device)
    pool = torch.empty_strided(
        batch.kv_pool.shape, batch.kv_pool.stride(), dtype=batch.kv_pool.dtype, device=batch.device
    )
    pool[order] = batch.kv_pool  # page i is now page order[i]
    table = copied(batch.page_table)
    used = table < pages  # the rest are wild ids
    table[used] = order[table[used].long()].int()
    renamed = batch.with_fields(kv_pool=pool, page_table=table)
    same_bits(trial, trial.run(renamed), slice(None), "renaming the pages changes the answer")


@check("inputs-untouched", "no input is written")
def _inputs_untouched(trial: Trial) -> None:
    batch = trial.batch
    before = {n: t.clone() for n in INPUTS if (t := getattr(batch, n)) is not None}
    trial.run(batch)
    for name, value in before.items():
        mismatch = identical(name, getattr(batch, name), value)
        if mismatch:
            raise CheckFailed(f"the kernel wrote into {name}, an input", mismatch)


@check("non-ancestor", "a node's KV moves its descendants' rows and no other bit")
def _non_ancestor(trial: Trial) -> None:
    batch = trial.batch
    trees = [r for r, c in enumerate(trial.contents) if c.visible.any()]
    if not trees:
        raise NotApplicable("the case has padding rows only")
    request = trees[int(trial.rng.integers(len(trees)))]
    visible = trial.contents[request].visible
    # Rather a node that later ones do not descend from: those are the rows that a leak reaches.
    later = np.triu(~visible.T, 1).sum(1)
    node = int(trial.rng.choice(len(visible), p=(1 + 4 * later) / (1 + 4 * later).sum()))
    changed = change_node(trial, batch, request, node)
    output, first = trial.run(changed), batch.offset_list[request]
    sees = torch.zeros(batch.offset_list[-1], dtype=torch.bool)
    sees[first : first + len(visible)] = torch.from_numpy(visible[:, node].copy())
    sees = sees.to(batch.device)
    try:
        what = f"changing the KV of node {node} of request {request} moves a row that does not "
        same_bits(trial, output, ~sees, what + "descend from it")
    except CheckFailed as failure:
        failure.reason = "a node sees one that is not its ancestor (the tree mask is not obeyed)"
        raise
    if trial.case.values != "planted":
        return  # elsewhere a key's weight may be too small to move anything
    still = (output.out == trial.output.out).flatten(1).all(1) & sees
    if still.any():
        row = int(still.nonzero()[0])
        mismatch = Mismatch(
            "out", int(still.sum()), int(sees.sum()), (row, 0, 0),
            float(output.out[row, 0, 0]), float(trial.output.out[row, 0, 0]), None, None,
        )  # fmt: skip
        raise CheckFailed(
            f"changing the KV of node {node} of request {request} leaves a descendant's row as it "
            "was", mismatch, batch, "a branch of the tree is ignored",
        )  # fmt: skip


@check("no-allocation", "run allocates nothing")
def _no_allocation(trial: Trial) -> None:
    from verify_attn.conformance.allocation import allocations

    batch = trial.batch
    plan = trial.plan(batch)
    trial.prepare(batch, plan)
    out, lse = poisoned_outputs(batch)
    trial.launch(batch, plan, out, lse)  # what is made once, at the first call, is no matter
    count = allocations(batch.device, lambda: trial.call(trial.kernel.run, batch, plan, out, lse))
    if count and trial.kernel.plain_function:
        raise NotApplicable(
            f"a plain function may allocate; this one does, {count} times a run: no CUDA graph"
        )
    if count:
        raise CheckFailed(f"run allocates {count} times; workspace belongs into plan")
