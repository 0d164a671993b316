"""From token events to decode steps: what arrived together, and what that says.

A server sends one event a step, or one a token with a step's tokens microseconds apart, or a proxy
in between holds everything back.  The time of a step is only known in the first two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from verify_attn.live.absent import Absent
from verify_attn.live.stream import Stream
from verify_attn.live.tokens import Floats, Ints, Timeline

# A step's own tokens are written one right after the other; no engine decodes this fast on its own.
MAX_BURST_GAP_S = 1e-3
MIN_GAP_RATIO = 6.0  # between the gaps of two steps and those inside one, as medians
# What came this soon, as a share of the time of a quick step (the second tenth from below), is the
# rest of a step whose tokens a busy machine let go in two parts.
MIN_STEP_SHARE, QUICK = 0.5, 0.2
# What was made before it came takes next to no time to arrive: longer, as a share of the wait
# before it, and the short gaps are the steps of a fast server, the long ones this client's pauses.
MAX_INNER_SHARE = 0.25
# More tokens together than a drafter commits on average: something held the events back.
MAX_COMMITTED_MEAN = 10.0
CLOCK_GRAIN_S = 1e-5  # gaps below are alike: the time that one read takes
MIN_BURST_MEAN = 1.5  # events that shared a read now and then are no speculation
MAX_BURST_EVENTS = 32  # deeper than any draft tree commits
# Correlation of the tokens that come together with the wait before them: what a step commits does
# not depend on its time, what piled up on the way is in proportion to it.
MAX_PILED_UP = 0.6
MIN_EVENTS = 32  # fewer say nothing about buffering
AFTER_STALL_S = 0.02  # a server on the same machine stood still as well, and catches up too

Spans = Sequence[tuple[float, float]]  # from when to when, in seconds


@dataclass(frozen=True)
class Steps:
    """Decode steps as seen from here (S of them; the first brings the first token).

    ``t_s``     [S] arrival, seconds from the request's first byte
    ``tokens``  [S] tokens committed by each, or Absent
    ``kind``    ``events``: an event a step; ``bursts``: events that arrived together, inferred;
                ``reads``: held back on the way, so that these are not the engine's steps
    ``period_s``  of the releases, where something held events back
    """

    t_s: Floats
    tokens: Floats | Absent
    kind: str
    held_back: str | None = None
    period_s: float | None = None

    @property
    def are_steps(self) -> bool:
        """Do these stand for the engine's steps?"""
        return self.held_back is None


def find_steps(
    timeline: Timeline,
    stream: Stream,
    *,
    drafted: bool = True,
    stood_still: Spans = (),
) -> Steps:
    """Group the events of a timeline.

    ``drafted`` is False where the server says that it drafted nothing: what came together then is
    no step of several tokens.  ``stood_still``: from when to when this client did nothing.
    """
    events = len(timeline.t_s)
    if events == 0:
        return Steps(timeline.t_s, timeline.tokens, "events")
    starts = np.flatnonzero(np.diff(timeline.read, prepend=-1))
    threshold = burst_threshold(np.diff(timeline.t_s[starts]))
    if threshold is not None:
        # One release, or one step, may come in several reads.
        starts = starts[np.diff(timeline.t_s[starts], prepend=-np.inf) > threshold]
    held_back = _held_back(timeline, stream, starts, stood_still)
    if held_back is not None:
        t_s, tokens = _grouped(timeline, starts)
        gaps = np.diff(t_s)
        period = float(np.median(gaps)) if len(gaps) else None
        return Steps(t_s, tokens, "reads", held_back, period)
    if not drafted or _several_an_event(timeline):
        # Two steps whose events shared a read keep their own tokens; only their gap is lost.
        return Steps(timeline.t_s, timeline.tokens, "events")
    largest = int(np.diff(starts, append=events).max())
    if events < MIN_BURST_MEAN * len(starts) or largest > MAX_BURST_EVENTS:
        return Steps(timeline.t_s, timeline.tokens, "events")
    if _piled_up(timeline, starts):
        return Steps(timeline.t_s, timeline.tokens, "events")
    t_s, tokens = _grouped(timeline, starts)
    return Steps(t_s, tokens, "bursts")


def _piled_up(timeline: Timeline, starts: Ints) -> bool:
    """Did events come together because something on the way, or this client, was late?"""
    sizes = np.diff(starts, append=len(timeline.t_s))[1:]
    # From end to end: what piled up may come in several reads, as fast as this client takes them.
    waits = np.diff(timeline.t_s[np.append(starts[1:] - 1, len(timeline.t_s) - 1)])
    if len(sizes) < 8 or np.ptp(sizes) == 0 or np.ptp(waits) == 0:
        return False
    # By ranks, or one long pause would be all of it.
    return float(stats.spearmanr(sizes, waits).statistic) > MAX_PILED_UP


def _several_an_event(timeline: Timeline) -> bool:
    if isinstance(timeline.tokens, Absent):
        return False
    return bool(timeline.tokens[1:].mean() > 1.05) if len(timeline.tokens) > 1 else False


def _grouped(timeline: Timeline, starts: Ints) -> tuple[Floats, Floats | Absent]:
    tokens = timeline.tokens
    if not isinstance(tokens, Absent):
        tokens = np.add.reduceat(tokens, starts)
    return timeline.t_s[starts], tokens


def shared_gaps(t_s: Floats) -> Floats:
    """[S - 1] times of steps: those that came in one read share the wait before it."""
    _, group, sizes = np.unique(t_s, return_inverse=True, return_counts=True)
    waits = np.diff(t_s[np.searchsorted(group, np.arange(len(sizes)))])
    # The first step's own time is prefill: what shares its read has none.
    shares = np.concatenate(([0.0], waits / sizes[1:])) if len(sizes) else np.array([])
    return shares[group][1:]


def burst_threshold(gaps_s: Floats) -> float | None:
    """The gap that parts two steps, where gaps clearly come in two sizes; None where they do not.

    Otsu's threshold (1979) on the logarithm of the gaps, kept only if the short ones are too short
    for a decode step and the two kinds are well apart.
    """
    gaps = np.sort(np.maximum(gaps_s, CLOCK_GRAIN_S))
    if len(gaps) < 16:
        return None
    logs = np.log(gaps)
    below = np.arange(1, len(logs))
    sums = np.cumsum(logs)
    low_mean = sums[:-1] / below
    high_mean = (sums[-1] - sums[:-1]) / (len(logs) - below)
    between = below * (len(logs) - below) * (high_mean - low_mean) ** 2
    cut = int(np.argmax(between)) + 1
    low, high = gaps[:cut], gaps[cut:]
    # Where most of a step's events share a read, few gaps are inside one.
    if len(low) < 0.02 * len(gaps) or len(high) < 0.05 * len(gaps):
        return None
    low_median, high_median = float(np.median(low)), float(np.median(high))
    if low_median > MAX_BURST_GAP_S or high_median < MIN_GAP_RATIO * low_median:
        return None
    if float(low.sum()) / len(high) > MAX_INNER_SHARE * high_median:
        return None
    quick = float(np.quantile(high, QUICK))
    return max(float(np.sqrt(low[-1] * high[0])), MIN_STEP_SHARE * quick)


def _held_back(timeline: Timeline, stream: Stream, starts: Ints, stood_still: Spans) -> str | None:
    """Why the events cannot have left the engine when they arrived, or None."""
    events = len(timeline.t_s)
    if events < MIN_EVENTS or len(starts) < 3:
        return None
    # The median: one pause of this client or of the way leaves many events together once.
    together_each = np.diff(starts, append=events)
    # What piled up while this client stood still was not held back by anybody else.
    arrived = timeline.t_s[starts]
    ours = np.zeros(len(starts), dtype=bool)
    for begin, end in stood_still:
        ours |= (arrived >= begin) & (arrived <= end + AFTER_STALL_S)
    if int((~ours).sum()) < 3:
        return None
    together = float(np.median(together_each[~ours]))
    if together < 2.5:
        return None
    sizes = np.array([stream.reads[i].size_bytes for i in np.unique(timeline.read)])
    common = np.bincount(sizes).argmax()
    if len(sizes) >= 4 and common >= 1024 and np.mean(sizes == common) >= 0.6:
        return f"reads of {common:,} bytes each, whole buffers with {together:.3g} events"
    if _several_an_event(timeline):
        return f"{together:.3g} events at a time, each of them a step of several tokens"
    if together >= MAX_COMMITTED_MEAN:
        return f"{together:.3g} events at a time, more than one step commits"
    return None
