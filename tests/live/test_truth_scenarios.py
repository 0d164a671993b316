"""The named scenarios are sound, and the healthy ones healthy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.truth import Decode, Fault, Scenario
from tests.live.truth.engine import generate
from tests.live.truth.plain_client import chat, one
from tests.live.truth.scenarios import CAUSES, SCENARIOS, Settings, healthy
from tests.live.truth.wire import Event, Writer

FAST = Decode(step_s=0.001, committed=3.0, drafts=4, jitter=0.1)


def planned(scenario: Scenario, body: dict[str, Any]) -> list[Event]:
    """The events of an answer to a short prompt, without a server."""
    answer = generate(scenario, 100, 0, body["max_tokens"], 1, 0.0)
    return Writer(scenario, answer, body, chat="messages" in body).events()


def test_named_scenarios() -> None:
    assert len(SCENARIOS) >= 40
    for named in SCENARIOS.values():
        assert set(named.causes + named.allowed) <= set(CAUSES)
        assert named.settings.max_tokens >= named.scenario.measured_from
        body = chat(tokens=named.settings.max_tokens)
        wanted = named.scenario.decode.stop_at or named.settings.max_tokens
        assert sum(e.tokens for e in planned(named.scenario, body)) == wanted
        # A few seconds for all points, or tests of the sweep would take for ever.
        assert answer_s(named.scenario, named.settings) < 9, named.name
    assert {c for named in SCENARIOS.values() for c in named.causes} == set(CAUSES)


def answer_s(scenario: Scenario, settings: Settings) -> float:
    """Of all points of a sweep, faults that end it early left out."""
    answers = [generate(scenario, n, 0, settings.max_tokens, 1, 0.0) for n in settings.contexts]
    return sum(a.steps[-1].end_s for a in answers)


def test_healthy_servers_are_healthy() -> None:
    for seed in range(50):
        scenario = healthy(seed)
        assert scenario == healthy(seed)
        decode = scenario.decode
        short, long = (decode.step_s + decode.per_context_token_s * n for n in (1000, 16_400))
        assert long / short <= 1.3
        assert decode.jitter <= 0.15
        assert decode.growth == 1.0
        assert scenario.fault == Fault()
        events = planned(scenario, chat(tokens=400))
        assert [e.at_s for e in events] == sorted(e.at_s for e in events)
        assert b'"usage":{' in events[-1].data + events[-2].data
        assert answer_s(scenario, Settings()) < 12, seed


@pytest.mark.parametrize("seed", range(6))
def test_healthy_servers_answer_in_full(seed: int) -> None:
    scenario = healthy(seed)
    quick = Scenario(engine=scenario.engine, seed=seed, decode=FAST, wire=scenario.wire)
    got, log = one(quick)
    assert (got.status, got.ended) == (200, "whole")
    assert got.usage["completion_tokens"] == log.tokens_sent == 60
