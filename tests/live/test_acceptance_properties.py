"""Random and mutated answers never raise, and never give a figure that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.fuzz_live_readers import TARGETS, run_case, sound
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.metrics_text import DATA, RECORDINGS, reply, scrape
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    Own,
    cached_tokens,
    foreign_running,
    foreign_traffic,
    from_counters,
    from_events,
    from_server_info,
    parse_metrics,
    read_lines,
    server_timings,
)
from verify_attn.live.server import context_overflow, error_message, error_status, redact

METRICS = (RECORDINGS / "llamacpp_synth4_metrics.txt").read_text()
BEFORE = scrape((DATA / "llamacpp" / "before.metrics.txt").read_bytes())
NAMES = [
    "choices",
    "usage",
    "timings",
    "metrics",
    "speculative_decoding",
    "speculative_decoding_stats",
    "meta_info",
    "sglext",
    "spec_tokens_details",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "per_step_accepted",
    "accept_lengths",
    "spec_verify_ct",
    "spec_accept_length",
    "spec_accept_histogram",
    "spec_accept_token_num",
    "completion_tokens",
    "predicted_n",
    "draft_n",
    "draft_n_accepted",
    "prompt_ms",
    "predicted_ms",
    "cache_n",
    "prompt_tokens_details",
    "cached_tokens",
    "cached_tokens_details",
    "device",
    "avg_decoded_tokens_per_iter",
    "mean_acceptance_length",
    "internal_states",
    "avg_spec_accept_length",
    "error",
    "message",
    "detail",
    "code",
    "type",
]
NUMBERS = st.one_of(
    st.integers(-5, 200), st.integers(), st.floats(), st.just(10**400), st.booleans()
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), NUMBERS, st.text(max_size=8), st.sampled_from(NAMES)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=4)), inner, max_size=6),
    ),
    max_leaves=30,
)
LINES = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            lambda kind, key, value: f"{kind} {key}{value}, #running-req: {value},",
            st.sampled_from(["Decode batch.", "Prefill batch,", "SpecDecoding metrics:", "x"]),
            st.sampled_from(
                ["accept len:", "#cached-token:", "Mean acceptance length:", "Accepted:"]
            ),
            st.one_of(NUMBERS.map(str), st.sampled_from(["nan", "inf", "1.2.3", "-1", ""])),
        ),
    ),
    max_size=8,
)


@given(st.lists(JSON, max_size=4))
def test_any_events(events: list[Any]) -> None:
    sound(from_events(events))
    sound(cached_tokens(events))
    sound(server_timings(events))
    for event in events:
        sound(from_server_info(event))
        error_status(200, event)
        context_overflow(400, event)
        assert error_message(event) is None or error_message(event)
        redact(event)


@given(st.text(max_size=400), st.sampled_from(["text/plain", "application/openmetrics-text"]))
def test_any_metrics_text(text: str, content_type: str) -> None:
    found = parse_metrics(reply(text, content_type=content_type))
    if isinstance(found, Absent):
        assert found.reason.startswith("metrics unavailable: ")
    sound(from_counters(BEFORE, found))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_metrics_text(data: st.DataObject) -> None:
    text = METRICS
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 30))
        text = text[:at] + data.draw(st.text(max_size=12)) + text[at + cut :]
    found = parse_metrics(reply(text))
    sound(from_counters(BEFORE, found))
    sound(from_counters(found, BEFORE))
    for check in (foreign_traffic(BEFORE, found, Own(1, 200, 7, 47)), foreign_running(found, 1)):
        assert check is None or str(check)


@given(LINES)
def test_any_log_lines(lines: list[str]) -> None:
    found = read_lines(lines)
    sound(found.acceptance)
    sound(found.cached_tokens)


@given(
    st.integers(1, 500),
    st.lists(st.integers(0, 500), min_size=1, max_size=8),
    st.integers(0, 10**9),
)
def test_counters_by_position_rebuild_the_histogram(
    steps: int, positions: list[int], start: int
) -> None:
    reached = sorted((min(at, steps) for at in positions), reverse=True)

    def text(drafts: int, at: list[int]) -> str:
        lines = [
            f"vllm:spec_decode_num_drafts_total {start + drafts}",
            f"vllm:spec_decode_num_draft_tokens_total {start + drafts * len(at)}",
            f"vllm:spec_decode_num_accepted_tokens_total {start + sum(at)}",
        ]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{position="{k}"}} {start + n}' for k, n in enumerate(at)]
        return "\n".join(lines)

    before, after = text(0, [0] * len(reached)), text(steps, reached)
    found = from_counters(scrape(before), scrape(after))
    assert isinstance(found, Acceptance)
    assert found.problems == []
    assert found.histogram is not None
    assert sum(found.histogram) == steps
    assert sum(n * h for n, h in enumerate(found.histogram)) == found.accepted_drafts


@pytest.mark.parametrize("target", TARGETS)
def test_the_fuzz_benchmark_finds_nothing_in_its_first_cases(target: str) -> None:
    assert [why for case in range(300) if (why := run_case(target, 0, case))] == []
