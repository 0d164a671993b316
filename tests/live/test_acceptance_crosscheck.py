"""Whose traffic the counters saw."""

from __future__ import annotations

import pytest

from tests.live.metrics_text import scrape
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Own, foreign_running, foreign_traffic, own_total


def absent(found: object) -> str:
    assert isinstance(found, Absent), found
    return found.reason


def drafts(steps: int) -> str:
    return f"vllm:spec_decode_num_drafts_total {steps}\n"


def test_vllm_spec_deltas_of_other_traffic_are_found() -> None:
    before, after = scrape(drafts(0)), scrape(drafts(120))
    found = foreign_traffic(before, after, Own(verify_steps=43))
    assert str(found) == (
        "foreign traffic: vllm:spec_decode_num_drafts_total gained 120 verify steps, ours are 43"
    )


@pytest.mark.parametrize(
    ("gained", "foreign"),
    [(264, False), (264 + 32, False), (264 + 33, True), (200, False)],
)
def test_lag_of_a_counter_is_no_foreign_traffic(gained: int, foreign: bool) -> None:
    before = scrape("vllm:generation_tokens_total 1000\n")
    after = scrape(f"vllm:generation_tokens_total {1000 + gained}\n")
    found = foreign_traffic(before, after, Own(completion_tokens=264))
    assert (found is not None) is foreign


def test_foreign_traffic_says_when_it_cannot_say() -> None:
    other = scrape("x 1\n")
    assert "no counter" in absent(foreign_traffic(other, other, Own(1, 2, 3)))
    gone = Absent("metrics unavailable: x")
    assert foreign_traffic(gone, other, Own(1)) is gone
    before, after = "vllm:request_success_total 9\n", "vllm:request_success_total 2\n"
    assert absent(foreign_traffic(scrape(before), scrape(after), Own(1))).startswith("restarted")


def test_requests_of_others() -> None:
    def text(stop: int, length: int) -> str:
        return (
            f'vllm:request_success_total{{finished_reason="stop"}} {stop}\n'
            f'vllm:request_success_total{{finished_reason="length"}} {length}\n'
        )

    assert foreign_traffic(scrape(text(1, 1)), scrape(text(2, 2)), Own(1)) is None
    found = foreign_traffic(scrape(text(1, 1)), scrape(text(3, 3)), Own(1))
    assert "gained 4 requests, ours are 1" in str(found)


def test_open_requests_of_others() -> None:
    gauges = scrape("vllm:num_requests_running 1\nvllm:num_requests_waiting 2\n")
    assert foreign_running(gauges, 3) is None
    assert "gained 3 open requests" in str(foreign_running(gauges, 1))
    assert "no gauge" in absent(foreign_running(scrape("x 1\n"), 1))


def test_own_requests_add_up_only_where_all_are_known() -> None:
    assert own_total([Own(1, 10, 20, 3), Own(1, 5, None, 4)]) == Own(2, 15, None, 7)
    assert own_total([]) == Own(0, 0, 0, 0)
