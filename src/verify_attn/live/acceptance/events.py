"""Acceptance that rides on the events of one streamed answer.

Every reader takes the decoded JSON of all events, in order, and trusts no type in them: proxies
and half-finished builds put anything anywhere.  The last event that holds figures counts, since
llama.cpp repeats them as they grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import (
    count,
    counts,
    figure,
    first_count,
    member,
)
from verify_attn.live.acceptance.model import Acceptance, NothingDrafted
from verify_attn.live.acceptance.timings import ServerTimings, cached_tokens, server_timings

__all__ = ["ServerTimings", "cached_tokens", "from_events", "server_timings"]

# A histogram keyed by text is turned into a list as long as its largest key: no drafter goes near
# this many drafts a step, and junk must not fill the memory.
_WIDEST = 4096


def from_events(events: Sequence[Any]) -> Acceptance | Absent:
    """What the events of one answer say about its own steps; scope "request".

    `Absent` says whether no field was there, or what was wrong with the one that was.
    """
    why = Absent("the answer's events hold no speculation figures")
    for reader in (_own, _vllm, _sglang, _llamacpp, _tensorrt_llm):
        found = reader(events)
        if isinstance(found, Acceptance):
            return found
        if found is not None:
            why = found
    return why


def _own(events: Sequence[Any]) -> Acceptance | Absent | None:
    """``speculation`` of this project's own server, on the event with the finish reason."""
    for event in reversed(events):
        stats = member(event, "speculation")
        if not isinstance(stats, dict):
            continue
        proposed, accepted = (
            count(stats.get("proposed_drafts")),
            count(stats.get("accepted_drafts")),
        )
        if proposed == 0 and accepted == 0:
            return NothingDrafted("verify-attn's speculation says that nothing was proposed")
        committed = counts(stats.get("committed"))
        per_step = tuple(c - 1 for c in committed) if committed and all(committed) else None
        histogram = None
        if per_step and max(per_step) <= _WIDEST:
            histogram = tuple(per_step.count(n) for n in range(max(per_step) + 1))
        return _counted(
            "verify-attn speculation",
            count(stats.get("steps")),
            accepted,
            proposed=proposed,
            histogram=histogram,
            per_step=per_step,
        )
    return None


def _choices(event: Any) -> Iterator[dict[str, Any]]:
    listed = member(event, "choices")
    for choice in listed if isinstance(listed, list) else ():
        if isinstance(choice, dict):
            yield choice


def _histogram(value: Any) -> tuple[int, ...] | None:
    """A list of counts, or an object with whole numbers as keys (older vLLM)."""
    if not isinstance(value, dict):
        return counts(value)
    found: dict[int, int] = {}
    for key, steps in value.items():
        known = count(steps)
        if known is None or not (isinstance(key, str) and key.isascii() and key.isdigit()):
            return None
        if len(key) > 4 or int(key) > _WIDEST:
            return None
        found[int(key)] = known
    return tuple(found.get(n, 0) for n in range(max(found) + 1)) if found else None


def _vllm(events: Sequence[Any]) -> Acceptance | Absent | None:
    """``metrics.speculative_decoding`` on the usage event.

    docs/features/speculative_decoding/acceptance_metrics.md.  Earlier builds, and a patch of
    SGLang (sglang#34814), put ``speculative_decoding_stats`` on each choice.
    """
    for event in reversed(events):
        stats = member(event, "metrics", "speculative_decoding")
        if isinstance(stats, dict):
            return _stats(stats, "vLLM metrics.speculative_decoding")
        per_choice = [
            stats
            for choice in _choices(event)
            if isinstance(stats := choice.get("speculative_decoding_stats"), dict)
        ]
        if len(per_choice) > 1:
            return Absent("speculative_decoding_stats of several choices: not one request's steps")
        if per_choice:
            return _stats(per_choice[0], "speculative_decoding_stats")
    return None


def _stats(stats: dict[str, Any], source: str) -> Acceptance | Absent:
    histogram = _histogram(stats.get("acceptance_histogram"))
    per_step = counts(stats.get("per_step_accepted"))
    if per_step is None:
        # sglang#34814 gives lengths with the root and the bonus token in them: one too many.
        lengths = counts(stats.get("accept_lengths"))
        if lengths is not None and all(lengths):
            per_step = tuple(length - 1 for length in lengths)
    steps = first_count(stats, "num_spec_steps", "num_verification_steps")
    accepted = first_count(stats, "num_accepted_draft_tokens")
    if steps is None:
        steps = sum(histogram) if histogram else len(per_step) if per_step else None
    if accepted is None and histogram:
        accepted = sum(n * h for n, h in enumerate(histogram))
    if accepted is None and per_step:
        accepted = sum(per_step)
    return _counted(
        source,
        steps,
        accepted,
        proposed=first_count(stats, "num_draft_tokens", "num_verified_draft_tokens"),
        histogram=histogram,
        per_step=per_step,
        mean=figure(stats.get("mean_acceptance_length")),
    )


def _sglang(events: Sequence[Any]) -> Acceptance | Absent | None:
    """``meta_info`` of /generate, ``sglext.spec_tokens_details`` of the OpenAI routes.

    The second needs ``return_spec_tokens_details`` in the request (sglang#33518); where it rides
    in a stream is not documented, so event, usage and choices are all looked at.
    """
    for event in reversed(events):
        for holder in (event, member(event, "usage")):
            details = _spec_details(holder)
            if details is not None:
                return _details(details, event)
        per_choice = [d for choice in _choices(event) if (d := _spec_details(choice)) is not None]
        if len(per_choice) > 1:
            return Absent("spec_verify_ct of several choices: not one request's steps")
        if per_choice:
            return _details(per_choice[0], event)
    return None


def _spec_details(holder: Any) -> Any:
    for details in (member(holder, "sglext", "spec_tokens_details"), member(holder, "meta_info")):
        if first_count(details, "spec_verify_ct") is not None:
            return details
    return None


def _details(details: Any, event: Any) -> Acceptance | Absent:
    steps = first_count(details, "spec_verify_ct") or 0
    # The second name of each pair is the one since the rename of 2026.
    histogram = _histogram(member(details, "spec_accept_histogram"))
    if histogram is None:
        histogram = _histogram(member(details, "spec_correct_drafts_histogram"))
    accepted = first_count(details, "spec_accept_token_num", "spec_num_correct_drafts")
    notes: tuple[str, ...] = ()
    if accepted is None and histogram:
        accepted = sum(n * h for n, h in enumerate(histogram))
    if accepted is None:
        completion = first_count(details, "completion_tokens")
        if completion is None:
            completion = count(member(event, "usage", "completion_tokens"))
        if completion is not None:
            accepted = count(completion - steps)
            notes = (
                "accepted drafts = completion tokens - verify steps: the prefill's token is in it, "
                "and what a stop cut off is not",
            )
    return _counted(
        "SGLang spec_verify_ct",
        steps,
        accepted,
        proposed=first_count(details, "spec_draft_token_num", "spec_num_proposed_drafts"),
        histogram=histogram,
        mean=figure(member(details, "spec_accept_length")),
        notes=notes,
    )


def _llamacpp(events: Sequence[Any]) -> Acceptance | Absent | None:
    """``timings`` of the last event; ``draft_n`` is there only when something was drafted.

    Steps = predicted_n - draft_n_accepted - 1: every step yields its accepted drafts and one
    token, and the first token comes from the prefill (on a recorded answer of 200 tokens with 152
    accepted drafts, the server's own counter says 47).  A step without drafts, such as an n-gram
    miss, counts as a step that accepted none.
    """
    timings = None
    for event in reversed(events):
        timings = member(event, "timings")
        if isinstance(timings, dict):
            break
    if not isinstance(timings, dict):
        return None
    proposed, accepted = count(timings.get("draft_n")), count(timings.get("draft_n_accepted"))
    if proposed is None or accepted is None:
        return NothingDrafted(
            "no speculation: llama.cpp's timings have no draft_n, so nothing was drafted"
        )
    predicted = count(timings.get("predicted_n"))
    if predicted is None:
        return Absent("llama.cpp's timings have draft_n but no predicted_n")
    steps = count(predicted - accepted - 1)
    if steps is None:
        return Absent(
            f"llama.cpp's timings say {accepted} accepted drafts in {predicted} tokens: impossible"
        )
    return _counted("llama.cpp timings", steps, accepted, proposed=proposed)


def _tensorrt_llm(events: Sequence[Any]) -> Acceptance | Absent | None:
    """``avg_decoded_tokens_per_iter`` of a choice or of usage: a mean, bonus included."""
    for event in reversed(events):
        holders = [*_choices(event), member(event, "usage")]
        means = [
            mean
            for holder in holders
            if (mean := figure(member(holder, "avg_decoded_tokens_per_iter"))) is not None
        ]
        if len(set(means)) > 1:
            return Absent("avg_decoded_tokens_per_iter of several choices: not one request's mean")
        if means and means[0] >= 1:
            return Acceptance(
                "TensorRT-LLM avg_decoded_tokens_per_iter", "request", mean_committed=means[0]
            )
        if means:
            return Absent(
                f"avg_decoded_tokens_per_iter is {means[0]:g}; a step commits at least one token"
            )
    return None


def _counted(
    source: str,
    steps: int | None,
    accepted: int | None,
    *,
    proposed: int | None,
    histogram: tuple[int, ...] | None = None,
    per_step: tuple[int, ...] | None = None,
    mean: float | None = None,
    notes: tuple[str, ...] = (),
) -> Acceptance | Absent:
    if steps is None or accepted is None:
        return Absent(f"{source} is there, without readable counts of steps and accepted drafts")
    if steps == 0:
        return Absent(f"no drafts: {source} says 0 verify steps for this answer")
    return Acceptance(
        source,
        "request",
        steps=steps,
        accepted_drafts=accepted,
        proposed_drafts=proposed,
        histogram=histogram,
        accepted_per_position=_per_position(histogram),
        per_step=per_step,
        mean_committed=mean,
        notes=notes,
    )


def _per_position(histogram: tuple[int, ...] | None) -> tuple[float, ...] | None:
    if not histogram or not sum(histogram):
        return None
    steps = sum(histogram)
    below = accumulate(histogram[:-1])
    return tuple((steps - fewer) / steps for fewer in below) or None
