"""How long a pass takes, and how much of that is attention: for experiments, not for serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from verify_attn.engine.graphs import capture
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.step import Part


@torch.no_grad()
def attention_time(runner: LocalRunner, parts: Sequence[Part], repeats: int) -> float:
    """Seconds that the kernel's calls of all layers take in one verify pass of these parts.

    The calls run back to back on random queries over the pool as it is, in a CUDA graph where the
    runner's passes run in one, eagerly elsewhere.  ``prepare`` is not in it.
    """
    runner.check(parts)
    step = runner.loaded(parts, every=True)
    step.batch.q.normal_()
    run: Callable[[], object] = step.attend_all
    if runner.captures(parts):
        run = capture(step.attend_all)[0].replay
    return _seconds(run, runner.device, repeats)


def pass_time(runner: LocalRunner, parts: Sequence[Part], repeats: int) -> float:
    """Seconds of one whole verify pass of these parts, from the parts to the logits.

    It writes the nodes' rows, the same ones each time.
    """
    return _seconds(lambda: runner.forward(parts, every=True), runner.device, repeats)


def _seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Mean over ``repeats`` calls back to back, after one that does not count."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; it must be at least 1")
    run()
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - began) / repeats
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats
