"""The rounds of one test under pytest-benchmark: what it calls before, while and after it reads its
timer.

pytest-benchmark subtracts two readings of a timer.  Here the timer is a clock that stands still but
for a sample of the device's, so that the difference is that sample and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

from verify_attn.perf.bench import CELL_S, LEAST_ROUNDS, MOST_ROUNDS, PRECISION
from verify_attn.perf.case import case_record
from verify_attn.perf.device import Sample, TimerError
from verify_attn.perf.fresh import Moments
from verify_attn.perf.statistics import median_interval
from verify_attn.perf.subject import Subject
from verify_attn.perf.tested import Tested

WARM_UP = 1  # rounds that pytest-benchmark takes and forgets; the pilot has warmed up already


class Clock:
    """A timer for pytest-benchmark, in seconds; ``advance`` alone moves it."""

    __name__ = "device_clock"  # what pytest-benchmark writes down

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class NotPassed(Exception):
    """Measured, and no result; ``case`` says why."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case["reason"])
        self.case = case


class Rounds:
    """``before``, ``call`` and ``after`` are one round; ``case`` is there after the last one.

    ``base``   the baseline, sampled in turn with the subject, the first one alternating; None:
               there is none
    ``count``  rounds to take, from a pilot: as many as make the interval narrow
    """

    def __init__(
        self, tested: Tested, clock: Clock, subject: Subject, part: str, base: Subject | None
    ) -> None:
        self.tested, self.device, self.clock = tested, tested.device, clock
        self.subject, self.part, self.base = subject, part, base
        if part in subject.absent:
            raise TimerError(f"{part} is not measured: {subject.absent[part]}")
        # A time of the run itself belongs to every case: bandwidth and speedup are made of it.
        self.beside = [] if part == "run" else ["run"]
        self.samples: dict[str, list[Sample]] = {p: [] for p in ("run", part)}
        self.baseline: list[float] = []
        self.notes: list[str] = []
        self.case: dict[str, Any] = {}
        self.number = 0
        self.count = self._pilot()
        self.moments, self.moments_beside, self.moments_of_base = Moments(), Moments(), Moments()

    def before(self) -> None:
        """Set up a round."""
        self.clock.seconds = 0.0  # a difference from 0 is exact
        if self.number % 2:
            self._sample_others()
        self.subject.disturb(self.part)

    def call(self) -> None:
        """What is timed."""
        self.last = self.device.sample(self.subject.calls[self.part])
        self.clock.seconds += self.last.seconds

    def after(self) -> None:
        """Judge and keep; after the last round raises `NotPassed` unless there is a result."""
        if self.case:  # --benchmark-cprofile calls once more, untimed
            return
        if self.moments(self.number) and self.last.stands:
            self.subject.judge(self.part)
        if self.number >= WARM_UP:
            self.samples[self.part].append(self.last)
        if not self.number % 2:
            self._sample_others()
        self.number += 1
        if self.number == WARM_UP + self.count:
            self._finish()

    def _sample_others(self) -> None:
        for part in self.beside:
            self.subject.disturb(part)
            sample = self.device.sample(self.subject.calls[part])
            if self.moments_beside(self.number) and sample.stands:
                self.subject.judge(part)
            if self.number >= WARM_UP:
                self.samples[part].append(sample)
        seconds = self._sample_base(judge=self.moments_of_base(self.number))
        if seconds is not None and self.number >= WARM_UP:
            self.baseline.append(seconds)

    def _sample_base(self, judge: bool) -> float | None:
        """None without one, and once it has failed: that is no fault of the subject's."""
        if self.base is None:
            return None
        try:
            self.base.disturb("run")
            sample = self.device.sample(self.base.calls["run"])
            if judge and sample.stands:
                self.base.judge("run")
            return sample.seconds
        except Exception as failure:
            self.notes.append(f"no speedup: {self.base.kernel.name}: {failure}")
            self.base, self.baseline = None, []
            return None

    def _pilot(self) -> int:
        """Warm up; how many rounds the interval needs, as far as time allows."""
        moments = Moments()
        taken, spent = [], 0.0
        for number in range(LEAST_ROUNDS):
            for part in [*self.beside, self.part]:
                self.subject.disturb(part)
                sample = self.device.sample(self.subject.calls[part])
                spent += sample.seconds
            taken.append(sample.seconds)
            spent += self._sample_base(judge=moments(number)) or 0.0
        interval = median_interval(taken)
        width = max(interval.high - interval.median, interval.median - interval.low)
        # An interval narrows with the root of the samples.
        wanted = math.ceil(LEAST_ROUNDS * (width / interval.median / PRECISION) ** 2)
        allowed = int(CELL_S / (spent / LEAST_ROUNDS))
        return max(LEAST_ROUNDS, min(wanted, allowed, MOST_ROUNDS))

    def _finish(self) -> None:
        case = case_record(
            self.subject, self.samples, self.tested.rates, self.baseline or None, self.part
        )
        case["notes"] += self.notes
        self.case = case
        if case["status"] != "pass":
            raise NotPassed(case)
