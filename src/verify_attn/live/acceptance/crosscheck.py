"""Did somebody else use the server meanwhile?  Its counters against what we asked for.

Deltas of counters belong to every request, and another one also slows ours down, so a point with
foreign traffic says nothing about the server alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.delta import delta
from verify_attn.live.acceptance.figures import figure
from verify_attn.live.acceptance.prometheus import Samples

# Counters and the client end at different moments: a scrape may miss the last steps of our
# request, and catch in its place the last steps of the one before (a warm-up, a probe).  That is
# at most a step or two, and no step commits more tokens than this.  2 % more for requests that
# were aborted and run on for a few steps.  Fewer tokens than ours are lag and no finding.
TOKEN_SLACK, SLACK_SHARE = 32, 0.02
# vLLM counts a request after its last token is out, so the one before ours may count as ours.
REQUEST_SLACK = 1
STEP_SLACK = 4

# What is compared -> the counter of each engine.  llama.cpp's prompt counter leaves cached tokens
# out; ours must then leave them out too, see `Own`.
_COUNTERS = {
    "generated tokens": (
        "vllm:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
        "sglang:generation_tokens_total",
        "verify_attn:generation_tokens_total",
    ),
    "prompt tokens": (
        "vllm:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "verify_attn:prompt_tokens_total",
    ),
    "requests": (
        "vllm:request_success_total",
        "sglang:num_requests_total",
        "trtllm_request_success_total",
        "verify_attn:request_success_total",
    ),
    "verify steps": (
        "vllm:spec_decode_num_drafts_total",
        "llamacpp:spec_decode_num_drafts_total",
        "sglang:spec_verify_calls_total",
        "verify_attn:spec_decode_num_drafts_total",
    ),
}

# Requests the server has at this moment, those in a queue included.
_RUNNING = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    ("verify_attn:num_requests_running", "verify_attn:num_requests_waiting"),
)


@dataclass(frozen=True)
class Own:
    """What we ourselves had the server do between the two scrapes; None where it is not known.

    Probes and warm-ups between them belong in here.
    """

    requests: int | None = None
    completion_tokens: int | None = None
    # The whole prompts: an engine that counts only uncached ones then counts fewer, never more.
    prompt_tokens: int | None = None
    verify_steps: int | None = None


@dataclass(frozen=True)
class Excess:
    """One counter that gained more than we caused."""

    what: str
    counter: str
    gained: float
    own: int
    # The most that lag may add to our own.
    slack: float

    def __str__(self) -> str:
        return f"{self.counter} gained {self.gained:g} {self.what}, ours are {self.own}"


@dataclass(frozen=True)
class ForeignTraffic:
    """Somebody else's requests, with the numbers that show them."""

    excesses: tuple[Excess, ...]

    def __str__(self) -> str:
        return "foreign traffic: " + "; ".join(str(excess) for excess in self.excesses)


def foreign_traffic(
    before: Samples | Absent, after: Samples | Absent, own: Own
) -> ForeignTraffic | Absent | None:
    """None: compared, and nothing foreign seen.  `Absent`: nothing could be compared.

    A foreign request smaller than the slack (`TOKEN_SLACK` tokens) is not seen; one so small does
    not move a figure either.
    """
    if isinstance(before, Absent):
        return before
    if isinstance(after, Absent):
        return after
    ours = {
        "generated tokens": own.completion_tokens,
        "prompt tokens": own.prompt_tokens,
        "requests": own.requests,
        "verify steps": own.verify_steps,
    }
    compared, excesses = 0, []
    for what, names in _COUNTERS.items():
        known = ours[what]
        if known is None:
            continue
        for name in names:
            gained = delta(before, after, name)
            if isinstance(gained, Absent):
                if gained.reason.startswith("restarted"):
                    return gained
                continue
            compared += 1
            slack = _slack(what, known)
            if figure(gained) is not None and gained > known + slack:
                excesses.append(Excess(what, name, gained, known, slack))
    if excesses:
        return ForeignTraffic(tuple(excesses))
    return None if compared else Absent("no counter that our own requests could be held against")


def foreign_running(samples: Samples | Absent, own: int) -> ForeignTraffic | Absent | None:
    """The same from the gauges of one scrape, taken while ``own`` requests of ours are open.

    Gauges lag as well: SGLang sets its own only with a log line, so right after a request of ours
    has ended it may still be counted.  Scrape while ours are open.
    """
    if isinstance(samples, Absent):
        return samples
    compared, excesses = 0, []
    for pair in _RUNNING:
        known = [value for name in pair if (value := samples.sum(name)) is not None]
        if not known:
            continue
        compared += 1
        open_now = figure(sum(known))
        if open_now is not None and open_now > own:
            excesses.append(Excess("open requests", " + ".join(pair), open_now, own, 0))
    if excesses:
        return ForeignTraffic(tuple(excesses))
    return None if compared else Absent("no gauge of open requests")


def own_total(parts: Iterable[Own]) -> Own:
    """The sum; a figure that one part does not know is None, not the sum of the others."""
    listed = list(parts)

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Own(
        total([part.requests for part in listed]),
        total([part.completion_tokens for part in listed]),
        total([part.prompt_tokens for part in listed]),
        total([part.verify_steps for part in listed]),
    )


def _slack(what: str, own: int) -> float:
    if what == "requests":
        return REQUEST_SLACK
    least = STEP_SLACK if what == "verify steps" else TOKEN_SLACK
    return max(least, SLACK_SHARE * own)
