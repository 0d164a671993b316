"""Streams side by side: their total rate, what was asked of the server, and no collector meanwhile.

The sum of the streams' own rates is no total: streams start one after another where prefills
queue, and each is fastest while few others run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Own

if TYPE_CHECKING:
    from verify_attn.live.points import Trial

OVERLAP = "the time in which every stream decoded"
SPAN = "from the first token of any stream to the last of any"
MIN_OVERLAP = 0.25  # of the span: a shorter stretch says little about the rest


@dataclass(frozen=True)
class Together:
    """One round: ``tokens`` of ``streams`` streams in ``seconds``, which are `OVERLAP` or `SPAN`.

    The overlap is used where it covers `MIN_OVERLAP` of the span; else the span, with all that
    was prefilled and waited for in it.
    """

    streams: int
    tokens: float
    seconds: float
    over: str

    @property
    def tok_per_s(self) -> float:
        """Total rate."""
        return self.tokens / self.seconds


def together(trials: Sequence[Trial]) -> Together | Absent:
    """The total of a round's streams, by when each token came; a failed stream is not in it."""
    times, counts = [], []
    for trial in trials:
        steps = trial.measurement.steps
        if isinstance(steps.tokens, Absent):
            return steps.tokens
        times.append(trial.sent_ns / 1e9 + steps.t_s)
        counts.append(np.cumsum(steps.tokens))
    if not times:
        return Absent("no stream had a decode rate")
    first, last = min(t[0] for t in times), max(t[-1] for t in times)
    begin, end, over = max(t[0] for t in times), min(t[-1] for t in times), OVERLAP
    if end - begin < MIN_OVERLAP * (last - first):
        begin, end, over = first, last, SPAN
    if end <= begin:
        return Absent("all tokens came at once")
    tokens = 0.0
    for t, count in zip(times, counts, strict=True):
        before, after = np.interp([begin, end], t, count, left=0.0)
        tokens += float(after - before)
    return Together(len(times), tokens, float(end - begin), over)


def own_work(trials: Sequence[Trial], sent: int) -> Own:
    """What ``sent`` requests had the server do; unknown where one has no answer to count."""

    def total(values: list[int | Absent]) -> int | None:
        known = [value for value in values if not isinstance(value, Absent)]
        return sum(known) if known and len(known) == sent else None

    return Own(
        requests=sent,
        completion_tokens=total([t.measurement.completion_tokens for t in trials]),
        prompt_tokens=total([t.measurement.prompt_tokens for t in trials]),
    )


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's collector waits: a collection stops all streams, and their reads are stamped late.

    What it would find meanwhile is little: a round's chunks are kept anyway.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
