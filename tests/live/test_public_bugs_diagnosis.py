"""Public bugs of figures that are right and mislead: caches, stalls, warm-ups, whose fault it is.

Each is named by its reference; tests/live/README.md has the whole list.
"""

from __future__ import annotations

import pytest

from tests.live.scripted import DONE, Said, delta, measured, steady, usage, word
from verify_attn.live.absent import Absent
from verify_attn.live.across import overview, split
from verify_attn.live.causes import Finding
from verify_attn.live.measure import Measurement
from verify_attn.live.points import Point, Trial
from verify_attn.live.prompts import Calibration, prompt
from verify_attn.live.verdict import judge
from verify_attn.live.within import diagnose_answer

NONE = Absent("not said")


def causes(m: Measurement, asked: int | None = None, cached: int | Absent = NONE) -> set[str]:
    return {finding.cause for finding in diagnose_answer(m, asked, NONE, cached)}


def speculating(
    steps: list[tuple[float, int]], *, prompt_tokens: int = 1000, first_s: float = 0.1
) -> list[tuple[float, Said]]:
    """One event a step of (seconds, tokens), with the server's running count."""
    reads: list[tuple[float, Said]] = []
    t_s, total = first_s, 0
    for i, (step_s, tokens) in enumerate(steps):
        t_s, total = t_s + (step_s if i else 0.0), total + tokens
        reads.append(
            (t_s, word("word " * tokens) | {"usage": usage(total, prompt_tokens)["usage"]})
        )
    return [*reads, (t_s, delta("length")), (t_s, DONE)]


def point(context: int, m: Measurement, findings: list[Finding] | None = None) -> Point:
    trial = Trial(m, None, NONE, NONE, findings=findings or [])
    return Point(context, 1, f"ctx={context}", [trial])


def wobbling(step_s: float, committed: list[int], n: int) -> list[tuple[float, int]]:
    """Steps whose times wobble by a percent, as all do."""
    return [(step_s * (1 + 0.01 * (i % 3 - 1)), committed[i % len(committed)]) for i in range(n)]


# -- held back, and released -----------------------------------------------------------------------


def test_d_inference_614_a_think_block_held_back_is_no_decode_speed() -> None:
    """12 s of silence, 852 tokens in 0.61 s, then the answer at the engine's own pace."""
    thoughts = [(12 + i * 0.61 / 852, delta(reasoning_content="hm ")) for i in range(852)]
    answer = [(12.62 + i * 0.013, word()) for i in range(400)]
    end = answer[-1][0]
    m = measured(*thoughts, *answer, (end, delta("length")), (end, usage(1252)), (end, DONE))
    assert "stall-then-burst" in causes(m)
    found = diagnose_answer(m, None, NONE, NONE)
    verdict = judge(point(1000, m, found), [point(1000, m, found)], [], "m", None, 128, False, [])
    assert verdict.status == "inconclusive"


def test_dstack_4269_a_buffer_of_16_kb() -> None:
    """Nothing for a while, then 64 to 66 events at once, again and again."""
    one = word()
    reads: list[tuple[float, Said]] = []
    for burst in range(12):
        reads += [(16.5 * (burst + 1), one)] * (64 + burst % 3)
    n = len(reads)
    reads += [(198.1, delta("length")), (198.1, usage(n)), (198.1, DONE)]
    m = measured(*reads)
    assert causes(m) == {"proxy-buffering"}
    assert isinstance(m.committed_per_step, Absent)
    assert isinstance(m.step_ms, Absent)


def test_imp_754_fake_streaming_has_no_rate() -> None:
    reads: list[tuple[float, Said]] = [(1.7 + i * 5e-6, word()) for i in range(200)]
    m = measured(*reads, (1.702, delta("stop")), (1.702, usage(200)), (1.702, DONE))
    assert isinstance(m.decode_tok_s, Absent)
    assert causes(m) == {"fake-streaming"}


# -- caches ----------------------------------------------------------------------------------------


def prefilled(prompt_tokens: int, first_s: float) -> Point:
    reads = steady(60, first_s=first_s)
    reads[-2] = (reads[-2][0], usage(60, prompt_tokens))
    return point(prompt_tokens, measured(*reads))


def test_lmbenchmark_35_a_prefill_that_cannot_be_is_a_cache_hit() -> None:
    """60 ms for 21,000 tokens; the others take 0.2 ms a token."""
    points = [prefilled(n, 0.02 + 2e-4 * n) for n in (1000, 4000, 8000, 32_000)]
    points.append(prefilled(21_000, 0.06))
    found = [f for f in overview(points, None).findings if f.cause == "prefix-cache-hit"]
    assert [f.points for f in found] == [("ctx=21000",)]


def test_vllm_54227_cached_tokens_refuse_the_point() -> None:
    reads = steady(60)
    reads[-2] = (reads[-2][0], usage(60, 21_000, prompt_tokens_details={"cached_tokens": 20_900}))
    m = measured(*reads)
    found = diagnose_answer(m, None, NONE, 20_900)
    assert [f.cause for f in found] == ["prefix-cache-hit"]
    mine = point(21_000, m, found)
    assert judge(mine, [mine], [], "m", None, 128, False, []).status == "inconclusive"
    assert m.prefill_tok_s(20_900) == pytest.approx(100 / 0.1)


def test_vllm_52884_prompts_differ_at_their_start_even_of_one_seed() -> None:
    prompts = [prompt("mixed", 4000, seed=0) for _ in range(20)]
    assert len({p[:8] for p in prompts}) == 20


def test_llama_cpp_10455_repeats_have_new_text() -> None:
    a, b = (prompt("prose", 4000, seed) for seed in (1, 2))
    middle = a[1000:1300]
    assert middle not in b


def test_vllm_24937_the_axis_is_the_servers_count() -> None:
    """133,000 were asked for, 184,728 came: the axis says so, and the next request is shorter."""
    assert prefilled(184_728, 100.0).context == 184_728
    calibration = Calibration()
    for asked in (64, 1024, 1024):
        chars = calibration.chars_for(asked)
        calibration.observe(chars, round(chars / 4 * 1.39))
    assert round(calibration.chars_for(133_000) / 4 * 1.39) == pytest.approx(133_000, rel=0.02)


# -- whose fault it is -----------------------------------------------------------------------------


def test_sglang_30763_acceptance_that_decays_is_named_and_has_the_whole_share() -> None:
    early = wobbling(0.02, [5, 3, 4, 4], 80)
    m = measured(*speculating([*early, *wobbling(0.02, [2, 1, 2, 1], 200)]))
    assert "acceptance-falls" in causes(m)
    assert "step-time-grows" not in causes(m)
    short = point(1000, measured(*speculating(wobbling(0.02, [5, 3, 4, 4], 100))))
    long = point(32_000, measured(*speculating(wobbling(0.02, [2, 1, 2, 1], 100))))
    rate, committed, step = short.decode_tok_s, short.committed_per_step, short.step_ms
    found = split(long, "short", rate, committed, step)
    assert not isinstance(found, Absent)
    assert found.acceptance_share == pytest.approx(1, abs=0.02)


def test_vllm_42910_equal_steps_of_another_time_are_the_step_times() -> None:
    """34 steps each; 144.9 tok/s against 99.1."""
    tokens = [5, 3, 4, 4]
    fast = point(1000, measured(*speculating(wobbling(0.0276, tokens, 34))))
    slow = point(1000, measured(*speculating(wobbling(0.0404, tokens, 34))))
    rate, committed, step = fast.decode_tok_s, fast.committed_per_step, fast.step_ms
    found = split(slow, "the graph", rate, committed, step)
    assert not isinstance(found, Absent)
    assert found.rate == pytest.approx(99.1 / 144.9, rel=0.02)
    assert found.acceptance_share == pytest.approx(0, abs=0.02)


def test_aicr_1196_a_slow_first_answer_is_a_warm_up_and_no_prefill() -> None:
    points = [prefilled(1000, 42.0), *(prefilled(n, 0.02 + 2e-4 * n) for n in (4000, 8000, 16_000))]
    found = overview(points, None)
    assert {f.cause for f in found.findings} == {"warm-up"}
    assert found.prefill_fit is not None
    assert found.prefill_fit.at(1000) < 1


def test_sglang_3050_a_logs_rate_is_never_ours() -> None:
    """The rate comes from this client's clock; the server's own throughput is in no figure."""
    answer = speculating(wobbling(0.02, [4], 40))
    m = measured(*answer)
    assert m.decode_tok_s == pytest.approx(200, rel=0.02)
