"""Acceptance and timings on the events of one answer, and the identities of the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.metrics_text import events
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    ServerTimings,
    cached_tokens,
    from_events,
    server_timings,
)

# The identities that one real request kept exactly (sglang#33518): 106 tokens in 43 steps.
SGLANG = {
    "spec_verify_ct": 43,
    "spec_accept_length": 106 / 43,
    "spec_accept_rate": 63 / 301,
    "spec_accept_histogram": [13, 14, 9, 3, 1, 1, 1, 1],
    "spec_accept_token_num": 63,
    "spec_draft_token_num": 301,
}
RENAMED = {
    "spec_accept_histogram": "spec_correct_drafts_histogram",
    "spec_accept_token_num": "spec_num_correct_drafts",
    "spec_draft_token_num": "spec_num_proposed_drafts",
}
VLLM = {
    "mean_acceptance_length": 1 + 10 / 43,
    "draft_acceptance_rate": 10 / 129,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}


def told(found: Acceptance | Absent) -> Acceptance:
    assert isinstance(found, Acceptance), found
    assert found.problems == []
    return found


def test_llamacpp_recorded_draft_of_itself_commits_eight_a_step() -> None:
    found = told(from_events(events("llamacpp_draft_completions.txt")))
    # vLLM's recording of the same truth is one event of 1 token, seven of 8 and one of 7.
    assert (found.steps, found.accepted_drafts, found.proposed_drafts) == (8, 55, 55)
    assert found.committed == 63


def test_llamacpp_recorded_synthetic_acceptance() -> None:
    found = told(from_events(events("llamacpp_synth4_completions.txt")))
    assert (found.steps, found.accepted_drafts, found.proposed_drafts) == (238, 761, 1657)


def test_llamacpp_without_drafts_is_no_speculation() -> None:
    found = from_events(events("llamacpp_llama_chat.txt"))
    assert isinstance(found, Absent)
    assert found.reason.startswith("no speculation: llama.cpp")


def test_llamacpp_timings_per_token_count_the_last() -> None:
    listed = events("llamacpp_ping_progress_timings.txt")
    timings = server_timings(listed)
    assert isinstance(timings, ServerTimings)
    assert (timings.decoded_tokens, timings.decode_ms) == (8, 1.235)
    assert (timings.prefill_ms, timings.prefill_tokens, timings.cached_tokens) == (0.88, 1, 7)
    assert cached_tokens(listed) == 7


@pytest.mark.parametrize(
    "timings",
    [
        {"predicted_n": 10, "draft_n": 40, "draft_n_accepted": 20},
        {"predicted_n": 0, "draft_n": 0, "draft_n_accepted": 0},
        {"draft_n": 4, "draft_n_accepted": 2},
        {"predicted_n": 1, "draft_n": 0, "draft_n_accepted": 0},
    ],
)
def test_llamacpp_impossible_counts_are_absent(timings: dict[str, Any]) -> None:
    assert isinstance(from_events([{"timings": timings}]), Absent)


def test_vllm_summary_on_the_usage_event() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 54}, "metrics": None}
    found = told(from_events([usage, {**usage, "metrics": {"speculative_decoding": VLLM}}]))
    assert (found.steps, found.accepted_drafts, found.committed) == (43, 10, 53)
    assert found.histogram == (39, 1, 0, 3)
    assert found.accepted_per_position == pytest.approx((4 / 43, 3 / 43, 3 / 43))
    assert found.scope == "request"


def test_vllm_detailed_keeps_the_order_of_the_steps() -> None:
    per_step = [0] * 20 + [1] + [0] * 19 + [3] * 3
    stats = {**VLLM, "per_step_accepted": per_step, "per_step_drafted": [3] * 43}
    found = told(from_events([{"metrics": {"speculative_decoding": stats}}]))
    assert found.per_step == tuple(per_step)


def test_vllm_older_stats_have_text_for_keys() -> None:
    stats = {**VLLM, "acceptance_histogram": {"0": 39, "1": 1, "3": 3}}
    choice = {"index": 0, "delta": {}, "speculative_decoding_stats": stats}
    assert told(from_events([{"choices": [choice]}])).histogram == (39, 1, 0, 3)
    both = from_events([{"choices": [choice, {**choice, "index": 1}]}])
    assert isinstance(both, Absent)
    assert "several choices" in both.reason


def test_vllm_no_stats_for_several_answers() -> None:
    assert isinstance(from_events([{"metrics": {"speculative_decoding": None}}]), Absent)


def test_sglang_34814_lengths_include_root_and_bonus() -> None:
    stats = {
        "num_verification_steps": 3,
        "num_accepted_draft_tokens": 4,
        "num_verified_draft_tokens": 12,
        "accept_lengths": [1, 5, 1],
        "verify_lengths": [5, 5, 5],
    }
    found = told(from_events([{"choices": [{"speculative_decoding_stats": stats}]}]))
    assert found.per_step == (0, 4, 0)


@pytest.mark.parametrize("names", [{}, RENAMED], ids=["old", "new"])
@pytest.mark.parametrize("place", ["meta_info", "event", "choice", "usage"])
def test_sglang_details_wherever_they_ride(names: dict[str, str], place: str) -> None:
    details = {names.get(key, key): value for key, value in SGLANG.items()}
    ext = {"sglext": {"spec_tokens_details": details}}
    event: dict[str, Any] = {
        "meta_info": {"meta_info": {**details, "completion_tokens": 106}},
        "event": {"choices": [], **ext},
        "choice": {"choices": [{"index": 0, **ext}]},
        "usage": {"usage": {"completion_tokens": 106, **ext}},
    }[place]
    found = told(from_events([{"choices": []}, event]))
    assert (found.steps, found.accepted_drafts, found.proposed_drafts) == (43, 63, 301)
    assert found.histogram is not None
    assert len(found.histogram) == 8
    assert found.committed == 106


def test_sglang_details_of_several_choices_are_not_one_request() -> None:
    choice = {"index": 0, "meta_info": SGLANG}
    assert told(from_events([{"choices": [choice]}])).steps == 43
    found = from_events([{"choices": [choice, {**choice, "index": 1}]}])
    assert isinstance(found, Absent)
    assert "several choices" in found.reason


def test_sglang_before_the_histogram() -> None:
    found = told(from_events([{"meta_info": {"spec_verify_ct": 43, "completion_tokens": 106}}]))
    assert (found.steps, found.accepted_drafts) == (43, 63)
    assert found.notes


def test_tensorrt_llm_gives_a_mean_only() -> None:
    for event in (
        {"choices": [{"index": 0, "avg_decoded_tokens_per_iter": 2.5}]},
        {"usage": {"avg_decoded_tokens_per_iter": 2.5}},
    ):
        found = told(from_events([event]))
        assert (found.steps, found.committed, found.committed_per_step) == (None, None, 2.5)
    assert isinstance(from_events([{"usage": {"avg_decoded_tokens_per_iter": 0.0}}]), Absent)


def test_broken_identities_are_named() -> None:
    stats = {**VLLM, "num_accepted_draft_tokens": 53, "mean_acceptance_length": 1.23}
    found = from_events([{"metrics": {"speculative_decoding": stats}}])
    assert isinstance(found, Acceptance)
    assert found.problems == [
        "the histogram holds 10 accepted drafts, the server counts 53",
        "the positions add up to 10 accepted drafts, the server counts 53",
        "the server says 1.23 tokens a step, its counts say 2.23256",
    ]
    assert found.as_metrics()["acceptance_problems"] == found.problems
    found = from_events([{"metrics": {"speculative_decoding": {**VLLM, "num_spec_steps": 50}}}])
    assert isinstance(found, Acceptance)
    assert "the histogram holds 43 steps, the server counts 50" in found.problems


def test_a_mean_below_one_is_named() -> None:
    assert "at least its bonus" in Acceptance("x", "request", mean_committed=0.4).problems[0]


def test_metrics_hold_only_what_is_known_and_are_json() -> None:
    whole = told(from_events([{"metrics": {"speculative_decoding": VLLM}}])).as_metrics()
    assert whole["verify_steps"] == 43
    assert whole["committed"] == 53
    assert whole["accepted_drafts"] == 10
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole
    bare = Acceptance("x", "log interval", mean_committed=2.5).as_metrics()
    assert set(bare) == {
        "acceptance_source",
        "acceptance_scope",
        "committed_per_step",
        "accepted_drafts_per_step",
        "server_mean_committed",
    }


def test_vllm_timings() -> None:
    metrics = {"time_to_first_token_ms": 80.5, "generation_time_ms": 900, "queue_time_ms": 2}
    found = server_timings([{"usage": {"completion_tokens": 64}, "metrics": metrics}])
    assert found == ServerTimings("vLLM metrics", 80.5, 900.0, 2.0, None, 64, None)
    assert isinstance(server_timings(events("vllm_llama_chat.txt")), Absent)


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 16}}}, 16),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}, 0),
        ({"timings": {"cache_n": 21}}, 21),
        ({"sglext": {"cached_tokens_details": {"device": 3, "host": 4, "storage": None}}}, 7),
        ({"meta_info": {"cached_tokens": 5}}, 5),
    ],
)
def test_cached_tokens_of_each_engine(event: dict[str, Any], tokens: int) -> None:
    assert cached_tokens([{"usage": None}, event, {"choices": []}]) == tokens


@pytest.mark.parametrize("value", [None, True, "16", -1, 1.5, float("nan"), 10**400, [], {}])
def test_junk_is_no_count(value: Any) -> None:
    found = cached_tokens([{"usage": {"prompt_tokens_details": {"cached_tokens": value}}}])
    assert isinstance(found, Absent)
    stats = {**VLLM, "num_spec_steps": value, "acceptance_histogram": value}
    assert isinstance(from_events([{"metrics": {"speculative_decoding": stats}}]), Absent)


@pytest.mark.parametrize("key", ["4097", "99999999999", "-1", "²", "1.0", ""])
def test_junk_keys_of_a_histogram_leave_the_counts(key: str) -> None:
    stats = {**VLLM, "acceptance_histogram": {key: 3}}
    found = told(from_events([{"metrics": {"speculative_decoding": stats}}]))
    assert found.histogram is None
    assert found.steps == 43
