"""Checks that ask for the same attention in another way: other pages, alone, as a chain, again."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from verify_attn.assemble import Content
from verify_attn.conformance.check import check
from verify_attn.conformance.support import INPUTS, as_reference, other_contents, padding_request
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Output,
    Trial,
    judge_dtype,
    poisoned_outputs,
)
from verify_attn.float32 import exact_products

LATE_CYCLES = 100_000_000  # of a GPU's clock: some 50 ms


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
    like = as_reference(trial, rows)
    alone = trial.run(batch)
    trial.compare(
        alone, like, batch, f"request {request} alone differs from itself in the batch", 2
    )


@check("padding", "padding rows and padded requests change nothing for the others")
def _padding_check(trial: Trial) -> None:
    pads = [padding_request(trial, 0, 3), padding_request(trial, 1, 1)]
    how = trial.case.arrangement.changed(tail_rows=trial.case.tail_rows + 5)
    batch = trial.arrange([*trial.contents, *pads], how)
    output = trial.run(batch)
    live = trial.batch.offset_list[-1]
    rows = Output(output.out[:live], output.lse[:live])
    like = as_reference(trial, slice(0, live))
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
    like = as_reference(trial, slice(row, row + 1))
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
    dtype = judge_dtype(content.q.dtype)
    k = torch.cat([content.prefix, content.nodes]).to(dtype)
    v = k[:, : batch.geometry.latent_dim]
    causal = torch.ones(n, p + n, dtype=torch.bool, device=k.device).tril(p)
    right = torch.empty(n, batch.geometry.heads, v.shape[1], dtype=dtype, device=k.device)
    # Its other backends are kernels that may be wrong too.
    with exact_products(), sdpa_kernel(SDPBackend.MATH):
        for head in range(batch.geometry.heads):  # all at once would hold a copy of k for each
            right[:, head] = scaled_dot_product_attention(
                content.q[None, :, head].to(dtype), k[None], v[None],
                attn_mask=causal, scale=batch.softmax_scale,
            )[0]  # fmt: skip
    known = trial.judge(batch)
    like = known.rows(slice(None), out=right)
    trial.compare(trial.run(batch), like, batch, "a chain differs from causal attention")


@check("plan-reuse", "one plan serves other lengths, trees, pages and contents of the same shape")
def _plan_reuse(trial: Trial) -> None:
    other = trial.arrange(other_contents(trial), trial.case.arrangement, like=trial.batch)
    plan = trial.plan(other)
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
    other = trial.arrange(other_contents(trial), trial.case.arrangement, like=batch)
    plan = trial.plan(batch)
    trial.prepare(batch, plan)
    out, lse = poisoned_outputs(batch)
    trial.launch(batch, plan, out, lse)  # compiles outside the graph
    graph = trial.capture(lambda: kernel.run(batch, plan, out, lse))
    judged = [(trial.judge(b), b) for b in (other, batch)]
    saved = {n: t.clone() for n in INPUTS if (t := getattr(batch, n)) is not None}
    contents = [{n: getattr(other, n) for n in saved}, saved]
    for (right, source), values in zip(judged, contents, strict=True):
        for name, value in values.items():
            getattr(batch, name).copy_(value)
        now = batch.with_fields()  # the lengths on the host are read anew
        trial.prepare(now, plan)
        for tensor, poison in zip((out, lse), poisoned_outputs(batch), strict=True):
            tensor.copy_(poison)
        graph.replay()
        torch.cuda.synchronize()
        live = now.offset_list[-1]
        output = Output(out[:live], lse[:live])
        trial.compare(output, right, source, "a replayed graph differs from the oracle")
        if kernel.capabilities.lse:
            trial.compare_lse(output, right, source)


@check("stream", "all the work is on the current stream, whichever that is")
def _stream(trial: Trial) -> None:
    """Queries become right only late on a side stream: work elsewhere meets zeros."""
    if trial.device.type != "cuda":
        raise NotApplicable("streams need a GPU")
    trial.compare(trial.output, trial.reference, trial.batch, "out differs at once already")
    batch, plan = trial.batch, trial.plan(trial.batch)
    trial.prepare(batch, plan)
    out, lse = poisoned_outputs(batch)
    queries = batch.q.clone()
    batch.q.zero_()
    side, late = torch.cuda.Stream(batch.device), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE_CYCLES)
        batch.q.copy_(queries)
        late.record()
        trial.call(trial.kernel.run, batch, plan, out, lse)
        in_time = not late.query()
        done = out.clone(), lse.clone()
    torch.cuda.synchronize()
    if not in_time:
        raise NotApplicable("run waits for the GPU, or takes the host 50 ms: nothing can be late")
    live = batch.offset_list[-1]
    output = Output(done[0][:live], done[1][:live])
    what = (
        "out is wrong on a side stream: some work is on another, which does not wait for it, or it "
        "does not wait for that"
    )
    trial.compare(output, trial.reference, batch, what)
    if trial.kernel.capabilities.lse:
        trial.compare_lse(output, trial.reference, batch)


@check("high-slots", "pages past 2^31 elements of the pool are addressed right")
def _high_slots(trial: Trial) -> None:
    trial.compare(trial.output, trial.reference, trial.batch, "out differs at low slots already")
    how = trial.case.arrangement.changed(high_slots=True)
    batch = trial.arrange(trial.contents, how)
    try:
        trial.compare(trial.run(batch), trial.reference, batch, "out differs with high page ids")
    except CheckFailed as failure:
        failure.reason = "32-bit offset: the same rows at low slots are read from elsewhere"
        raise
