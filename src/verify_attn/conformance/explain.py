"""What a wrong answer looks like: likely reasons, found by trying them.

The first bad row is computed again under each common mistake; a mistake whose result equals the
kernel's, to the tolerance, is named.  NaN is traced by cleaning one kind of poison at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from verify_attn.conformance.rerun import kept_reason, poison_reason, stride_reason
from verify_attn.conformance.tolerance import ROUNDOFF
from verify_attn.conformance.trial import CheckFailed, Trial, is_poison
from verify_attn.problem import VerifyBatch
from verify_attn.reference import Reference, request_rows, visible_nodes

TILES = (16, 32, 64, 128, 256)
SPLITS = (2, 3, 4, 6, 8, 16, 32)
SINGLE_KEYS = 4096  # up to this many tokens every single key is tried


@dataclass(frozen=True)
class Row:
    """One output row with what it takes to compute it again, in float64 on the CPU."""

    request: int
    node: int
    head: int
    q: torch.Tensor  # [D]
    keys: torch.Tensor  # [p + n, D], prefix then nodes
    visible: torch.Tensor  # [p + n] bool
    prefix: int
    scale: float
    latent: int

    def answer(
        self, visible: torch.Tensor | None = None, q: torch.Tensor | None = None, scale: float = 0
    ) -> torch.Tensor:
        """The row's output under another visible set, query or softmax scale."""
        seen = self.visible if visible is None else visible
        return self.over(self.keys[seen], q, scale)

    def over(
        self, keys: torch.Tensor, q: torch.Tensor | None = None, scale: float = 0
    ) -> torch.Tensor:
        """The row's output over other keys [tokens, D]."""
        if not len(keys):
            return torch.zeros(self.latent, dtype=torch.float64)
        scores = (scale or self.scale) * (keys @ (self.q if q is None else q))
        return torch.softmax(scores, 0) @ keys[:, : self.latent]


def locate(batch: VerifyBatch, row: int) -> tuple[int, int]:
    """(request, node) of an output row."""
    request = sum(1 for offset in batch.offset_list[1:] if offset <= row)
    return request, row - batch.offset_list[request]


def path_of(batch: VerifyBatch, request: int, node: int) -> list[int]:
    """The nodes that a node sees: its ancestors and itself."""
    seen = visible_nodes(batch, request)[node]
    return [int(i) for i in seen.nonzero().flatten()]


def slots(batch: VerifyBatch, request: int, positions: list[int]) -> list[int | None]:
    """Pool slots of token positions; None for nodes that lie apart from the pool."""
    stored, page_size = batch.stored_tokens(request), batch.page_size
    table = batch.page_table[request]
    return [
        int(table[p // page_size]) * page_size + p % page_size if p < stored else None
        for p in positions
    ]


@dataclass(frozen=True)
class Reason:
    """A mistake that explains the answer, and the token positions whose weight it changes."""

    text: str
    positions: tuple[int, ...] = ()


def likely_reasons(trial: Trial, failure: CheckFailed) -> list[Reason]:
    """The mistakes whose result the kernel gave; several may fit a small case, or none."""
    if failure.reason:
        return [Reason(failure.reason)]
    mismatch, batch, output = failure.mismatch, failure.batch, failure.output
    if mismatch is None or batch is None or output is None or failure.reference is None:
        return []
    row, head = mismatch.index[0], mismatch.index[1]
    if mismatch.name == "lse":
        return _lse_reasons(mismatch.got, mismatch.want)
    if is_poison(output.out[row, head]).all():
        return [Reason("the row was not written: what stands there stood there before the run")]
    found = kept_reason(trial, batch, output, failure.reference)
    found = found or stride_reason(trial, batch, output, failure.reference)
    if found:
        return [Reason(found)]
    if not math.isfinite(mismatch.got):
        return [Reason(poison_reason(trial, batch))]
    got = output.out[row, head].double().cpu()
    known = _row(batch, row, head)
    want = failure.reference.out[row, head].double().cpu()
    bound = 8 * ROUNDOFF[output.out.dtype] + 1e-5
    fits: dict[str, Reason] = {}
    for reason, answer in _mistakes(batch, known, failure.reference, row):
        size = float(answer.square().mean().sqrt())
        if _near(got, answer, bound * size) and not _near(want, answer, bound * size):
            fits.setdefault(reason.text, reason)
    return list(fits.values()) or _single_key(known, got, bound)


def _near(got: torch.Tensor, answer: torch.Tensor, bound: float) -> bool:
    return bool(((got - answer).abs() <= bound + 0.01 * answer.abs()).all())


def _row(batch: VerifyBatch, row: int, head: int) -> Row:
    request, node = locate(batch, row)
    cpu = torch.device("cpu")
    prefix, nodes = request_rows(batch, request, torch.float64, cpu)
    seen = visible_nodes(batch, request)[node].cpu()
    return Row(
        request, node, head,
        batch.q[row, head].double().cpu(),
        torch.cat([prefix, nodes]),
        torch.cat([torch.ones(len(prefix), dtype=torch.bool), seen]),
        len(prefix), batch.softmax_scale, batch.geometry.latent_dim,
    )  # fmt: skip


def _mistakes(
    batch: VerifyBatch, row: Row, reference: Reference, at: int
) -> Iterator[tuple[Reason, torch.Tensor]]:
    yield Reason("writes zeros"), torch.zeros(row.latent, dtype=torch.float64)
    yield from _mask_mistakes(batch, row)
    yield from _prefix_mistakes(batch, row)
    yield from _lost_ranges(row)
    yield from _arithmetic_mistakes(row)
    same = reference.out.double().cpu()
    for other in range(len(same)):
        for head in range(same.shape[1]):
            if (other, head) != (at, row.head):
                request, node = locate(batch, other)
                text = f"holds what belongs to request {request}, node {node}, head {head}"
                yield Reason(text), same[other, head]


def _mask_mistakes(batch: VerifyBatch, row: Row) -> Iterator[tuple[Reason, torch.Tensor]]:
    """Other sets of nodes than the ancestors."""
    tree = visible_nodes(batch, row.request).cpu()
    nodes, own = len(tree), tree[row.node]
    number, depth = torch.arange(nodes), tree.sum(1)
    parent_sees = own & (number != row.node)
    siblings = (tree & (number[None, :] != number[:, None]) == parent_sees[None, :]).all(1)
    sets = {
        "sibling leak: sees its siblings too": own | siblings,
        "causal instead of tree: sees every earlier node": number <= row.node,
        "ignores the tree mask: sees every node of the request": number >= 0,
        "ignores the tree: sees the prefix alone": number < 0,
        "mask by depth: sees every node above it, not only its ancestors": (depth < depth[row.node])
        | (number == row.node),
        "mask by depth: sees every node at its depth or above": depth <= depth[row.node],
        "does not see itself": parent_sees,
        "sees itself and the prefix, no ancestor": number == row.node,
        "32-bit mask words: nodes from 32 on are lost": own & (number % 64 < 32),
        "one mask word only: nodes from 64 on are lost": own & (number < 64),
        "one mask word only: node j is taken for j % 64": own[number % 64],
        "mask transposed: sees its descendants": tree[:, row.node],
    }
    for text, seen in sets.items():
        yield _visible_reason(text, row, torch.cat([row.visible[: row.prefix], seen]))
    for request in range(batch.requests):
        if request != row.request and row.node < batch.nodes(request):
            other = visible_nodes(batch, request)[row.node].cpu()
            seen = torch.zeros(nodes, dtype=torch.bool)
            seen[: min(nodes, len(other))] = other[:nodes]
            visible = torch.cat([row.visible[: row.prefix], seen])
            yield _visible_reason(f"mask of the wrong request ({request})", row, visible)


def _prefix_mistakes(batch: VerifyBatch, row: Row) -> Iterator[tuple[Reason, torch.Tensor]]:
    """Another prefix than the request's own."""
    own = row.keys[row.visible]
    more = min(-row.prefix % batch.page_size, len(row.keys) - row.prefix)
    if more and batch.node_kv is None:
        text = "reads past the end of the prefix, to its page's end, into the request's own nodes"
        yield Reason(text), row.over(torch.cat([own, row.keys[row.prefix : row.prefix + more]]))
    for request in range(batch.requests):
        if request != row.request and row.prefix:
            other = request_rows(batch, request, torch.float64, torch.device("cpu"))[0]
            keys = torch.cat([other[: row.prefix], own[row.prefix :]])
            yield Reason(f"reads the prefix of the wrong request ({request})"), row.over(keys)


def _lost_ranges(row: Row) -> Iterator[tuple[Reason, torch.Tensor]]:
    """Tokens that are left out: tails, tiles, splits."""
    total = len(row.keys)

    def without(start: int, end: int) -> torch.Tensor:
        seen = row.visible.clone()
        seen[start:end] = False
        return seen

    yield _visible_reason("ignores the prefix", row, without(0, row.prefix))
    for end, what in ((row.prefix, "of the prefix"), (total, "")):
        if end:
            yield _visible_reason(
                f"drops the last token {what}".rstrip(), row, without(end - 1, end)
            )
            for tile in TILES:
                start = (end - 1) // tile * tile
                text = f"skips the last tile {what} (tiles of {tile})".replace("  ", " ")
                yield _visible_reason(text, row, without(start, end))
    if row.prefix:
        yield _visible_reason("drops the first token", row, without(0, 1))
    for count in SPLITS:
        for length in {row.prefix, total} - {0}:
            share = -(-length // count)
            for split in range(count):
                seen = without(split * share, min((split + 1) * share, length))
                yield _visible_reason(f"drops a split ({split} of {count})", row, seen)
            parts = []
            for split in range(count):
                part = torch.zeros_like(row.visible)
                part[split * share : min((split + 1) * share, length)] = True
                part[length:] = split == count - 1
                if (part & row.visible).any():
                    parts.append(row.answer(part & row.visible))
            if len(parts) > 1:
                text = f"merges {count} splits without their weights"
                yield Reason(text), torch.stack(parts).mean(0)


def _visible_reason(text: str, row: Row, seen: torch.Tensor) -> tuple[Reason, torch.Tensor]:
    changed = (seen ^ row.visible).nonzero().flatten()[:8]
    return Reason(text, tuple(int(p) for p in changed)), row.answer(seen)


def _arithmetic_mistakes(row: Row) -> Iterator[tuple[Reason, torch.Tensor]]:
    """Wrong scale, wrong part of the key, wrong part of the value."""
    wide = len(row.q)
    scales = {f"{wide} ** -0.5": wide**-0.5, "1": 1.0}
    for factor in (40.0, 64.0):
        mscale = 0.1 * math.log(factor) + 1.0
        scales[f"without YaRN's mscale (factor {factor:g})"] = row.scale / mscale**2
        scales[f"with YaRN's mscale once (factor {factor:g})"] = row.scale / mscale
    scales["in base 2 without log2(e)"] = row.scale * math.log(2.0)
    scales["in base e with log2(e)"] = row.scale / math.log(2.0)
    for text, scale in scales.items():
        yield Reason(f"wrong softmax scale: {text}"), row.answer(scale=scale)
    no_rope, no_latent = row.q.clone(), row.q.clone()
    no_rope[row.latent :] = 0
    no_latent[: row.latent] = 0
    yield Reason("ignores the rope part of the key"), row.answer(q=no_rope)
    yield Reason("ignores the latent part of the key"), row.answer(q=no_latent)
    k = row.keys[row.visible]
    if len(k):
        p = torch.softmax(row.scale * (k @ row.q), 0)
        for shift in (1, wide - row.latent):
            text = f"value dims shifted by {shift}"
            yield Reason(text), p @ k[:, shift : shift + row.latent]
        yield Reason("value dims rotated by 1"), (p @ k[:, : row.latent]).roll(1)
        yield Reason("value dims rotated by 1"), (p @ k[:, : row.latent]).roll(-1)


def _single_key(row: Row, got: torch.Tensor, bound: float) -> list[Reason]:
    """One key too many or too few."""
    if len(row.keys) > SINGLE_KEYS:
        return []
    for position in range(len(row.keys)):
        seen = row.visible.clone()
        seen[position] = ~seen[position]
        answer = row.answer(seen)
        if _near(got, answer, bound * float(answer.square().mean().sqrt())):
            what = "does not see" if row.visible[position] else "also sees"
            return [Reason(f"{what} token position {position}", (position,))]
    return []


def _lse_reasons(got: float, want: float) -> list[Reason]:
    for text, factor in (
        ("lse in log2, natural log is asked for", 1 / math.log(2.0)),
        ("lse multiplied by ln 2 though natural already", math.log(2.0)),
    ):
        if math.isclose(got, want * factor, rel_tol=1e-3, abs_tol=1e-3):
            return [Reason(text)]
    return []
