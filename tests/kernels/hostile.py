"""Wrong kernels: each makes one mistake that real ones have made, and is otherwise right.

They are plain PyTorch, so that a mistake is a line or two and runs at any length on a CPU.  In
`HOSTILE` each is listed with the check that must catch it and words of the reason it must print.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from verify_attn.kernels.base import Capabilities, declare
from verify_attn.problem import VerifyBatch
from verify_attn.reference import request_rows, visible_nodes


@dataclass
class Part:
    """One request on its way through a right kernel; a mistake changes something in it."""

    batch: VerifyBatch
    request: int
    q: torch.Tensor  # [n, H, D]
    prefix: torch.Tensor  # [p, D]
    nodes: torch.Tensor  # [n, D]
    visible: torch.Tensor  # [n, n]
    scale: float

    @property
    def keys(self) -> torch.Tensor:
        return torch.cat([self.prefix, self.nodes])

    @property
    def seen(self) -> torch.Tensor:
        whole = torch.ones(len(self.visible), len(self.prefix), dtype=torch.bool)
        return torch.cat([whole.to(self.visible.device), self.visible], 1)


def attend(part: Part) -> tuple[torch.Tensor, torch.Tensor]:
    """Right attention of a part: out [n, H, D_c] and lse [n, H]."""
    k = part.keys
    scores = part.scale * torch.einsum("nhd,td->nht", part.q, k)
    scores = scores.masked_fill(~part.seen[:, None], -torch.inf)
    lse = torch.logsumexp(scores, -1) if len(k) else scores.new_full(part.q.shape[:2], -torch.inf)
    p = torch.exp(scores - torch.where(torch.isinf(lse), 0.0, lse)[..., None])
    return torch.einsum("nht,td->nhd", p, k[:, : part.batch.geometry.latent_dim]), lse


def parts(batch: VerifyBatch) -> list[Part]:
    return [
        Part(
            batch,
            r,
            batch.q[batch.offset_list[r] : batch.offset_list[r + 1]].float(),
            *request_rows(batch, r, torch.float32, batch.device),
            visible_nodes(batch, r),
            batch.softmax_scale,
        )
        for r in range(batch.requests)
    ]


def store(part: Part, answer: tuple[torch.Tensor, torch.Tensor], out: Any, lse: Any) -> None:
    rows = slice(*part.batch.offset_list[part.request : part.request + 2])
    out[rows], lse[rows] = answer[0].to(out.dtype), answer[1]


def mistaken(change: Callable[[Part], Part | None]) -> Callable[..., None]:
    """A kernel that is right but for ``change``, made to each part before attention."""

    @declare(deterministic=True)
    def kernel(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
        for part in parts(batch):
            store(part, attend(change(part) or part), out, lse)

    return kernel


def mistaken_answer(change: Callable[..., Any]) -> Callable[..., None]:
    """A kernel that is right but for ``change``, made to each part's answer."""

    @declare(deterministic=True)
    def kernel(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
        for part in parts(batch):
            store(part, change(part, *attend(part)), out, lse)

    return kernel


right = mistaken(lambda part: part)


@declare(deterministic=True)
def zeros(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    out.zero_()
    lse.zero_()


@declare(deterministic=True)
def untouched(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    pass


@declare(deterministic=True)
def returns(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(out)


# -- the mask ------------------------------------------------------------------------------------


def _number(part: Part) -> torch.Tensor:
    return torch.arange(len(part.visible), device=part.visible.device)


def _siblings(part: Part) -> None:
    number = _number(part)
    above = part.visible & (number[:, None] != number)
    part.visible = part.visible | (above[:, None] == above[None]).all(-1) & above.any(1)[:, None]


def _depth(part: Part) -> None:
    depth, number = part.visible.sum(1), _number(part)
    part.visible = (depth[None] < depth[:, None]) | (number[:, None] == number)


def _causal(part: Part) -> None:
    part.visible = torch.ones_like(part.visible).tril()


def _words32(part: Part) -> None:
    part.visible = part.visible & (_number(part) % 64 < 32)


def _one_word(part: Part) -> None:
    part.visible = part.visible[:, _number(part) % 64]


def _no_self(part: Part) -> None:
    number = _number(part)
    part.visible = part.visible & (number[:, None] != number)


def _mask_on_prefix(part: Part) -> Part:
    """The tree's columns are taken for the prefix's first ones."""
    n = min(len(part.visible), len(part.prefix))
    seen = part.seen
    seen[:, :n] = part.visible[:, :n]
    mixed = Part(part.batch, part.request, part.q, part.keys[:0], part.keys, seen, part.scale)
    return mixed


@declare(deterministic=True)
def wrong_request_mask(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    made = parts(batch)
    for part in made:
        n = len(part.visible)
        other = made[part.request - 1].visible
        seen = torch.zeros_like(part.visible)
        m = min(n, len(other))
        seen[:m, :m] = other[:m, :m]
        part.visible = seen
        store(part, attend(part), out, lse)


# -- tokens that are lost or too many ------------------------------------------------------------


def _last_tile(part: Part) -> None:
    part.prefix = part.prefix[: max(0, len(part.prefix) - 1) // 64 * 64]


def _first_token(part: Part) -> None:
    part.prefix = part.prefix[1:]


def _split_dropped(part: Part) -> None:
    share = -(-len(part.prefix) // 8)
    keep = torch.ones(len(part.prefix), dtype=torch.bool, device=part.prefix.device)
    keep[5 * share : 6 * share] = False
    part.prefix = part.prefix[keep]


def _page_tail(part: Part) -> None:
    """The prefix is taken to fill its last page."""
    batch, p = part.batch, len(part.prefix)
    if p % batch.page_size:
        page = batch.page_table[part.request, p // batch.page_size].long()
        tail = batch.kv_pool[page, p % batch.page_size :]
        part.prefix = torch.cat([part.prefix, tail.float()])


def _next_page(part: Part) -> None:
    """One page table entry past the last is read."""
    batch = part.batch
    used = -(-batch.stored_tokens(part.request) // batch.page_size)
    if used < batch.page_table.shape[1]:
        page = batch.page_table[part.request, used].long()
        part.prefix = torch.cat([part.prefix, batch.kv_pool[page].float()])


def _spare_page(part: Part) -> None:
    """Page 0, a dummy in some servers, is read for everybody."""
    part.prefix = torch.cat([part.prefix, part.batch.kv_pool[0].float()])


def _contiguous(part: Part) -> None:
    """The pages are taken to follow the first one."""
    batch = part.batch
    if len(part.prefix):
        flat = batch.kv_pool.reshape(-1, batch.geometry.qk_dim)
        start = int(batch.page_table[part.request, 0]) * batch.page_size
        part.prefix = flat[start : start + len(part.prefix)].float()


def _page_16(part: Part) -> None:
    """Pages are taken to hold 16 rows when they hold more."""
    batch = part.batch
    if len(part.prefix) and batch.page_size > 16:
        position = torch.arange(len(part.prefix), device=batch.device)
        page = batch.page_table[part.request].long()[position // batch.page_size]
        part.prefix = batch.kv_pool[page, position % 16].float()


# -- arithmetic ----------------------------------------------------------------------------------


def _no_mscale(part: Part) -> None:
    part.scale = part.scale / (0.1 * math.log(64.0) + 1.0) ** 2


def _no_rope(part: Part) -> None:
    part.q = part.q.clone()
    part.q[..., part.batch.geometry.latent_dim :] = 0


def _wrong_head(part: Part) -> None:
    part.q = part.q.roll(1, 1)


def _unweighted_merge(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    """Four ranges of the prefix and tree, averaged."""
    total = len(part.keys)
    share = -(-total // 4)
    seen, answers, counts = part.seen, torch.zeros_like(out), torch.zeros(len(out), 1, 1)
    counts = counts.to(out.device)
    for start in range(0, total, share):
        mine = torch.zeros_like(seen)
        mine[:, start : start + share] = seen[:, start : start + share]
        piece = Part(part.batch, part.request, part.q, part.keys[:0], part.keys, mine, part.scale)
        answers += attend(piece)[0]
        counts += mine.any(1)[:, None, None]
    return answers / counts.clamp(min=1), lse


def _fp16_accumulate(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    scores = part.scale * torch.einsum("nhd,td->nht", part.q, part.keys)
    scores = scores.masked_fill(~part.seen[:, None], -torch.inf)
    p = torch.exp(scores - torch.where(torch.isinf(lse), 0.0, lse)[..., None])
    acc = torch.zeros_like(out, dtype=torch.float16)
    for start in range(0, len(part.keys), max(64, len(part.keys) // 64)):
        piece = slice(start, start + max(64, len(part.keys) // 64))
        latent = part.batch.geometry.latent_dim
        values = torch.einsum("nht,td->nhd", p[..., piece], part.keys[piece, :latent])
        acc += values.half()
    return acc.float(), lse


def _empty_nan(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    return torch.where(torch.isinf(lse)[..., None], torch.nan, out), lse


def _values_shifted(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    return out.roll(1, -1), lse


def _log2(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    return out, lse / math.log(2.0)


def _no_empty_lse(part: Part, out: torch.Tensor, lse: torch.Tensor) -> Any:
    return out, torch.where(torch.isinf(lse), -1e20, lse)


@declare(deterministic=True)
def batch_normalised(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Each request is scaled by what the batch holds."""
    for part in parts(batch):
        answer, weight = attend(part)
        store(part, (answer * (1 + 0.1 * (batch.requests - 1)), weight), out, lse)


@declare(deterministic=True)
def tail_rows_seen(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Padding rows of q change what the others get."""
    for part in parts(batch):
        answer, weight = attend(part)
        store(part, (answer * (1 + 0.01 * (batch.rows - batch.offset_list[-1])), weight), out, lse)


# -- how it runs ---------------------------------------------------------------------------------


@declare(deterministic=True)
def writes_input(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    right(batch, out, lse)
    batch.q.mul_(batch.softmax_scale)


@declare(deterministic=True)
def nondeterministic(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    right(batch, out, lse)
    out.mul_(1 + 2 * torch.finfo(out.dtype).eps * torch.randint_like(out, 0, 2))


@declare(deterministic=True)
def int32_offset(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Offsets are computed in 32 bits; negative ones are folded back into the pool."""
    made = parts(batch)
    for part in made:
        p = len(part.prefix)
        if p:
            position = torch.arange(p, device=batch.device)
            page = batch.page_table[part.request].long()[position // batch.page_size]
            offset = page * batch.kv_pool.stride(0)
            wrapped = (offset + 2**31) % 2**32 - 2**31
            page = (wrapped // batch.kv_pool.stride(0)).abs() % len(batch.kv_pool)
            part.prefix = batch.kv_pool[page, position % batch.page_size].float()
        store(part, attend(part), out, lse)


class Allocates:
    """Makes its workspace in run."""

    capabilities = Capabilities(deterministic=True)

    def run(self, batch: VerifyBatch, plan: None, out: torch.Tensor, lse: torch.Tensor) -> None:
        right(batch, out, lse)


class Stale:
    """Merges every split of its workspace, also those that this step did not write."""

    capabilities = Capabilities(deterministic=True)
    splits = 4

    def plan(self, batch: VerifyBatch) -> list[Any]:
        return [None] * self.splits * batch.requests

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        share = -(-(batch.max_prefix_len + batch.max_nodes) // self.splits)
        for part in parts(batch):
            total, seen = len(part.keys), part.seen
            for split in range(self.splits):
                start, end = split * share, min((split + 1) * share, total)
                if start < total:  # else what an earlier step left is merged
                    mine = torch.zeros_like(seen)
                    mine[:, start:end] = seen[:, start:end]
                    piece = Part(
                        batch, part.request, part.q, part.keys[:0], part.keys, mine, part.scale
                    )
                    plan[part.request * self.splits + split] = attend(piece)
            n = len(part.q)  # rows of this step; an earlier one may have had fewer or more
            mine = plan[part.request * self.splits : (part.request + 1) * self.splits]
            kept = [(p[0][:n], p[1][:n]) for p in mine if p is not None and len(p[0]) >= n]
            weight = torch.stack([p[1] for p in kept])
            whole = torch.logsumexp(weight, 0)
            base = torch.where(torch.isinf(whole), 0.0, whole)
            answer = sum(torch.exp(p[1] - base)[..., None] * p[0] for p in kept)
            store(part, (answer, whole), out, lse)


class StaleLengths:
    """Takes the lengths once, when it plans."""

    capabilities = Capabilities(deterministic=True)

    def plan(self, batch: VerifyBatch) -> list[int]:
        return list(batch.prefix_list)

    def run(self, batch: VerifyBatch, plan: Any, out: torch.Tensor, lse: torch.Tensor) -> None:
        for part in parts(batch):
            part.prefix = part.prefix[: plan[part.request]]
            store(part, attend(part), out, lse)


@declare(deterministic=True)
def raises(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    raise ValueError("this kernel takes 64 heads")


@declare(deterministic=True)
def resizes(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    right(batch, out, lse)
    out.resize_(out.shape[0], out.shape[1] * out.shape[2])


@declare(deterministic=True)
def hangs(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    time.sleep(3600)


@declare(deterministic=True)
def crashes(batch: VerifyBatch, out: torch.Tensor, lse: torch.Tensor) -> None:
    if batch.page_size > 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    right(batch, out, lse)


def wrong_signature(batch: VerifyBatch) -> None:
    """Takes no outputs."""


not_a_kernel = 3

# name: (kernel, the check that must catch it, words of its likely reason)
HOSTILE: dict[str, tuple[Any, str, str]] = {
    "zeros": (zeros, "oracle", "writes zeros"),
    "untouched": (untouched, "written", ""),
    "returns": (returns, "written", ""),
    "sibling leak": (mistaken(_siblings), "oracle", "sibling"),
    "depth-based mask": (mistaken(_depth), "oracle", "depth"),
    "causal instead of tree": (mistaken(_causal), "oracle", "causal|every"),
    "non-ancestor seen": (mistaken(_causal), "non-ancestor", "not its ancestor"),
    "mask of the wrong request": (wrong_request_mask, "oracle", "wrong request|see"),
    "32-bit mask words": (mistaken(_words32), "oracle", "32-bit|see"),
    "one mask word": (mistaken(_one_word), "oracle", "word|see"),
    "itself unseen": (mistaken(_no_self), "oracle", "itself"),
    "tree mask on the prefix": (mistaken(_mask_on_prefix), "oracle", ""),
    "last tile skipped": (mistaken(_last_tile), "oracle", "last tile|last token|prefix"),
    "first token dropped": (mistaken(_first_token), "oracle", "first token|prefix"),
    "split dropped": (mistaken(_split_dropped), "oracle", "split|see"),
    "page tail read": (
        mistaken(_page_tail),
        "oracle",
        "past the end of a request's last page|its page",
    ),
    "unused page id read": (mistaken(_next_page), "oracle", ""),
    "page of nobody read": (mistaken(_spare_page), "oracle", "no request owns"),
    "pages taken as contiguous": (mistaken(_contiguous), "oracle", ""),
    "page size taken as 16": (mistaken(_page_16), "page-size", ""),
    "wrong softmax scale": (mistaken(_no_mscale), "oracle", "mscale"),
    "rope part ignored": (mistaken(_no_rope), "oracle", "rope"),
    "wrong head": (mistaken(_wrong_head), "oracle", "belongs to"),
    "unweighted merge": (mistaken_answer(_unweighted_merge), "oracle", ""),
    "fp16 accumulate": (mistaken_answer(_fp16_accumulate), "oracle", ""),
    "NaN from an empty row": (mistaken_answer(_empty_nan), "empty", "0 / 0"),
    "finite lse of an empty row": (mistaken_answer(_no_empty_lse), "empty", ""),
    "value dims shifted": (mistaken_answer(_values_shifted), "oracle", "value dims"),
    "lse in log2": (mistaken_answer(_log2), "lse", "log2"),
    "batch changes a request": (batch_normalised, "batch-alone", ""),
    "padding changes a request": (tail_rows_seen, "padding", ""),
    "input written": (writes_input, "inputs-untouched", ""),
    "nondeterministic": (nondeterministic, "deterministic", ""),
    "32-bit offset": (int32_offset, "high-slots", "32-bit offset"),
    "allocation in run": (Allocates(), "no-allocation", ""),
    "stale workspace": (Stale(), "plan-reuse", ""),
    "stale lengths": (StaleLengths(), "plan-reuse", ""),
    "raises": (raises, "oracle", "this kernel takes 64 heads"),
    "output resized": (resizes, "oracle", "must write in place"),
}
