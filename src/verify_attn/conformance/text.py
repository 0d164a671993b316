"""What a failure prints."""

from __future__ import annotations

from verify_attn.conformance.compare import Mismatch
from verify_attn.conformance.explain import likely_reasons, locate, path_of, slots
from verify_attn.conformance.trial import CheckFailed, Trial
from verify_attn.problem import VerifyBatch

DIMS = {"out": ("node", "head", "dim"), "lse": ("node", "head")}


MOST_REASONS = 3


def describe(
    trial: Trial, check: str, failure: CheckFailed, among: list[str] | None = None
) -> tuple[str, list[str]]:
    """Everything that is known about a failed check, a few lines of text, and its likely reasons.

    ``among``: reasons that fitted a larger case; one of them is preferred, since a case that has
    been shrunk fits many.
    """
    lines = [f"{check}: {failure.summary}"]
    mismatch, batch = failure.mismatch, failure.batch or trial.batch
    if mismatch:
        lines.append(_amount(mismatch))
        lines.append(_first(mismatch, batch))
        if mismatch.name in DIMS:
            lines.append(_where(batch, mismatch.index[0]))
    reasons = likely_reasons(trial, failure)
    reasons = [r for r in reasons if r.text in (among or [])] or reasons
    if reasons:
        lines.append(f"likely: {'; or: '.join(r.text for r in reasons[:MOST_REASONS])}")
        positions = reasons[0].positions
        if positions and mismatch:
            request, _ = locate(batch, mismatch.index[0])
            at = slots(batch, request, list(positions))
            named = [
                f"{p} ({'node_kv' if s is None else f'slot {s}'})"
                for p, s in zip(positions, at, strict=True)
            ]
            lines.append(f"        token positions concerned: {', '.join(named)}")
    lines.append(f"case:   {trial.case.to_json()}")
    return "\n".join(lines), [r.text for r in reasons]


def _amount(mismatch: Mismatch) -> str:
    share = mismatch.count / mismatch.total
    text = f"off:    {mismatch.count:,} of {mismatch.total:,} elements of {mismatch.name}"
    text += f" ({share:.1%})"
    if mismatch.worst == float("inf"):
        return f"{text}, some NaN, infinite or not exactly 0"
    if mismatch.worst is not None:
        return f"{text}, the worst by {mismatch.worst:.3g} times its bound"
    return text


def _first(mismatch: Mismatch, batch: VerifyBatch) -> str:
    index = list(mismatch.index)
    if mismatch.name in DIMS:
        request, index[0] = locate(batch, index[0])
        place = f"request {request}, " + ", ".join(
            f"{name} {i}" for name, i in zip(DIMS[mismatch.name], index, strict=False)
        )
    else:
        place = f"{mismatch.name}{mismatch.index}"
    values = f"{mismatch.got:.6g}, expected {mismatch.want:.6g}"
    if mismatch.bound is not None:
        values += f" within {mismatch.bound:.2g}"
    if mismatch.bound is None and mismatch.got != mismatch.got and mismatch.want != mismatch.want:
        values = "not written"
    return f"first:  {place}: {values}"


def _where(batch: VerifyBatch, row: int) -> str:
    request, node = locate(batch, row)
    path = path_of(batch, request, node)
    shown = " -> ".join(map(str, path if len(path) <= 12 else [*path[:5], "...", *path[-5:]]))
    return (
        f"where:  node {node} of {batch.nodes(request)} sees {batch.prefix_list[request]} prefix "
        f"tokens and nodes {shown or 'none (padding)'}; page_size {batch.page_size}"
    )
