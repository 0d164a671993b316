"""What a server says about its own times and its prefix cache, on the events of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import count, figure, first_count, member


@dataclass(frozen=True)
class ServerTimings:
    """The server's clock, never the client's; a figure it did not give is None."""

    source: str
    # Computing the prompt, the cached part of it left out.
    prefill_ms: float | None
    # First token to last: llama.cpp's covers one token less than it counts.
    decode_ms: float | None
    # Waiting for a turn.
    queue_ms: float | None = None
    # Prompt tokens computed, the cached ones left out.
    prefill_tokens: int | None = None
    # Tokens generated, the prefill's one included.
    decoded_tokens: int | None = None
    # Prompt tokens taken from the prefix cache.
    cached_tokens: int | None = None


def server_timings(events: Sequence[Any]) -> ServerTimings | Absent:
    """The last timings among the events of one answer.

    llama.cpp: ``timings`` (tools/server/README.md).  vLLM: ``metrics`` with
    ``--enable-per-request-metrics``, whose time to first token starts when the request is
    scheduled and not when it arrives.
    """
    for event in reversed(events):
        timings = member(event, "timings")
        prefill, decode = (
            figure(member(timings, "prompt_ms")),
            figure(member(timings, "predicted_ms")),
        )
        if prefill is not None or decode is not None:
            return ServerTimings(
                "llama.cpp timings",
                prefill,
                decode,
                prefill_tokens=count(member(timings, "prompt_n")),
                decoded_tokens=count(member(timings, "predicted_n")),
                cached_tokens=count(member(timings, "cache_n")),
            )
        metrics = member(event, "metrics")
        prefill, decode = (
            figure(member(metrics, "time_to_first_token_ms")),
            figure(member(metrics, "generation_time_ms")),
        )
        if prefill is not None or decode is not None:
            return ServerTimings(
                "vLLM metrics",
                prefill,
                decode,
                queue_ms=figure(member(metrics, "queue_time_ms")),
                decoded_tokens=count(member(event, "usage", "completion_tokens")),
            )
    return Absent("the answer's events hold no timings of the server")


def cached_tokens(events: Sequence[Any]) -> int | Absent:
    """Prompt tokens that came from the prefix cache; a cold point must have about 0.

    ``usage.prompt_tokens_details.cached_tokens`` (vLLM with ``--enable-prompt-tokens-details``,
    SGLang with ``--enable-cache-report``), llama.cpp's ``timings.cache_n``, SGLang's
    ``sglext.cached_tokens_details`` and ``meta_info.cached_tokens``.
    """
    for event in reversed(events):
        for holder, name in (
            (member(event, "usage", "prompt_tokens_details"), "cached_tokens"),
            (member(event, "timings"), "cache_n"),
            (member(event, "meta_info"), "cached_tokens"),
        ):
            known = first_count(holder, name)
            if known is not None:
                return known
        tiers = _tiers(event)
        if tiers is not None:
            return tiers
    return Absent(
        "the server does not say how many prompt tokens came from its cache (vLLM: "
        "--enable-prompt-tokens-details, SGLang: --enable-cache-report)"
    )


def filled_tokens(events: Sequence[Any]) -> int:
    """Prompt tokens whose KV `verify-attn serve --fill-prompts` did not compute; 0 elsewhere."""
    details = (member(event, "usage", "prompt_tokens_details") for event in reversed(events))
    return next((n for d in details if (n := first_count(d, "filled_tokens")) is not None), 0)


def _tiers(event: Any) -> int | None:
    """SGLang's tokens by where they were kept: device, host, storage."""
    details = member(event, "sglext", "cached_tokens_details")
    found = [count(member(details, tier)) for tier in ("device", "host", "storage")]
    known = [tokens for tokens in found if tokens is not None]
    return count(sum(known)) if known else None
