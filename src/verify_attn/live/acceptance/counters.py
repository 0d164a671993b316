"""Acceptance out of two scrapes of ``/metrics``, before and after a request.

vLLM (vllm/v1/spec_decode/metrics.py) and llama.cpp (tools/server/README.md) count drafts and so
give an exact interval.  The others have gauges: see `gauges`.
"""

from __future__ import annotations

from itertools import pairwise

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.delta import delta, deltas_by
from verify_attn.live.acceptance.figures import count
from verify_attn.live.acceptance.gauges import sglang, tensorrt_llm
from verify_attn.live.acceptance.model import Acceptance, NothingDrafted
from verify_attn.live.acceptance.prometheus import Samples

# These engines use these names behind their prefix; one "draft" is one verify step.
_DRAFTS = "spec_decode_num_drafts"
_PROPOSED = "spec_decode_num_draft_tokens"
_ACCEPTED = "spec_decode_num_accepted_tokens"
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
_COUNTING = {"vllm:": "vLLM", "llamacpp:": "llama.cpp", "verify_attn:": "verify-attn"}

# Counters are doubles on the wire; a count that is off by more was printed with too few digits.
_WHOLE = 1e-6


def from_counters(before: Samples | Absent, after: Samples | Absent) -> Acceptance | Absent:
    """The acceptance between two scrapes, of whichever engine the names belong to.

    Three absences are told apart by their reasons: "metrics unavailable: ..." (nothing was
    read), "restarted: ..." and "no speculation counters ...".
    """
    if isinstance(before, Absent):
        return before
    if isinstance(after, Absent):
        return after
    for prefix, engine in _COUNTING.items():
        if after.series(f"{prefix}{_DRAFTS}") or before.series(f"{prefix}{_DRAFTS}"):
            return _counted(before, after, prefix, engine)
    if after.has_prefix("sglang:"):
        return sglang(before, after)
    if after.has_prefix("trtllm_"):
        return tensorrt_llm(before, after)
    for prefix, engine in _COUNTING.items():
        if after.has_prefix(prefix):
            return Absent(
                f"no speculation counters among {engine}'s metrics: speculation is off, or the "
                "build does not count it"
            )
    return Absent("no speculation counters of an engine that is known here")


def cached_between(before: Samples | Absent, after: Samples | Absent) -> int | Absent:
    """Prompt tokens out of the prefix cache between two scrapes, all requests together.

    vLLM's, or this project's own server's.
    """
    if isinstance(before, Absent):
        return before
    if isinstance(after, Absent):
        return after
    own = after.has_prefix("verify_attn:")
    gained = delta(before, after, f"{'verify_attn' if own else 'vllm'}:prefix_cache_hits_total")
    if isinstance(gained, Absent):
        return gained
    known = _whole(gained)
    return Absent(f"prefix_cache_hits gained {gained!r}") if known is None else known


def _counted(before: Samples, after: Samples, prefix: str, engine: str) -> Acceptance | Absent:
    totals = []
    for name in (_DRAFTS, _ACCEPTED, _PROPOSED):
        gain = delta(before, after, f"{prefix}{name}")
        if isinstance(gain, Absent):
            return gain
        total = _whole(gain)
        if total is None:
            return Absent(f"{prefix}{name} gained {gain!r}, which is no whole number of tokens")
        totals.append(total)
    steps, accepted, proposed = totals
    # verify-attn counts the steps of a drafter that proposes nothing, too.
    if accepted == 0 and 0 in (steps, proposed):
        return NothingDrafted(
            f"no drafts between the two readings of {engine}'s counters: speculation is off, or "
            "nothing was drafted"
        )
    positions, note = _positions(before, after, f"{prefix}{_PER_POSITION}")
    return Acceptance(
        source=f"{engine} /metrics",
        scope="interval",
        steps=steps,
        accepted_drafts=accepted,
        proposed_drafts=proposed,
        histogram=_histogram(steps, positions) if positions else None,
        accepted_per_position=(
            tuple(at / steps for at in positions) if positions and steps else None
        ),
        notes=(note,) if note else (),
    )


def _positions(before: Samples, after: Samples, name: str) -> tuple[tuple[int, ...] | None, str]:
    """Steps that accepted at least k + 1 drafts, by k; None and why where that is unknown."""
    gains = deltas_by(before, after, name, "position")
    if isinstance(gains, Absent) or not gains:
        # llama.cpp shows no position before the first draft that it accepts.
        return None, ""
    # The labels must be exactly 0..n-1: a list as long as the largest label says could be any
    # length, and a gap filled with 0 would be a figure that nobody measured.
    found = [_whole(gains[at]) for at in (str(k) for k in range(len(gains))) if at in gains]
    kept = tuple(at for at in found if at is not None)
    if len(kept) != len(gains):
        return None, f"the positions of {name} are not 0 to {len(gains) - 1}, so they are left out"
    return kept, ""


def _histogram(steps: int, positions: tuple[int, ...]) -> tuple[int, ...] | None:
    """Steps by drafts accepted, from steps that accepted at least so many.

    None where that would be negative; `Acceptance.problems` then names the positions that grow.
    """
    reached = (steps, *positions, 0)
    found = tuple(more - fewer for more, fewer in pairwise(reached))
    return None if min(found) < 0 else found


def _whole(value: float) -> int | None:
    near = count(value if abs(value) > 2**53 else float(round(value)))
    return near if near is not None and abs(value - near) <= _WHOLE else None
