"""Shrinking ends when its time is up, whatever Hypothesis would like to try yet."""

from __future__ import annotations

import time

import pytest
import torch

from verify_attn.conformance import fuzz
from verify_attn.conformance.fuzz import Fuzz
from verify_attn.kernels.base import Capabilities, FunctionKernel


def wrong(batch, out, lse):
    out.fill_(1.0)
    lse.fill_(0.0)
    time.sleep(0.05)


def test_nothing_is_tried_after_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fuzz, "SHRINK_S", 0.5)
    monkeypatch.setattr(fuzz, "SHRINK_INTERPRETED_S", 0.5)
    drawn = []
    shrink = Fuzz._shrink

    def counted(self, case):
        drawn.append(time.monotonic())
        shrink(self, case)

    monkeypatch.setattr(Fuzz, "_shrink", counted)
    events: list[dict] = []
    kernel = FunctionKernel("wrong", wrong, Capabilities())
    Fuzz(kernel, torch.device("cpu"), ["oracle"], events.append, seed=1).run(20)
    final = [e for e in events if e["event"] == "failure" and e["final"]]
    assert final
    assert len(drawn) > 1
    late = [t for t in drawn if t - drawn[0] > 0.5]
    assert len(late) <= 1, len(late)
    if (
        late
    ):  # and that it was up is said: the smallest case is the same in every run, this may not be
        assert any("the time to find a smaller case was up" in e["text"] for e in final)
