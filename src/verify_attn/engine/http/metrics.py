"""The engine's counters as Prometheus text; names behind the prefix are vLLM's where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

PREFIX = "verify_attn:"
_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5,
    2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Measures(Protocol):
    """What is read of the KV pool's state: pages by use, and how scattered requests lie."""

    @property
    def pages(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def mean_runs(self) -> float: ...
    @property
    def max_runs(self) -> int: ...
    @property
    def mean_run_pages(self) -> float: ...
    @property
    def mean_spanned_pages(self) -> float: ...
    @property
    def scattered(self) -> int: ...


_POOL = {
    "pages": ("kv_pages", "Pages of the KV pool"),
    "free": ("kv_pages_free", "Pages that nobody has"),
    "cached": ("kv_pages_cached", "Pages that only the prefix cache has"),
    "held": ("kv_pages_held", "Pages of requests"),
    "mean_runs": ("kv_runs_mean", "Runs of adjacent pages a request, mean over requests"),
    "max_runs": ("kv_runs_max", "Runs of adjacent pages of the most scattered request"),
    "mean_run_pages": ("kv_run_pages_mean", "Pages a run, mean"),
    "scattered": ("kv_scattered_reservations", "Reservations since the start that found no run"),
    "mean_spanned_pages": ("kv_spanned_pages_mean", "Pages from first to last of a request, mean"),
}


class Metrics:
    """What the engine tells, from its own thread.

    A step counts once for each request in it, also where nothing was drafted for a request; what
    a step commits is its accepted drafts and one bonus token, before a stop cuts it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        ProcessCollector(registry=self.registry)  # memory and file descriptors of the process
        self._committed = self._counter("committed_tokens", "Tokens that verify steps committed")
        self._steps = self._counter("spec_decode_num_drafts", "Verify steps, one each request")
        self._proposed = self._counter("spec_decode_num_draft_tokens", "Draft tokens proposed")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self._by_position = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Steps that accepted the draft at this depth, the first being 0",
            "position",
        )
        self._positions: list[Counter] = []
        self._step_s = self._histogram(
            "step_time_seconds", "A decode iteration: draft, verify, commit"
        )
        self._computed = self._counter("prefill_tokens", "Prompt tokens computed")
        self._prefill_s = self._histogram("prefill_chunk_time_seconds", "One chunk of a prefill")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens out of the prefix cache")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of finished requests")
        self._generated = self._counter("generation_tokens", "Tokens of finished requests")
        self._finished = self._counter(
            "request_success", "Finished requests by reason, failed ones too", "finished_reason"
        )
        self._running = self._gauge("num_requests_running", "Requests that have KV")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue")
        self._pool = {name: self._gauge(*words) for name, words in _POOL.items()}

    def step(self, requests: int, proposed: int, accepted: Sequence[int], seconds: float) -> None:
        """One verify step of ``requests``: drafts proposed in all, accepted by each."""
        self._steps.inc(requests)
        self._proposed.inc(proposed)
        self._accepted.inc(sum(accepted))
        self._committed.inc(requests + sum(accepted))
        deepest = max(accepted, default=0)
        while len(self._positions) < deepest:
            self._positions.append(self._by_position.labels(str(len(self._positions))))
        for depth in range(deepest):
            self._positions[depth].inc(sum(1 for count in accepted if count > depth))
        self._step_s.observe(seconds)

    def prefill(self, tokens: int, seconds: float, cached: int) -> None:
        """One chunk: tokens computed; ``cached`` of a request is told with its first chunk."""
        self._computed.inc(tokens)
        self._hits.inc(cached)
        self._prefill_s.observe(seconds)

    def finished(self, reason: str, prompt_tokens: int, generated: int) -> None:
        """A request is over, for whatever reason."""
        self._finished.labels(reason).inc()
        self._prompt.inc(prompt_tokens)
        self._generated.inc(generated)

    def state(self, running: int, waiting: int, measures: Measures | None) -> None:
        """How things stand; None leaves the pool's gauges as they are."""
        self._running.set(running)
        self._waiting.set(waiting)
        if measures is not None:
            for name, gauge in self._pool.items():
                gauge.set(getattr(measures, name))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, words, labels, registry=self.registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(PREFIX + name, words, registry=self.registry)

    def _histogram(self, name: str, words: str) -> Histogram:
        return Histogram(PREFIX + name, words, registry=self.registry, buckets=_SECONDS)
