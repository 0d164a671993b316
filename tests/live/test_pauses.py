"""Pauses of an answer: whose they are, and what was held back in them."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.synthetic import Sent, causes, findings, measured, steady
from verify_attn.live.lag import LagWatch, overlap_s
from verify_attn.live.steps import shared_gaps


def paused(at: int, seconds: float, sends: list[Sent], *, held: bool = False) -> list[Sent]:
    """``sends`` with a pause before the one at ``at``; ``held``: the engine went on meanwhile."""
    begin = sends[at - 1].at_s
    if held:
        return [s._replace(at_s=max(s.at_s, begin + seconds)) if i >= at else s
                for i, s in enumerate(sends)]  # fmt: skip
    return [s._replace(at_s=s.at_s + seconds) if i >= at else s for i, s in enumerate(sends)]


def in_reads(sends: list[Sent], apart_s: float) -> list[Sent]:
    """What is due at one time, as reads of their own a little apart."""
    found: list[Sent] = []
    for send in sends:
        at_s = max(send.at_s, found[-1].at_s + apart_s) if found else send.at_s
        found.append(send._replace(at_s=at_s))
    return found


@pytest.mark.parametrize("tokens", [1, 4, (1, 5, 8, 2)])
@pytest.mark.parametrize("at", [20, 60, 150, 190])
def test_pauses_are_told_apart(tokens: int | tuple[int, ...], at: int) -> None:
    plain = steady(200, 0.01, tokens)
    assert causes(plain) == []
    assert causes(paused(at, 0.8, plain)) == ["stall"]
    assert causes(paused(1, 0.8, plain)) == ["prefill-in-decode"]


@pytest.mark.parametrize("apart_s", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize(("at", "seconds"), [(20, 0.7), (100, 0.4), (100, 1.2), (150, 0.45)])
def test_held_back_and_released(at: int, seconds: float, apart_s: float) -> None:
    for tokens in (1, (2, 5, 3)):
        sends = in_reads(paused(at, seconds, steady(200, 0.01, tokens), held=True), apart_s)
        found = findings(sends, running=True)
        assert [f.cause for f in found] == ["stall-then-burst"], found


@pytest.mark.parametrize("apart_s", [0.0, 1e-5])
def test_held_from_the_start(apart_s: float) -> None:
    sends = in_reads([s._replace(at_s=max(s.at_s, 1.1)) for s in steady(300)], apart_s)
    assert causes(sends, running=True) == ["stall-then-burst"]


def test_a_large_first_chunk_is_no_release() -> None:
    first, *rest = steady(200, 0.01, (3, 5), first_s=0.6)
    assert causes([first._replace(tokens=16), *rest]) == []
    slow = [Sent(2.0, 16), *(Sent(2.0 + 0.2 * i, 2 + i % 2) for i in range(1, 60))]
    assert causes(slow) == []


def test_tokens_that_stop_coming_together_are_no_release() -> None:
    """Steps that become slow, or commit less, after a fast start."""
    fast = [Sent(1.0 + 0.01 * i, 6 - i % 2) for i in range(60)]
    slow = [Sent(fast[-1].at_s + 0.02 * i, 1 + i % 2) for i in range(1, 120)]
    assert "stall-then-burst" not in causes([*fast, *slow])


def test_our_own_stall_is_no_pause() -> None:
    sends = paused(100, 0.6, steady(200), held=True)
    begin = sends[99].at_s
    assert causes(sends, running=True) == ["stall-then-burst"]
    still = [(begin + 0.005, begin + 0.6)]
    assert causes(sends, running=True, stalls=still) == []
    notes = measured(sends, running=True, stalls=still).notes
    assert any("this client stood still 1 times" in note for note in notes)
    # A short one does not excuse a long pause of the server's.
    assert causes(paused(100, 0.6, steady(200)), stalls=[(begin, begin + 0.03)]) == ["stall"]
    assert measured(sends).notes == ()


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-5, 0.01, 0.3, 2.0]), min_size=1, max_size=60),
    st.lists(st.integers(0, 9), min_size=60, max_size=60),
    st.booleans(),
)
def test_any_times_can_be_judged(gaps: list[float], tokens: list[int], usage: bool) -> None:
    """Reads of one time, medians of 0, nothing but pauses: no exception, no warning."""
    t_s = np.cumsum(gaps)
    sends = [Sent(0.1 + float(t), n) for t, n in zip(t_s, tokens, strict=False)]
    causes(sends, usage=usage)
    causes(sends, running=usage)


def test_overlap() -> None:
    t_s = np.array([0.0, 1.0, 3.0])
    assert overlap_s(t_s, [(0.5, 1.5), (2.0, 2.5), (9.0, 9.5)]).tolist() == [0.5, 1.0]
    assert overlap_s(np.array([1.0]), [(0.0, 2.0)]).tolist() == []


def test_a_stopped_loop_is_noticed() -> None:
    async def stop() -> tuple[LagWatch, int, int]:
        async with LagWatch() as watch:
            await asyncio.sleep(0.02)
            begin = time.monotonic_ns()
            time.sleep(0.1)
            end = time.monotonic_ns()
        return watch, begin, end

    watch, begin, end = asyncio.run(stop())
    longest = max(watch.stalls, key=lambda stall: stall.seconds)
    assert longest.seconds > 0.075
    assert longest.begin_ns < begin + 10_000_000
    assert longest.end_ns >= end


@pytest.mark.parametrize("late_s", [0.004, 0.012, 0.03])
def test_a_late_client_sees_no_speculation(late_s: float) -> None:
    """One token a step; reads happen at odd times, and have several events each."""
    plain = steady(400, 0.005)
    looks = 0.1 + np.cumsum(np.random.default_rng(3).exponential(late_s, 2000))
    seen = [looks[np.searchsorted(looks, at_s)] for at_s, _ in plain]
    sends = [Sent(float(at_s), s.tokens) for at_s, s in zip(seen, plain, strict=True)]
    m = measured(sends)
    assert m.steps.kind == "events"
    assert m.committed_per_step == 1.0
    assert causes(sends) == []


def test_steps_that_shared_a_read_share_its_wait() -> None:
    t_s = np.array([1.0, 1.0, 1.3, 1.3, 1.3, 1.4])
    assert shared_gaps(t_s) == pytest.approx([0.0, 0.1, 0.1, 0.1, 0.1])
    assert shared_gaps(np.array([])).tolist() == []
    assert shared_gaps(np.array([2.0])).tolist() == []


def test_what_piled_up_in_our_own_stalls_was_held_back_by_nobody() -> None:
    """Most of the answer came in heaps, each at the end of a stall of this client's."""
    sends = steady(100, 0.008, (3, 5))
    stalls = [(t, t + 0.06) for t in np.arange(0.11, 0.9, 0.062)]
    late = [
        send._replace(at_s=next((b for a, b in stalls if a <= send.at_s < b), send.at_s))
        for send in sends
    ]
    assert causes(late, running=True) == ["proxy-buffering"]
    assert causes(late, running=True, stalls=stalls) == []
