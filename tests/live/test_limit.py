"""Is a slope of the step time physics? By reading, and by arithmetic where nodes are many."""

from __future__ import annotations

import pytest

from verify_attn.live.limit import FAR_FROM_LIMIT, NEAR_LIMIT
from verify_attn.sweep_command import kv_read

# Milliseconds a layer of 184,728 tokens and 32 nodes on an H200, as measured (results/h200).
LAYERS, TOKENS, NODES = 61, 184_728, 32
UNSPLIT_MS, SPLIT_MS = 35.676, 0.392


def slope_s(layer_ms: float) -> float:
    return layer_ms / 1e3 * LAYERS / TOKENS


def test_of_few_nodes_reading_is_the_limit():
    kv = kv_read("kimi-k2.6-tp8", "h200", "bf16")
    share, words = kv.judge(kv.bytes_per_token / 4800e9, nodes=4)
    assert share == pytest.approx(1)
    assert "arithmetic" not in words


def test_of_many_nodes_arithmetic_is():
    kv = kv_read("kimi-k2.6-tp8", "h200", "bf16")
    least = NODES * 61 * 8 * 2 * (576 + 512) / 989.5e12
    share, words = kv.judge(least, NODES)
    assert share == pytest.approx(1)
    assert "100.0% of 990 TFLOP/s" in words


def test_a_kernel_that_splits_and_one_that_does_not():
    kv = kv_read("kimi-k2.6-tp8", "h200", "bf16")
    unsplit, split = (kv.judge(slope_s(ms), NODES)[0] for ms in (UNSPLIT_MS, SPLIT_MS))
    assert unsplit < 0.01 < FAR_FROM_LIMIT < split < NEAR_LIMIT


def test_numbers_given_by_hand_judge_reading_alone():
    kv = kv_read("70272", "1792", "bf16")
    assert kv.judge(70272 / 1792e9, nodes=1000)[0] == pytest.approx(1)
