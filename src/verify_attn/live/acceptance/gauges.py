"""Acceptance of engines that show a gauge: SGLang and TensorRT-LLM.

A gauge holds the server's last log interval, whichever request that was.  It is stale on an idle
server, and 0 means that there is no data (SGLang, metrics_collector.py: by default the 40 decode
steps before the last log line).
"""

from __future__ import annotations

from collections.abc import Collection

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.delta import delta
from verify_attn.live.acceptance.figures import count
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.acceptance.prometheus import Samples

_MEAN = "sglang:spec_accept_length"
_VERIFY_CALLS = "sglang:spec_verify_calls_total"
_GENERATED = "sglang:generation_tokens_total"
_REQUESTS = "sglang:num_requests_total"

_TRT_MEAN = "trtllm_spec_decode_acceptance_length"
_TRT_ACCEPTED = "trtllm_spec_decode_num_accepted_tokens"
_TRT_PROPOSED = "trtllm_spec_decode_num_draft_tokens"


def sglang(before: Samples, after: Samples) -> Acceptance | Absent:
    """From the verify-call counter where there is one, else from the gauge."""
    counted = _verify_calls(before, after)
    if isinstance(counted, Acceptance):
        return counted
    if counted is not None and not counted.reason.startswith("no counter"):
        return counted
    means = after.series(_MEAN)
    if not means:
        return Absent("no speculation counters among SGLang's metrics")
    generated = delta(before, after, _GENERATED)
    if isinstance(generated, Absent):
        if generated.reason.startswith("restarted"):
            return generated
    elif generated == 0:
        return Absent(
            f"{_MEAN} is stale: no token was generated between the two readings, so it is about "
            "an earlier request"
        )
    mean = _one_mean(means.values())
    if isinstance(mean, Absent):
        return mean
    notes = ["the last log interval of the server (40 decode steps by default), not this request"]
    if before.series(_MEAN) == means:
        notes.append("unchanged between the two readings: it may be older than this request")
    return Acceptance(
        "SGLang /metrics gauge", "log interval", mean_committed=mean, notes=tuple(notes)
    )


def _one_mean(values: Collection[float]) -> float | Absent:
    """The mean of the ranks that have data; several that differ have no known weights.

    Tensor-parallel ranks repeat one value.  Data-parallel ranks differ, and the mean over them is
    not the mean over their steps (sglang#34743).
    """
    # 0 is "no data" and no member of a mean; below 1 no step can be.
    found = {value for value in values if value >= 1}
    if not found:
        return Absent(f"{_MEAN} has no data (0): fewer steps than one log interval, or no drafts")
    if len(found) > 1:
        shown = ", ".join(f"{value:g}" for value in sorted(found))
        return Absent(
            f"{_MEAN} differs between ranks ({shown}) and nothing says how many steps each made"
        )
    return found.pop()


def _verify_calls(before: Samples, after: Samples) -> Acceptance | Absent | None:
    """Steps from the newer counter, drafts from the tokens generated meanwhile.

    Each request's first token comes from its prefill, so it is subtracted.  With one request at a
    time a call is a step of it; whether a call of a batch counts once or once a request is not
    documented, which `crosscheck` guards by refusing foreign traffic.
    """
    calls = delta(before, after, _VERIFY_CALLS)
    if isinstance(calls, Absent):
        return calls
    if calls == 0:
        return Absent(f"no drafts: {_VERIFY_CALLS} did not move between the two readings")
    generated, requests = delta(before, after, _GENERATED), delta(before, after, _REQUESTS)
    if isinstance(generated, Absent) or isinstance(requests, Absent):
        return None
    steps, accepted = count(calls), count(generated - requests - calls)
    if not steps or accepted is None:
        return None
    return Acceptance(
        "SGLang /metrics counters",
        "interval",
        steps=steps,
        accepted_drafts=accepted,
        notes=(
            "accepted drafts = tokens generated - requests - verify calls; a last step that a stop "
            "cut short counts what was delivered",
        ),
    )


def tensorrt_llm(before: Samples, after: Samples) -> Acceptance | Absent:
    """TensorRT-LLM's gauge of tokens a step, with its two counters where they are."""
    values = {value for value in after.series(_TRT_MEAN).values() if value >= 1}
    accepted = delta(before, after, _TRT_ACCEPTED)
    proposed = delta(before, after, _TRT_PROPOSED)
    for gain in (accepted, proposed):
        if isinstance(gain, Absent) and gain.reason.startswith("restarted"):
            return gain
    if not after.series(_TRT_MEAN):
        return Absent("no speculation counters among TensorRT-LLM's metrics")
    if not values:
        return Absent(f"{_TRT_MEAN} has no data (0)")
    if len(values) > 1:
        return Absent(f"{_TRT_MEAN} differs between {len(values)} series, with no weights")
    if proposed == 0:
        return Absent(f"{_TRT_MEAN} is stale: nothing was drafted between the two readings")
    return Acceptance(
        "TensorRT-LLM /metrics gauge",
        "log interval",
        accepted_drafts=None if isinstance(accepted, Absent) else count(accepted),
        proposed_drafts=None if isinstance(proposed, Absent) else count(proposed),
        mean_committed=values.pop(),
        notes=("the engine's last statistics, not this request",),
    )
