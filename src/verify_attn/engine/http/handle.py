"""The engine as the routes see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.job import Job


class Handle(Protocol):
    """An engine that runs in a thread of its own; every method may be called from any thread.

    ``max_context``  tokens one request may have, prompt and answer together
    ``lossless``     False where a drafter decides what is committed, whatever the logits say
    ``about``        plain values for the record: kernel, page_size, allocator, layers, device ...
    """

    @property
    def model_name(self) -> str: ...
    @property
    def max_context(self) -> int: ...
    @property
    def drafter(self) -> str: ...
    @property
    def budget(self) -> int: ...
    @property
    def lossless(self) -> bool: ...
    @property
    def about(self) -> Mapping[str, object]: ...
    @property
    def metrics(self) -> Metrics: ...

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises `QueueFullError`, `ContextOverflowError`, or another `RefusedError`.
        """

    def cancel(self, name: str) -> None:
        """Forget a job and free its KV at the next step; any name, any number of times."""

    def flush(self) -> int:
        """Empty the prefix cache; the number of pages that it freed.  May wait for a step."""

    def alive(self) -> str | None:
        """None, or why the engine is dead."""
