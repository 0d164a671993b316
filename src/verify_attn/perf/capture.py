"""CUDA graphs for timing, and a torch that still works after a capture has failed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import cuda

from verify_attn.perf.device import Launch, TimerError

_failed: list[cuda.CUDAGraph] = []  # torch's allocator may keep the address of such a graph


def capture(launches: Sequence[Launch], index: int) -> cuda.CUDAGraph:
    """One graph of all launches, one after the other, on GPU ``index``, the current one.

    Every launch is called once before.  Raises `TimerError` where a launch cannot be captured (it
    synchronises or takes memory from the driver) or where nothing was captured.
    """
    before = cuda.current_stream()
    side = cuda.Stream()
    side.wait_stream(before)
    with cuda.stream(side):  # as torch asks: libraries make their workspaces for a side stream
        for launch in launches:
            launch()
    before.wait_stream(side)
    cuda.synchronize()
    graph, pool = cuda.CUDAGraph(), cuda.graph_pool_handle()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "The CUDA Graph is empty")
            with cuda.graph(graph, pool=pool):
                for launch in launches:
                    launch()
    except Exception as error:
        _tidy(graph, pool, before, index)
        reason = first_line(error.__context__ or error)
        raise TimerError(
            f"no CUDA graph could be captured: {reason}. Inside a graph a call may not synchronise "
            "nor take memory from the driver, and all its work must be ordered by the current "
            "stream"
        ) from error
    return graph


def first_line(error: BaseException) -> str:
    """Of what an error says; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _tidy(graph: cuda.CUDAGraph, pool: Any, stream: cuda.Stream, index: int) -> None:
    """Undo what an unfinished capture leaves behind: without it the next capture and the next
    ``torch.cuda.empty_cache`` fail an assertion of torch 2.11 (pytorch#180395)."""
    _failed.append(graph)
    cuda.set_stream(stream)  # torch.cuda.graph leaves its own as the current one
    with contextlib.suppress(RuntimeError):  # a later torch has done so itself
        torch._C._cuda_endAllocateToPool(index, pool)
    generator = cuda.default_generators[index]  # may think that it is still being captured
    generator.graphsafe_set_state(generator.clone_state())
    cuda.synchronize()
