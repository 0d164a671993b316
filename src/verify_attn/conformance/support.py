"""What several checks need."""

from __future__ import annotations

import numpy as np
import torch

from verify_attn.assemble import Content
from verify_attn.conformance.compare import Mismatch, identical
from verify_attn.conformance.trial import (
    CheckFailed,
    NotApplicable,
    Output,
    Trial,
)
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference, pool_rows
from verify_attn.tree import BoolArray, DraftTree

INPUTS = (
    "q", "kv_pool", "node_kv", "page_table", "prefix_lens", "node_offsets", "tree_mask",
    "prefix_lens_host", "node_offsets_host",
)  # fmt: skip


def needs_lse(trial: Trial) -> None:
    """Not for kernels that do not declare an LSE."""
    if not trial.kernel.capabilities.lse:
        raise NotApplicable("does not declare lse")


def padding_request(trial: Trial, prefix_len: int, rows: int) -> Content:
    """A request of padding rows; its q is finite but arbitrary."""
    q = torch.ones_like(trial.contents[0].q[:1]).expand(rows, -1, -1)
    kv = torch.ones_like(trial.contents[0].nodes[:1])
    visible = np.zeros((rows, rows), dtype=np.bool_)
    return Content(q, kv.expand(prefix_len, -1), kv.expand(rows, -1), visible)


def as_reference(trial: Trial, rows: slice) -> Reference:
    """The kernel's own rows as what another run of it should give."""
    known, output = trial.reference, trial.output
    return known.rows(rows, out=output.out, lse=output.lse)


def same_bits(trial: Trial, output: Output, rows: slice | torch.Tensor, what: str) -> None:
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
        raise CheckFailed(what, moved(mismatch, index), trial.batch)


def bits_differ(
    name: str, got: torch.Tensor, want: torch.Tensor, first_row: int, signed_zero: bool = False
) -> Mismatch | None:
    """`identical`, with row numbers of the batch; -0.0 may stand for 0.0."""
    mismatch = identical(name, torch.where(got == 0, want, got) if signed_zero else got, want)
    if mismatch is None:
        return None
    return moved(mismatch, (mismatch.index[0] + first_row, *mismatch.index[1:]))


def moved(mismatch: Mismatch, index: tuple[int, ...]) -> Mismatch:
    """The same mismatch at another index: that of the whole batch instead of some rows."""
    return Mismatch(
        mismatch.name, mismatch.count, mismatch.total, index,
        mismatch.got, mismatch.want, mismatch.bound, mismatch.worst,
    )  # fmt: skip


def other_contents(trial: Trial) -> list[Content]:
    """As many requests and rows as the case has, within its bounds, but nothing else alike: the
    requests in reverse, shorter prefixes, other trees, other numbers."""
    others = []
    for content in reversed(trial.contents):
        keep = int(trial.rng.integers(0, len(content.prefix) + 1))
        turned = content.q.roll(1, 0) if len(content.q) > 1 else -content.q
        visible = _other_tree(trial, content.visible)
        rows = len(visible)
        # Latent parts change sign, rope parts stay: planted keys keep their weight.
        latent = trial.case.attention_geometry.latent_dim
        sign = torch.ones_like(content.nodes[:1])
        sign[:, :latent] = -1
        prefix = content.prefix[len(content.prefix) - keep :]
        others.append(Content(turned[:rows], prefix * sign, content.nodes[:rows] * sign, visible))
    return others


def _other_tree(trial: Trial, visible: BoolArray) -> BoolArray:
    """A tree of as many rows or fewer; padding rows may become nodes."""
    rows = len(visible)
    if trial.rng.integers(2):
        rows = int(trial.rng.integers(1, rows + 1))
    if not trial.kernel.capabilities.tree_mask:
        return DraftTree.chain(rows).visible
    return DraftTree.random(rows, int(trial.rng.integers(1000))).visible


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy at the same strides."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def change_node(trial: Trial, batch: VerifyBatch, request: int, node: int) -> VerifyBatch:
    """A copy of the batch with finite other numbers in one node's KV row."""
    if batch.node_kv is not None:
        row = batch.offset_list[request] + node
        node_kv = copied(batch.node_kv)
        node_kv[row] = other_row(trial, node_kv[row])
        return batch.with_fields(node_kv=node_kv)
    if trial.case.high_slots:
        raise NotApplicable("the pool is too large to copy")
    position = batch.prefix_list[request] + node
    pool = copied(batch.kv_pool)
    page = int(batch.page_table[request, position // batch.page_size])
    old = pool_rows(batch, request, position, position + 1)[0]
    pool[page, position % batch.page_size] = other_row(trial, old)
    return batch.with_fields(kv_pool=pool)


def other_row(trial: Trial, row: torch.Tensor) -> torch.Tensor:
    """The latent part with other signs; the rope part, and so most of the weight, as it was."""
    other = row.clone()
    latent = trial.case.attention_geometry.latent_dim
    other[:latent] = (-2.0 * row[:latent].float()).to(row.dtype)  # fp8 has no product
    return other
