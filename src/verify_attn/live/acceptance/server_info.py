"""Acceptance out of SGLang's ``/server_info`` (``/get_server_info`` before 2026).

``internal_states`` has one entry a data-parallel rank.  Each holds ``avg_spec_accept_length``,
bonus included, since the server started or was flushed while idle (which clears it); it folds in
at 40-step boundaries, so after a flush and a short run the key is not there (sglang#29329).
"""

from __future__ import annotations

from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import figure, first_count, member, weighted_mean
from verify_attn.live.acceptance.model import Acceptance


def from_server_info(info: Any) -> Acceptance | Absent:
    """The mean over the ranks that ran, weighted by their verify steps (sglang#34743).

    Without weights, ranks that differ have no mean: `Absent`.
    """
    states = member(info, "internal_states")
    if not isinstance(states, list):
        return Absent("no internal_states: not SGLang's /server_info")
    means: list[tuple[float, int | None]] = []
    for state in states:
        mean = figure(member(state, "avg_spec_accept_length"))
        if mean is not None and mean >= 1:
            means.append((mean, first_count(state, "spec_verify_ct", "spec_total_num_forward_ct")))
    if not means:
        return Absent(
            "no avg_spec_accept_length in internal_states: speculation is off, or fewer steps ran "
            "than the server folds in at a time (40) since its counters were cleared"
        )
    weights = [weight for _, weight in means if weight]
    if len({mean for mean, _ in means}) == 1:
        overall: float | None = means[0][0]
    elif len(weights) == len(means):
        overall = weighted_mean([(mean, float(weight or 0)) for mean, weight in means])
    else:
        shown = ", ".join(f"{mean:g}" for mean, _ in means)
        return Absent(
            f"{len(means)} data-parallel ranks report {shown} tokens a step and not how many steps "
            "each made, so they have no mean"
        )
    if overall is None:
        return Absent("the ranks of internal_states carry no weight")
    return Acceptance(
        "SGLang /server_info",
        "since start",
        mean_committed=overall,
        notes=("cumulative since the start or the last flush of an idle server",),
    )
