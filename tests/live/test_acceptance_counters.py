"""Acceptance between two scrapes."""

from __future__ import annotations

import json

import pytest

from tests.live.metrics_text import DATA, recorded, scrape
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    Own,
    Samples,
    cached_between,
    foreign_traffic,
    from_counters,
    from_events,
    from_server_info,
)

VLLM = "vllm:spec_decode_num"


def vllm(
    drafts: float, proposed: float, accepted: float, *positions: float, engine: int = 0
) -> str:
    label = f'engine="{engine}",model_name="m"'
    lines = [
        f"{VLLM}_drafts_total{{{label}}} {drafts}",
        f"{VLLM}_draft_tokens_total{{{label}}} {proposed}",
        f"{VLLM}_accepted_tokens_total{{{label}}} {accepted}",
    ]
    lines += [
        f'{VLLM}_accepted_tokens_per_pos_total{{{label},position="{k}"}} {at}'
        for k, at in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


def accepted(found: Acceptance | Absent) -> Acceptance:
    assert isinstance(found, Acceptance), found
    return found


def absent(found: object) -> str:
    assert isinstance(found, Absent), found
    return found.reason


def test_recorded_vllm_ngram() -> None:
    found = accepted(
        from_counters(scrape("vllm:other 1\n"), recorded("vllm_llama_ngram_metrics.txt"))
    )
    assert (found.steps, found.proposed_drafts, found.accepted_drafts) == (60, 212, 98)
    assert found.histogram == (20, 8, 14, 12, 4, 2)
    assert found.committed == 158
    assert found.committed_per_step == pytest.approx(1 + 98 / 60)
    assert found.problems == []


def test_recorded_llamacpp_synthetic_acceptance() -> None:
    found = accepted(
        from_counters(scrape("llamacpp:other 1\n"), recorded("llamacpp_synth4_metrics.txt"))
    )
    assert found.committed_per_step == pytest.approx(1 + 4512 / 1543)
    assert found.histogram is not None
    assert sum(found.histogram) == 1543
    assert found.problems == []


def test_llamacpp_counters_and_timings_count_the_same_steps() -> None:
    before = scrape((DATA / "llamacpp" / "before.metrics.txt").read_bytes())
    after = scrape((DATA / "llamacpp" / "after.metrics.txt").read_bytes())
    counted = accepted(from_counters(before, after))
    event = json.loads((DATA / "llamacpp" / "last_event.json").read_text())
    told = accepted(from_events([event]))
    assert counted.steps == told.steps == 47
    assert counted.accepted_drafts == told.accepted_drafts == 152
    assert counted.proposed_drafts == told.proposed_drafts == 325
    # The first of the 200 tokens comes from the prefill.
    assert told.committed == 199
    assert foreign_traffic(before, after, Own(1, 200, 7, 47)) is None


def test_speculation_off_is_told_apart() -> None:
    off = recorded("vllm_llama_metrics.txt")
    assert absent(from_counters(off, off)).startswith("no speculation counters among vLLM")
    # llama.cpp shows the totals, at 0, with speculation off.
    off = recorded("llamacpp_llama_metrics.txt")
    assert absent(from_counters(off, off)).startswith("no drafts")
    gone = Absent("metrics unavailable: HTTP 404")
    assert from_counters(gone, off) is gone
    assert from_counters(off, gone) is gone
    other = scrape("x 1\n")
    assert absent(from_counters(other, other)).startswith("no speculation counters")


def test_engines_are_summed_as_counts() -> None:
    before = scrape(vllm(10, 30, 5, 4, 1) + vllm(0, 0, 0, 0, 0, engine=1))
    after = scrape(vllm(20, 60, 15, 10, 5) + vllm(30, 90, 60, 30, 30, engine=1))
    found = accepted(from_counters(before, after))
    assert (found.steps, found.accepted_drafts, found.proposed_drafts) == (40, 70, 120)
    assert found.histogram == (4, 2, 34)
    assert found.problems == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (vllm(50, 150, 20), vllm(10, 30, 5)),
        # One engine restarts while the other grows past it.
        (
            vllm(50, 150, 20) + vllm(1, 3, 1, engine=1),
            vllm(10, 30, 5) + vllm(500, 1500, 300, engine=1),
        ),
        (vllm(50, 150, 20) + vllm(1, 3, 1, engine=1), vllm(60, 180, 25)),
        (vllm(50, 150, 20), "vllm:other 1\n"),
        # The new process has counted further than the old one had.
        (
            vllm(5, 15, 2) + f"{VLLM}_drafts_created 100\n",
            vllm(50, 150, 20) + f"{VLLM}_drafts_created 200\n",
        ),
        (
            vllm(5, 15, 2) + "process_start_time_seconds 1000\n",
            vllm(50, 150, 20) + "process_start_time_seconds 1100\n",
        ),
    ],
    ids=["fell", "one-of-two", "one-gone", "all-gone", "created", "process-start"],
)
def test_a_restart_is_no_figure(before: str, after: str) -> None:
    assert absent(from_counters(scrape(before), scrape(after))).startswith("restarted")


def test_a_jitter_of_the_start_time_is_no_restart() -> None:
    before = scrape(vllm(5, 15, 2) + "process_start_time_seconds 1000.00\n")
    after = scrape(vllm(50, 150, 20) + "process_start_time_seconds 1000.01\n")
    assert accepted(from_counters(before, after)).steps == 45


def test_broken_identities_are_reported_and_kept() -> None:
    before = scrape(vllm(0, 0, 0, 0, 0))
    found = accepted(from_counters(before, scrape(vllm(10, 20, 12, 5, 8))))
    assert found.histogram is None
    assert found.accepted_per_position == (0.5, 0.8)
    assert len(found.problems) == 2
    assert "position 1 accepts more often" in found.problems[0]
    assert "add up to 13" in found.problems[1]
    found = accepted(from_counters(before, scrape(vllm(10, 5, 12, 6, 6))))
    assert found.problems == ["12 drafts accepted of 5 proposed"]


@pytest.mark.parametrize("label", ["99999999999", "x", "-1", "0x1"])
def test_positions_that_are_no_list_are_left_out(label: str) -> None:
    odd = f'{VLLM}_accepted_tokens_per_pos_total{{engine="0",position="{label}"}} 3\n'
    found = accepted(from_counters(scrape(vllm(0, 0, 0)), scrape(vllm(9, 9, 3, 3) + odd)))
    assert found.histogram is None
    assert "left out" in found.notes[0]


def test_half_a_token_is_no_count() -> None:
    found = from_counters(scrape(vllm(0, 0, 0)), scrape(vllm(9, 9, 3.5)))
    assert "no whole number" in absent(found)


def sglang(mean: float, generated: float, extra: str = "", dp: str = "0") -> str:
    return (
        f'sglang:spec_accept_length{{model_name="m",tp_rank="0",dp_rank="{dp}"}} {mean}\n'
        f'sglang:generation_tokens_total{{model_name="m"}} {generated}\n{extra}'
    )


def test_sglang_gauge_is_the_last_log_interval() -> None:
    found = accepted(from_counters(scrape(sglang(0, 0)), scrape(sglang(6.58, 264))))
    assert found.scope == "log interval"
    assert found.steps is None
    assert found.committed_per_step == 6.58
    assert found.as_metrics()["accepted_drafts_per_step"] == pytest.approx(5.58)
    assert "verify_steps" not in found.as_metrics()


def test_sglang_gauge_of_zero_is_no_data() -> None:
    both = sglang(6.58, 264) + 'sglang:spec_accept_length{model_name="m",dp_rank="1"} 0.0\n'
    assert accepted(from_counters(scrape(sglang(0, 0)), scrape(both))).mean_committed == 6.58
    assert "no data" in absent(from_counters(scrape(sglang(0, 0)), scrape(sglang(0, 264))))


def test_sglang_gauge_is_stale_on_an_idle_server() -> None:
    same = scrape(sglang(6.58, 264))
    assert "stale" in absent(from_counters(same, same))
    found = accepted(from_counters(same, scrape(sglang(6.58, 300))))
    assert any("unchanged" in note for note in found.notes)


def test_sglang_34743_gauges_of_dp_ranks_have_no_weights() -> None:
    two = sglang(2.9, 100) + 'sglang:spec_accept_length{model_name="m",dp_rank="1"} 3.67\n'
    assert "differs between ranks (2.9, 3.67)" in absent(
        from_counters(scrape(sglang(0, 0)), scrape(two))
    )


def test_sglang_verify_calls_give_counts() -> None:
    def more(calls: int, requests: int) -> str:
        return f"sglang:spec_verify_calls_total {calls}\nsglang:num_requests_total {requests}\n"

    before, after = sglang(2, 0, more(0, 0)), sglang(2, 107, more(43, 1))
    found = accepted(from_counters(scrape(before), scrape(after)))
    assert (found.steps, found.accepted_drafts, found.scope) == (43, 63, "interval")
    assert absent(from_counters(scrape(after), scrape(after))).startswith("no drafts")
    assert absent(from_counters(scrape(after), scrape(before))).startswith("restarted")


def test_sglang_without_speculation() -> None:
    off = scrape("sglang:generation_tokens_total 4\n")
    assert absent(from_counters(off, off)).startswith("no speculation counters among SGLang")


def test_tensorrt_llm_gauge_with_its_counters() -> None:
    def text(mean: float, drafted: int, taken: int) -> str:
        return (
            f"trtllm_spec_decode_acceptance_length {mean}\n"
            f"trtllm_spec_decode_num_draft_tokens_total {drafted}\n"
            f"trtllm_spec_decode_num_accepted_tokens_total {taken}\n"
        )

    found = accepted(from_counters(scrape(text(0, 0, 0)), scrape(text(2.5, 90, 60))))
    assert (found.mean_committed, found.accepted_drafts, found.proposed_drafts) == (2.5, 60, 90)
    same = scrape(text(2.5, 90, 60))
    assert "stale" in absent(from_counters(same, same))
    assert "no data" in absent(from_counters(scrape(text(0, 0, 0)), scrape(text(0, 9, 1))))
    off = scrape("trtllm_request_success_total 1\n")
    assert absent(from_counters(off, off)).startswith("no speculation counters")


def test_sglang_34743_dp_ranks_are_not_rank_zero() -> None:
    info = {
        "internal_states": [
            {},
            {"avg_spec_accept_length": 2.9, "spec_verify_ct": 300},
            {"avg_spec_accept_length": 3.67, "spec_verify_ct": 100},
        ]
    }
    found = accepted(from_server_info(info))
    assert found.mean_committed == pytest.approx((2.9 * 300 + 3.67 * 100) / 400)
    assert found.scope == "since start"
    for state in info["internal_states"]:
        state.pop("spec_verify_ct", None)
    assert "they have no mean" in absent(from_server_info(info))


def test_sglang_29329_missing_key_is_absent_and_not_zero() -> None:
    assert "no avg_spec_accept_length" in absent(
        from_server_info({"internal_states": [{"last_gen_throughput": 12}]})
    )
    for junk in (None, [], {"internal_states": None}, {"internal_states": [None, 3, "x"]}):
        absent(from_server_info(junk))


def test_steps_without_drafts_are_in_no_counter_and_count_all_the_same() -> None:
    """An n-gram found after 33 of 300 tokens: 44 steps of 6, and 35 of one token each."""
    found = accepted(from_counters(scrape(vllm(0, 0, 0, 0, 0)), scrape(vllm(44, 220, 220, 44, 44))))
    assert found.committed_per_step == 6
    assert found.committed_over(300) == pytest.approx(299 / 79)
    # A counter that lags by a step or two, and an answer that was cut, say no such thing.
    assert found.committed_over(1 + 264 + 12) == 6
    assert found.committed_over(200) == 6


def test_prefix_cache_hits_between_two_scrapes() -> None:
    def hits(tokens: int) -> Samples:
        return scrape(f'vllm:prefix_cache_hits_total{{engine="0"}} {tokens}\n')

    assert cached_between(hits(128), hits(640)) == 512
    assert cached_between(hits(128), hits(128)) == 0
    assert absent(cached_between(hits(128), hits(0))).startswith("restarted")
    assert absent(cached_between(hits(1), Absent("gone"))) == "gone"
    assert absent(cached_between(scrape("x 1\n"), scrape("x 1\n"))).startswith("no counter")
