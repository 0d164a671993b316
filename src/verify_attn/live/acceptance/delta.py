"""What a counter gained between two scrapes of one server."""

from __future__ import annotations

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.prometheus import Labels, Samples

# The start of a process, where the exporter shows it (Unix s).  It is computed from boot time and
# clock ticks, so it may jitter; a restart moves it by more than this.
PROCESS_START = "process_start_time_seconds"
START_JITTER_S = 2.0


def delta(before: Samples, after: Samples, name: str, **labels: str) -> float | Absent:
    """The gain of a counter over every matching series, never negative.

    `Absent` where the counter is not there, or where the server restarted between the scrapes.
    """
    found = series_deltas(before, after, name, **labels)
    return found if isinstance(found, Absent) else sum(found.values())


def deltas_by(before: Samples, after: Samples, name: str, label: str) -> dict[str, float] | Absent:
    """The gain by the values of one label, summed over the other labels."""
    found = series_deltas(before, after, name)
    if isinstance(found, Absent):
        return found
    sums: dict[str, float] = {}
    for key, gain in found.items():
        at = dict(key).get(label)
        if at is not None:
            sums[at] = sums.get(at, 0.0) + gain
    return sums


def series_deltas(
    before: Samples, after: Samples, name: str, **labels: str
) -> dict[Labels, float] | Absent:
    """The gain of each series.

    Series are compared one by one: a sum would hide the restart of one engine behind the growth
    of another.  A series that is new in ``after`` began at 0, as Prometheus has it.
    """
    old, new = before.series(name, **labels), after.series(name, **labels)
    if not new:
        return Absent(
            f"restarted: {name} was there before and is gone" if old else f"no counter {name}"
        )
    why = restarted(before, after, name)
    if why:
        return Absent(why)
    gone = old.keys() - new.keys()
    if gone:
        return Absent(f"restarted: {len(gone)} series of {name} were there before and are gone")
    gains = {key: value - old.get(key, 0.0) for key, value in new.items()}
    for key, gain in gains.items():
        if gain < 0 or new[key] < 0:
            return Absent(
                f"restarted: {name} went from {old.get(key, 0.0):g} to {new[key]:g}; "
                "a counter never falls while its server lives"
            )
    return gains


def restarted(before: Samples, after: Samples, name: str) -> str | None:
    """Signs of a restart that the counts themselves may hide, as a sentence, or None."""
    old, new = before.created(name), after.created(name)
    if old and new and max(new) > max(old) and not old & new:
        return f"restarted: {name} began anew between the two readings"
    started, again = before.sum(PROCESS_START), after.sum(PROCESS_START)
    if started is not None and again is not None and abs(again - started) > START_JITTER_S:
        return f"restarted: the server's process began {again - started:+.0f} s from the one before"
    return None
