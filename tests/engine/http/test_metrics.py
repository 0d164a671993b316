"""What the engine tells comes out of ``/metrics`` again, through the reader that `sweep` uses."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.http.serving import Engine
from verify_attn.engine.http.metrics import Metrics
from verify_attn.live.acceptance import Acceptance, NothingDrafted, Samples, from_counters
from verify_attn.live.acceptance.prometheus import parse_metrics
from verify_attn.live.reply import Reply


@dataclass
class Pool:
    pages: int = 100
    free: int = 60
    cached: int = 10
    held: int = 30
    mean_runs: float = 2.5
    max_runs: int = 7
    mean_run_pages: float = 4.25
    mean_spanned_pages: float = 55.5
    scattered: int = 1


def samples(metrics: Metrics) -> Samples:
    found = parse_metrics(Reply(200, "text/plain", metrics.text()))
    assert isinstance(found, Samples)
    return found


@given(
    earlier=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=4),
    steps=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=20),
)
@settings(deadline=None, max_examples=50, derandomize=True)
def test_acceptance_is_read_back(earlier: list[list[int]], steps: list[list[int]]) -> None:
    metrics = Metrics()

    def run(step: list[int]) -> None:
        metrics.step(len(step), 9 * len(step), step, 0.01)

    for step in earlier:
        run(step)
    before = samples(metrics)
    for step in steps:
        run(step)
    found = from_counters(before, samples(metrics))
    assert isinstance(found, Acceptance), found
    flat = [count for step in steps for count in step]
    assert (found.steps, found.accepted_drafts) == (len(flat), sum(flat))
    assert found.proposed_drafts == 9 * len(flat)
    assert found.problems == []
    deepest = max(max(flat), *(max(step) for step in earlier), 0) if earlier else max(flat)
    if deepest:
        assert found.histogram == tuple(flat.count(n) for n in range(deepest + 1))


def test_no_drafts_is_told_from_no_luck() -> None:
    metrics = Metrics()
    before = samples(metrics)
    metrics.step(2, 0, [0, 0], 0.01)
    assert isinstance(from_counters(before, samples(metrics)), NothingDrafted)
    metrics.step(2, 6, [0, 0], 0.01)
    unlucky = from_counters(before, samples(metrics))
    assert isinstance(unlucky, Acceptance)
    assert unlucky.committed_per_step == 1.0


def test_everything_else_by_name(http: httpx.Client, engine: Engine) -> None:
    metrics = engine.metrics
    metrics.step(2, 14, [3, 0], 0.04)
    metrics.prefill(512, 0.2, 64)
    metrics.finished("stop", 600, 25)
    metrics.finished("cancelled", 10, 0)
    metrics.state(3, 2, Pool())
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    found = parse_metrics(Reply(200, "text/plain", reply.content))
    assert isinstance(found, Samples)
    expected = {
        "committed_tokens_total": 5,
        "spec_decode_num_drafts_total": 2,
        "spec_decode_num_draft_tokens_total": 14,
        "spec_decode_num_accepted_tokens_total": 3,
        "spec_decode_num_accepted_tokens_per_pos_total": 3,
        "step_time_seconds_count": 1,
        "step_time_seconds_sum": 0.04,
        "prefill_tokens_total": 512,
        "prefill_chunk_time_seconds_count": 1,
        "prefix_cache_hits_total": 64,
        "prompt_tokens_total": 610,
        "generation_tokens_total": 25,
        "request_success_total": 2,
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_pages": 100,
        "kv_pages_free": 60,
        "kv_pages_cached": 10,
        "kv_pages_held": 30,
        "kv_runs_mean": 2.5,
        "kv_runs_max": 7,
        "kv_run_pages_mean": 4.25,
        "kv_spanned_pages_mean": 55.5,
        "kv_scattered_reservations": 1,
    }
    assert {name: found.sum(f"verify_attn:{name}") for name in expected} == pytest.approx(expected)
    metrics.state(0, 0, None)
    assert samples(metrics).sum("verify_attn:kv_pages") == 100
    assert samples(metrics).sum("verify_attn:num_requests_running") == 0


def test_two_engines_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.step(1, 1, [1], 0.1)
    assert samples(other).sum("verify_attn:committed_tokens_total") == 0
