"""SGLang's cumulative figures, for a server without metrics: `/v1/loads`, `/server_info`."""

from __future__ import annotations

from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import figure, member
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.acceptance.server_info import from_server_info
from verify_attn.live.reply import Fetch, Unreachable

LOADS = "/v1/loads?include=spec"


def from_loads(loads: Any) -> Acceptance | Absent:
    """The mean out of ``/v1/loads?include=spec``: ``speculative.accept_length``, a rank each.

    Bonus included, since the start or the last flush.  Ranks carry no weights: where they differ
    there is no mean.
    """
    if isinstance(loads, dict):
        loads = loads.get("loads", [loads])
    means = [
        mean
        for load in (loads if isinstance(loads, list) else [])
        if (mean := figure(member(load, "speculative", "accept_length"))) is not None and mean >= 1
    ]
    if not means:
        return Absent("/v1/loads has no speculative.accept_length")
    if len(set(means)) > 1:
        shown = ", ".join(f"{mean:g}" for mean in means)
        return Absent(f"/v1/loads: ranks report {shown} tokens a step, without weights")
    return Acceptance(
        "SGLang /v1/loads",
        "since start",
        mean_committed=means[0],
        notes=("cumulative since the start or the last flush of an idle server",),
    )


async def from_sglang_routes(fetch: Fetch) -> Acceptance | Absent:
    """The first of the two routes that gives a mean; else why neither does."""
    why = []
    for path, read in ((LOADS, from_loads), ("/server_info", from_server_info)):
        try:
            reply = await fetch("GET", path, timeout_s=10.0)
        except Unreachable as error:
            why.append(f"{path}: {error}")
            continue
        found = read(reply.json()) if reply.ok else Absent(f"{path}: HTTP {reply.status}")
        if isinstance(found, Acceptance):
            return found
        why.append(found.reason)
    return Absent("; ".join(why))
