"""CUDA graphs of launches, and a torch that still works after a capture has failed."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import cuda

_failed: list[cuda.CUDAGraph] = []  # torch's allocator may keep the address of such a graph


class CaptureError(RuntimeError):
    """Launches that cannot be captured; ``raised`` is what they raised, if they did."""

    def __init__(self, reason: str, raised: BaseException) -> None:
        super().__init__(
            f"no CUDA graph could be captured: {reason}. Inside a graph a call may not synchronise "
            "nor take memory from the driver, and all its work must be ordered by the current "
            "stream"
        )
        self.raised = raised


def capture(launches: Sequence[Callable[[], object]], index: int) -> cuda.CUDAGraph:
    """One graph of all launches, one after the other, on GPU ``index``, the current one.

    Every launch is called once before.  A graph keeps addresses and nothing alive: whoever replays
    it holds what the launches work on.  Raises `CaptureError` where a launch cannot be captured (it
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
    raising: list[Exception] = []
    try:
        with warnings.catch_warnings(), no_collection():
            warnings.filterwarnings("error", "The CUDA Graph is empty")
            with cuda.graph(graph, pool=pool):
                try:
                    for launch in launches:
                        launch()
                except Exception as error:  # leaving the capture raises another over it
                    raising.append(error)
                    raise
    except Exception as error:
        _tidy(graph, pool, before, index)
        raised = raising[0] if raising else error
        raise CaptureError(first_line(raised), raised) from error
    return graph


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """For the time of a capture: a graph in a reference cycle that the garbage collector came upon
    would be destroyed then, which CUDA forbids (pytorch#161037)."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
        torch._C._cuda_releasePool(index, pool)
    generator = cuda.default_generators[index]  # may think that it is still being captured
    generator.graphsafe_set_state(generator.clone_state())
    cuda.synchronize()
