"""What is said of an answer whose every time and count is known, without a network."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.synthetic import Sent, answer, causes, findings, measured, steady
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.causes import HIGH, LOW, MEDIUM
from verify_attn.live.measure import Measurement
from verify_attn.live.within import chunk_interval, diagnose_answer

FIGURES = (
    "first_event_s", "first_token_s", "first_answer_s", "last_token_s", "decode_tok_s",
    "burst_tok_s", "two_point_tok_s", "whole_tok_s", "committed_per_step", "step_ms", "max_gap_s",
)  # fmt: skip
TIMES = ("first_event_s", "first_token_s", "first_answer_s", "last_token_s", "step_ms", "max_gap_s")
RATES = ("decode_tok_s", "burst_tok_s", "two_point_tok_s", "whole_tok_s")


@st.composite
def answers(draw: st.DrawFn) -> list[Sent]:
    """Steps of 5 to 50 ms with 1 to 8 tokens each, after some wait."""
    steps = draw(st.integers(3, 150))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    low = draw(st.sampled_from([0.005, 0.02]))
    t_s = draw(st.floats(0.01, 3.0)) + np.cumsum(rng.uniform(low, 2.5 * low, steps))
    most = draw(st.integers(1, 8))
    return [Sent(float(t), int(n)) for t, n in zip(t_s, rng.integers(1, most + 1, steps),
                                                   strict=True)]  # fmt: skip


def figures(m: Measurement, names: tuple[str, ...] = FIGURES) -> dict[str, float]:
    """By name; not a number where absent."""
    found = {name: getattr(m, name) for name in names}
    return {name: math.nan if isinstance(v, Absent) else float(v) for name, v in found.items()}


def same(expected: dict[str, float], rel: float) -> object:
    """Alike, and absent where the other is."""
    return pytest.approx(expected, rel=rel, nan_ok=True)


@given(answers(), st.integers(0, 2**60), st.booleans())
def test_when_it_happened_does_not_matter(sends: list[Sent], offset_ns: int, running: bool) -> None:
    here, there = measured(sends, running=running), measured(
        sends, running=running, offset_ns=offset_ns
    )  # fmt: skip
    assert figures(here) == same(figures(there), 1e-9)
    assert causes(sends, running=running) == causes(sends, running=running, offset_ns=offset_ns)


@given(answers(), st.floats(0.5, 8.0), st.booleans())
def test_rates_scale_with_time(sends: list[Sent], by: float, running: bool) -> None:
    slower = [send._replace(at_s=send.at_s * by) for send in sends]
    here, there = measured(sends, running=running), measured(slower, running=running)
    for names, factor in ((TIMES, by), (RATES, 1 / by), (("committed_per_step",), 1.0)):
        expected = {name: value * factor for name, value in figures(here, names).items()}
        assert figures(there, names) == same(expected, 1e-5)
    assert len(here.windows) == len(there.windows)


@given(answers(), st.integers(2, 10_000), st.booleans())
def test_no_number_comes_from_the_request(sends: list[Sent], asked: int, ids: bool) -> None:
    """Without usage the length asked for is not taken for the length that came."""
    here = measured(sends, usage=False, ids=ids, asked=asked)
    other = measured(sends, usage=False, ids=ids, asked=asked + 1)
    assert figures(here) == same(figures(other), 0)
    if ids:
        assert here.completion_tokens == sum(send.tokens for send in sends)
    else:
        assert isinstance(here.completion_tokens, Absent)
        for name in (*RATES, "committed_per_step"):
            assert isinstance(getattr(here, name), Absent)
        assert here.windows == ()
        assert causes(sends, usage=False)[0] == "usage-missing"


@given(answers(), st.sampled_from(["usage", "running", "ids"]))
def test_the_tokens_of_the_chunks_are_those_of_the_usage(sends: list[Sent], by: str) -> None:
    m = measured(sends, running=by == "running", ids=by == "ids")
    total = sum(send.tokens for send in sends)
    assert m.completion_tokens == total
    assert not isinstance(m.timeline.tokens, Absent)
    assert float(m.timeline.tokens.sum()) == pytest.approx(total)
    assert not isinstance(m.steps.tokens, Absent)
    assert float(m.steps.tokens.sum()) == pytest.approx(total)
    if by != "usage":
        assert m.timeline.exact
        assert [int(n) for n in m.timeline.tokens] == [send.tokens for send in sends]


@given(answers())
def test_the_rate_is_tokens_over_time(sends: list[Sent]) -> None:
    m = measured(sends, running=True)
    true = sum(s.tokens for s in sends[1:]) / (sends[-1].at_s - sends[0].at_s)
    assert figures(m)["decode_tok_s"] == pytest.approx(true, rel=1e-6)
    assert figures(m)["first_token_s"] == pytest.approx(sends[0].at_s, rel=1e-6)
    spans = math.fsum(w.seconds for w in m.windows)
    assert spans == pytest.approx(sends[-1].at_s - sends[0].at_s, rel=1e-6)
    assert math.fsum(w.tokens for w in m.windows) == pytest.approx(sum(s.tokens for s in sends[1:]))


def noisy(
    steps: int, step_s: object, committed: object, seed: int = 0, jitter: float = 0.05
) -> list[Sent]:
    """Steps of a time and a mean of tokens that may be arrays over the answer."""
    rng = np.random.default_rng(seed)
    seconds = np.broadcast_to(np.asarray(step_s, float), steps) * (
        1 + jitter * rng.standard_normal(steps)
    )
    chance = 1 / np.broadcast_to(np.asarray(committed, float), steps)
    tokens = np.minimum(rng.geometric(chance), 8)
    return [Sent(0.2 + float(t), int(n)) for t, n in zip(np.cumsum(seconds), tokens, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_wrong(seed: int) -> None:
    assert causes(noisy(200, 0.01, 3.0, seed, 0.15), running=True) == []
    assert causes(noisy(200, 0.01, 3.0, seed, 0.15)) == []
    assert causes(noisy(400, 0.005, 1.0, seed, 0.15)) == []


@pytest.mark.parametrize("seed", range(5))
def test_whose_share_it_is(seed: int) -> None:
    falls = np.r_[np.full(60, 5.0), np.full(120, 1.5)]
    grows = np.linspace(0.008, 0.02, 180)
    assert causes(noisy(180, 0.01, falls, seed), running=True) == ["acceptance-falls"]
    assert causes(noisy(180, grows, 3.0, seed), running=True) == ["step-time-grows"]
    both = causes(noisy(180, grows, falls, seed), running=True)
    assert both == ["acceptance-falls", "step-time-grows"]


def test_where_it_changes_is_said() -> None:
    sends = noisy(300, np.r_[np.full(150, 0.01), np.full(150, 0.025)], 1.0)
    (found,) = findings(sends, running=True)
    assert found.cause == "step-time-grows"
    said = re.search(r"by (\S+) times at token (\d+)$", found.evidence)
    assert said is not None
    assert float(said[1]) == pytest.approx(2.5, rel=0.05)
    assert abs(int(said[2]) - 150) <= 5


def test_a_change_of_subject_is_no_fall() -> None:
    """Text whose tokens get shorter by half, in an answer that only its length tells from."""
    sends = noisy(600, 0.01, 3.0, seed=5)
    # The same in words of the early text, which are half as long again.
    longer = [s._replace(tokens=round(1.5 * s.tokens)) if i < 300 else s
              for i, s in enumerate(sends)]  # fmt: skip
    assert causes(sends) == causes(longer) == []
    assert causes(longer, running=True) == ["acceptance-falls"]


def test_confidence_says_how_it_is_known() -> None:
    falls = noisy(180, 0.01, np.r_[np.full(60, 6.0), np.full(120, 1.2)])
    assert [f.confidence for f in findings(falls, running=True)] == [MEDIUM]
    (estimated,) = findings(falls)
    assert estimated.confidence == LOW
    assert "estimated" in estimated.evidence


def test_a_chunk_interval_is_no_committed_count() -> None:
    m = measured(steady(60, 0.05, 10), running=True)
    alone = chunk_interval(m, Absent("no counter"))
    assert alone is not None
    assert alone.confidence == MEDIUM
    said = Acceptance("counters", scope="interval", mean_committed=1.0)
    against = chunk_interval(m, said)
    assert against is not None
    assert against.confidence == HIGH
    # A chain whose drafts are all right commits the same every step.
    right = replace(said, mean_committed=10.0)
    assert chunk_interval(m, right) is None
    assert diagnose_answer(m, None, right, Absent("")) == []
    assert chunk_interval(measured(noisy(60, 0.01, 4.0), running=True), Absent("")) is None


def test_ends_and_caches() -> None:
    nothing = Absent("not said")
    m = measured(steady(60))
    early = replace(m, finish="stop")
    assert [f.cause for f in diagnose_answer(early, 100, nothing, nothing)] == ["early-stop"]
    assert diagnose_answer(early, 60, nothing, nothing) == []
    cut = replace(m, finish="length")  # by a limit of the server's own, or as asked
    assert [f.cause for f in diagnose_answer(cut, 100, nothing, nothing)] == ["early-stop"]
    assert diagnose_answer(cut, 61, nothing, nothing) == []
    long = replace(m, prompt_tokens=10_000)
    assert [f.cause for f in diagnose_answer(long, None, nothing, 9_800)] == ["prefix-cache-hit"]
    assert diagnose_answer(long, None, nothing, 48) == []


def test_nothing_was_streamed() -> None:
    sends = [Sent(3.0 + 1e-5 * i, 1) for i in range(200)]
    assert causes(sends) == ["fake-streaming"]
    assert isinstance(measured(sends).decode_tok_s, Absent)


@pytest.mark.parametrize("packets", [1, 3])
def test_releases_of_a_proxy(packets: int) -> None:
    """Every 250 ms what has come together, in one read or in several in a row."""
    sends = []
    for i, send in enumerate(steady(500, 0.01, (2, 4))):
        release = math.ceil(send.at_s / 0.25 - 1e-9) * 0.25
        sends.append(send._replace(at_s=release + 1e-5 * (i % packets)))
    sends.sort()
    m = measured(sends, running=True)
    assert m.steps.held_back is not None
    assert isinstance(m.committed_per_step, Absent)
    assert m.steps.period_s == pytest.approx(0.25, rel=0.01)
    assert figures(m)["decode_tok_s"] == pytest.approx(300, rel=0.01)
    assert causes(sends, running=True) == ["proxy-buffering"]


def test_one_busy_moment_is_no_proxy() -> None:
    sends = steady(80, 0.01, (2, 4))
    late = [s._replace(at_s=max(s.at_s, 0.7)) if s.at_s > 0.4 else s for s in sends]
    m = measured(late, running=True)
    assert m.steps.held_back is None
    assert "proxy-buffering" not in causes(late, running=True)


def test_an_answer_of_nothing() -> None:
    m = measured([])
    assert isinstance(m.first_token_s, Absent)
    assert all(math.isnan(value) for value in figures(m, (*RATES, "committed_per_step")).values())
    assert answer([]).stream.outcome == "complete"
