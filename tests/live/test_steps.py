"""Which events make up one decode step, where a busy machine tore or heaped them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.live.synthetic import Sent, answer, measured
from verify_attn.live.absent import Absent
from verify_attn.live.across import overview
from verify_attn.live.measure import measure
from verify_attn.live.points import Point, Trial

COUNTS = (1, 4, 2, 8, 3, 1, 6, 3)  # committed by the steps, in turn


def one_event_a_token(steps: int, step_s: float, torn: float, gap_s: float) -> list[Sent]:
    """Every step's tokens 20 µs apart; a share of the steps comes in two parts instead."""
    rng = np.random.default_rng(7)
    sends = []
    for i in range(steps):
        at, late = 0.1 + (i + float(rng.uniform(0, 0.1))) * step_s, 0.0
        count = COUNTS[i % len(COUNTS)]
        half = count // 2 if rng.uniform() < torn else 0
        for token in range(count):
            late += gap_s if half and token == half else 0.0
            sends.append(Sent(at + token * 2e-5 + late, 1))
    return sends


@pytest.mark.parametrize("gap_s", [0.0005, 0.002])
def test_a_torn_step_is_one_step(gap_s: float) -> None:
    m = measured(one_event_a_token(160, 0.012, torn=0.2, gap_s=gap_s))
    assert m.steps.kind == "bursts"
    assert m.committed_per_step == pytest.approx(np.mean(COUNTS), rel=0.02)


def test_steps_of_which_some_are_quick_stay_apart() -> None:
    sends, at = [], 0.1
    for i in range(200):
        at += 0.003 if i % 3 == 0 else 0.0009
        sends += [Sent(at + token * 1e-5, 1) for token in range(COUNTS[i % len(COUNTS)])]
    assert measured(sends).committed_per_step == pytest.approx(np.mean(COUNTS), rel=0.02)


def heaped() -> list[Sent]:
    """A token every 0.8 ms, read by a client that now and then does something else for a while."""
    rng = np.random.default_rng(3)
    sends, free = [], 0.0
    for i in range(600):
        made = 0.1 + i * 0.0008
        if free <= made:
            free = made + float(rng.uniform(0.0015, 0.004))
        at = max(made, free)
        free = at + 4e-4
        sends.append(Sent(at, 1))
    return sends


def test_what_this_client_let_heap_up_is_no_step() -> None:
    m = measured(heaped())
    assert m.committed_per_step == 1
    assert m.decode_tok_s == pytest.approx(1250, rel=0.02)


def test_where_nothing_was_drafted_nothing_is_a_burst() -> None:
    bursts = answer(one_event_a_token(160, 0.012, torn=0.0, gap_s=0.0))
    assert measure(bursts).steps.kind == "bursts"
    m = measure(bursts, drafted=False)
    assert (m.steps.kind, m.committed_per_step) == ("events", 1)


def point(context: int, first_s: float) -> Point:
    found = Point(context, 1, f"ctx={context}")
    m = measured([Sent(first_s + i * 0.01, 1) for i in range(40)])
    m = replace(m, prompt_tokens=context)
    found.trials = [Trial(m, 40, Absent("not said"), Absent("not said"))]
    return found


def test_a_short_prompt_among_long_ones_is_no_cache_hit() -> None:
    """Prefill of 0.06, 0.32 and 4.2 s: the square of the length, as it is with no cache at all."""
    cold = [point(487, 0.057), point(1933, 0.322), point(8440, 4.16)]
    assert not any(f.cause == "prefix-cache-hit" for f in overview(cold, None).findings)
    hit = [point(487, 0.057), point(1933, 0.322), point(8440, 0.05)]
    assert [f.points for f in overview(hit, None).findings if f.cause == "prefix-cache-hit"] == [
        ("ctx=8440",)
    ]
