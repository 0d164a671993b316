"""The named checks.  Each takes a `Trial` and raises `CheckFailed`, or `NotApplicable`.

A check that compares bits does so at equal shapes, bounds and schedule; for a kernel that does
not declare itself deterministic, the tolerance of `oracle` takes the place of the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from verify_attn.assemble import Content
from verify_attn.conformance.compare import Mismatch, identical
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Output,
    Trial,
    is_poison,
    poisoned_outputs,
)
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference, pool_rows

INPUTS = (
    "q", "kv_pool", "node_kv", "page_table", "prefix_lens", "node_offsets", "tree_mask",
    "prefix_lens_host", "node_offsets_host",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A named check; ``says`` is the one line that help and reports show."""

    name: str
    says: str
    run: Callable[[Trial], None]


CHECKS: dict[str, Check] = {}


def check(name: str, says: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Decorator: register a function as the check of that name."""

    def register(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CHECKS[name] = Check(name, says, run)
        return run

    return register


# -- against what is right -----------------------------------------------------------------------


@check("oracle", "out equals the float64 oracle's, to the tolerance")
def _oracle(trial: Trial) -> None:
    trial.compare(trial.output, trial.reference, trial.batch, "out differs from the oracle's")


@check("lse", "lse equals the oracle's, natural log")
def _lse(trial: Trial) -> None:
    _needs_lse(trial)
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
    batch = trial.arrange([*trial.contents, _padding(trial, 0, 2)], trial.case.arrangement)
    output = trial.run(batch)
    first = batch.offset_list[-2]
    zero = torch.zeros_like(output.out[first:])
    mismatch = _bits("out", output.out[first:], zero, first, signed_zero=True)
    if mismatch is None and trial.kernel.capabilities.lse:
        nothing = torch.full_like(output.lse[first:], -torch.inf)
        mismatch = _bits("lse", output.lse[first:], nothing, first)
    if mismatch:
        raise CheckFailed(
            "a row with no bit set and no prefix must have out 0 and lse -inf",
            mismatch,
            batch,
            "NaN from an empty row: 0 / 0" if mismatch.got != mismatch.got else None,
        )


# -- the same attention, asked for in another way ------------------------------------------------


@check("page-size", "the same tokens in pages of another size")
def _page_size(trial: Trial) -> None:
    sizes = [s for s in (1, 2, 7, 16, 64, 256) if s != trial.case.page_size]
    allowed = trial.kernel.capabilities.page_sizes
    sizes = [s for s in sizes if allowed is None or s in allowed]
    if not sizes:
        raise NotApplicable(f"declares no page size but {trial.case.page_size}")
    size = int(trial.rng.choice(sizes))
    how = trial.case.arrangement.changed(page_size=size, shared_pages=0)
    batch = trial.arrange(trial.contents, how)
    trial.compare(trial.run(batch), trial.reference, batch, f"out differs with page_size {size}")


@check("batch-alone", "a request alone gives what it gives in the batch")
def _batch_alone(trial: Trial) -> None:
    if len(trial.contents) < 2:
        raise NotApplicable("the case has one request")
    request = int(trial.rng.integers(len(trial.contents)))
    how = trial.case.arrangement.changed(shared_pages=0)
    batch = trial.arrange([trial.contents[request]], how)
    rows = slice(*trial.batch.offset_list[request : request + 2])
    like = _as_reference(trial, rows)
    alone = trial.run(batch)
    trial.compare(
        alone, like, batch, f"request {request} alone differs from itself in the batch", 2
    )


@check("padding", "padding rows and padded requests change nothing for the others")
def _padding_check(trial: Trial) -> None:
    pads = [_padding(trial, 0, 3), _padding(trial, 1, 1)]
    how = trial.case.arrangement.changed(tail_rows=trial.case.tail_rows + 5)
    batch = trial.arrange([*trial.contents, *pads], how)
    output = trial.run(batch)
    live = trial.batch.offset_list[-1]
    rows = Output(output.out[:live], output.lse[:live])
    like = _as_reference(trial, slice(0, live))
    trial.compare(rows, like, batch, "out differs once padding rows and requests are added", 2)


@check("node-vs-chain", "a node equals the last node of its ancestor path run as a chain")
def _node_vs_chain(trial: Trial) -> None:
    candidates = [
        (r, node)
        for r, content in enumerate(trial.contents)
        for node in range(len(content.visible))
        if content.visible[node].any()
    ]
    if not candidates:
        raise NotApplicable("the case has padding rows only")
    request, node = candidates[int(trial.rng.integers(len(candidates)))]
    content = trial.contents[request]
    path = np.flatnonzero(content.visible[node])
    chain = Content(
        content.q[path],
        content.prefix,
        content.nodes[path],
        np.tril(np.ones((len(path),) * 2, bool)),
    )
    how = trial.case.arrangement.changed(shared_pages=0)
    batch = trial.arrange([chain], how)
    alone = trial.run(batch)
    row = trial.batch.offset_list[request] + node
    like = _as_reference(trial, slice(row, row + 1))
    last = Output(alone.out[-1:], alone.lse[-1:])
    trial.compare(
        last, like, batch,
        f"node {node} of request {request} differs from its path {path.tolist()} run as a chain", 2,
    )  # fmt: skip


@check("chain-is-causal", "a chain equals PyTorch's causal attention")
def _chain_is_causal(trial: Trial) -> None:
    content = trial.contents[0]
    n, p = len(content.visible), len(content.prefix)
    chain = Content(content.q, content.prefix, content.nodes, np.tril(np.ones((n, n), bool)))
    batch = trial.arrange([chain], trial.case.arrangement.changed(shared_pages=0))
    latent = batch.geometry.latent_dim
    k = torch.cat([content.prefix, content.nodes]).float().expand(batch.geometry.heads, -1, -1)
    q = content.q.float().transpose(0, 1)
    causal = torch.ones(n, p + n, dtype=torch.bool, device=q.device).tril(p)
    with sdpa_kernel(SDPBackend.MATH):  # its other backends are kernels that may be wrong too
        right = scaled_dot_product_attention(
            q[None], k[None], k[None, ..., :latent], attn_mask=causal, scale=batch.softmax_scale
        )[0].transpose(0, 1)
    known = trial.judge(batch)
    like = known.rows(slice(None), out=right)
    trial.compare(trial.run(batch), like, batch, "a chain differs from causal attention")


@check("plan-reuse", "one plan serves other lengths, trees, pages and contents of the same shape")
def _plan_reuse(trial: Trial) -> None:
    other = trial.arrange(_other_contents(trial), trial.case.arrangement, like=trial.batch)
    plan = trial.kernel.plan(other)
    for batch, what in (
        (other, "the first"), (trial.batch, "the second"), (other, "the third, as the first,"),
    ):  # fmt: skip
        output = trial.run(batch, plan)
        trial.compare(output, trial.judge(batch), batch, f"{what} run with one plan is wrong")


@check("capture", "a CUDA graph replayed with other lengths, trees, pages and contents is right")
def _capture(trial: Trial) -> None:
    if not trial.kernel.capabilities.capture:
        raise NotApplicable("does not declare capture")
    if trial.device.type != "cuda":
        raise NotApplicable("CUDA graphs need a GPU")
    batch, kernel = trial.batch, trial.kernel
    other = trial.arrange(_other_contents(trial), trial.case.arrangement, like=batch)
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    out, lse = poisoned_outputs(batch)
    trial.launch(batch, plan, out, lse)  # compiles outside the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.run(batch, plan, out, lse)
    judged = [(trial.judge(b), b) for b in (other, batch)]
    saved = {n: t.clone() for n in INPUTS if (t := getattr(batch, n)) is not None}
    contents = [{n: getattr(other, n) for n in saved}, saved]
    for (right, source), values in zip(judged, contents, strict=True):
        for name, value in values.items():
            getattr(batch, name).copy_(value)
        now = batch.with_fields()  # the lengths on the host are read anew
        kernel.prepare(now, plan)
        for tensor, poison in zip((out, lse), poisoned_outputs(batch), strict=True):
            tensor.copy_(poison)
        graph.replay()
        torch.cuda.synchronize()
        live = now.offset_list[-1]
        output = Output(out[:live], lse[:live])
        trial.compare(output, right, source, "a replayed graph differs from the oracle")
        if kernel.capabilities.lse:
            trial.compare_lse(output, right, source)


@check("high-slots", "pages past 2^31 elements of the pool are addressed right")
def _high_slots(trial: Trial) -> None:
    low = trial.case.arrangement
    batch = trial.arrange(trial.contents, low.changed(high_slots=True))
    try:
        trial.compare(trial.run(batch), trial.reference, batch, "out differs with high page ids")
    except CheckFailed as failure:
        failure.reason = "32-bit offset: the same rows at low slots are read from elsewhere"
        raise


# -- bits ----------------------------------------------------------------------------------------


@check("deterministic", "two runs give the same bits")
def _deterministic(trial: Trial) -> None:
    if not trial.kernel.capabilities.deterministic:
        raise NotApplicable("does not declare deterministic")
    _same(trial, trial.run(trial.batch), slice(None), "a second run gives other bits")


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
    table = batch.page_table.clone()
    used = table < pages  # the rest are wild ids
    table[used] = order[table[used].long()].int()
    renamed = batch.with_fields(kv_pool=pool, page_table=table)
    _same(trial, trial.run(renamed), slice(None), "renaming the pages changes the answer")


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
    changed = _change_node(trial, batch, request, node)
    output, first = trial.run(changed), batch.offset_list[request]
    sees = torch.zeros(batch.offset_list[-1], dtype=torch.bool)
    sees[first : first + len(visible)] = torch.from_numpy(visible[:, node].copy())
    sees = sees.to(batch.device)
    try:
        _same(trial, output, ~sees, f"changing the KV of node {node} of request {request} moves a "
              "row that does not descend from it")  # fmt: skip
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
    plan = trial.kernel.plan(batch)
    trial.kernel.prepare(batch, plan)
    out, lse = poisoned_outputs(batch)
    trial.launch(batch, plan, out, lse)  # what is made once, at the first call, is no matter
    count = allocations(batch.device, lambda: trial.kernel.run(batch, plan, out, lse))
    if count and trial.kernel.plain_function:
        raise NotApplicable(
            f"a plain function may allocate; this one does, {count} times a run: no CUDA graph"
        )
    if count:
        raise CheckFailed(f"run allocates {count} times; workspace belongs into plan")


# -- helpers -------------------------------------------------------------------------------------


def _needs_lse(trial: Trial) -> None:
    if not trial.kernel.capabilities.lse:
        raise NotApplicable("does not declare lse")


def _padding(trial: Trial, prefix_len: int, rows: int) -> Content:
    """A request of padding rows; its q is finite but arbitrary."""
    q = torch.ones_like(trial.contents[0].q[:1]).expand(rows, -1, -1)
    kv = torch.ones_like(trial.contents[0].nodes[:1])
    visible = np.zeros((rows, rows), dtype=np.bool_)
    return Content(q, kv.expand(prefix_len, -1), kv.expand(rows, -1), visible)


def _as_reference(trial: Trial, rows: slice) -> Reference:
    """The kernel's own rows as what another run of it should give."""
    known, output = trial.reference, trial.output
    return known.rows(rows, out=output.out, lse=output.lse)


def _same(trial: Trial, output: Output, rows: slice | torch.Tensor, what: str) -> None:
    """Rows equal the first run's, bit by bit; to the tolerance if not declared deterministic."""
    first = trial.output
    if not trial.kernel.capabilities.deterministic:
        like = trial.reference.rows(rows, out=first.out, lse=first.lse)
        trial.compare(Output(output.out[rows], output.lse[rows]), like, trial.batch, what, 2)
        return
    number = torch.arange(len(first.out), device=first.out.device)[rows]
    mismatch = identical("out", output.out[rows], first.out[rows])
    if mismatch is None and trial.kernel.capabilities.lse:
        mismatch = identical("lse", output.lse[rows], first.lse[rows])
    if mismatch:
        index = (int(number[mismatch.index[0]]), *mismatch.index[1:])
        raise CheckFailed(what, _moved(mismatch, index), trial.batch)


def _bits(
    name: str, got: torch.Tensor, want: torch.Tensor, first_row: int, signed_zero: bool = False
) -> Mismatch | None:
    """`identical`, with row numbers of the batch; -0.0 may stand for 0.0."""
    mismatch = identical(name, torch.where(got == 0, want, got) if signed_zero else got, want)
    if mismatch is None:
        return None
    return _moved(mismatch, (mismatch.index[0] + first_row, *mismatch.index[1:]))


def _moved(mismatch: Mismatch, index: tuple[int, ...]) -> Mismatch:
    return Mismatch(
        mismatch.name, mismatch.count, mismatch.total, index,
        mismatch.got, mismatch.want, mismatch.bound, mismatch.worst,
    )  # fmt: skip


def _other_contents(trial: Trial) -> list[Content]:
    """As many requests and rows as the case has, within its bounds, but nothing else alike: the
    requests in reverse, shorter prefixes, other numbers."""
    others = []
    for content in reversed(trial.contents):
        keep = int(trial.rng.integers(0, len(content.prefix) + 1))
        turned = content.q.roll(1, 0) if len(content.q) > 1 else -content.q
        # Latent parts change sign, rope parts stay: planted keys keep their weight.
        latent = trial.case.attention_geometry.latent_dim
        sign = torch.ones_like(content.nodes[:1])
        sign[:, :latent] = -1
        prefix = content.prefix[len(content.prefix) - keep :]
        others.append(Content(turned, prefix * sign, content.nodes * sign, content.visible))
    return others


def _change_node(trial: Trial, batch: VerifyBatch, request: int, node: int) -> VerifyBatch:
    """A copy of the batch with finite other numbers in one node's KV row."""
    if batch.node_kv is not None:
        row = batch.offset_list[request] + node
        node_kv = batch.node_kv.clone()
        node_kv[row] = _other_row(trial, node_kv[row])
        return batch.with_fields(node_kv=node_kv)
    if trial.case.high_slots:
        raise NotApplicable("the pool is too large to copy")
    position = batch.prefix_list[request] + node
    pool = torch.empty_strided(
        batch.kv_pool.shape, batch.kv_pool.stride(), dtype=batch.kv_pool.dtype, device=batch.device
    )
    pool.copy_(batch.kv_pool)
    page = int(batch.page_table[request, position // batch.page_size])
    old = pool_rows(batch, request, position, position + 1)[0]
    pool[page, position % batch.page_size] = _other_row(trial, old)
    return batch.with_fields(kv_pool=pool)


def _other_row(trial: Trial, row: torch.Tensor) -> torch.Tensor:
    """The latent part with other signs; the rope part, and so most of the weight, as it was."""
    other = row.clone()
    latent = trial.case.attention_geometry.latent_dim
    other[:latent] = -2.0 * row[:latent]
    return other
