"""Times of kernels on cells: all kernels of a cell take turns, until the intervals are narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from verify_attn.conformance.trial import CheckFailed, KernelRaised, NotApplicable
from verify_attn.cuda_graph import first_line
from verify_attn.generate import CaseError
from verify_attn.kernels.base import UnsupportedError, VerifyKernel
from verify_attn.perf.axes import Cell
from verify_attn.perf.case import case_record, failed_record
from verify_attn.perf.device import Device, Sample, TimerError
from verify_attn.perf.fresh import Moments
from verify_attn.perf.roofline import Rates
from verify_attn.perf.statistics import FEWEST, median_interval
from verify_attn.perf.subject import Shared, Subject, give_back, own_cell
from verify_attn.tracebacks import user_traceback

WARM_UP, LEAST_ROUNDS, MOST_ROUNDS = 3, 15, 100
# After so many rounds it is seen whether the intervals are narrow.  To look after each one would
# stop where they happen to be, and then they hold the median less often than they say.
LOOKS = (LEAST_ROUNDS, 30, 60)
PRECISION = 0.01  # of the median: how narrow its interval is to be on either side
CELL_S = 6.0  # then a cell ends with the intervals that it has, at LEAST_ROUNDS at the earliest

Watch = Callable[[str, str, str], None]  # a cell's id, what is being done, with which kernel


@dataclass
class Timed:
    """A subject and its samples by part."""

    subject: Subject
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failure: tuple[str, str] | None = None  # (status, reason)

    def seconds(self, part: str) -> list[float]:
        """Of one call each."""
        return [s.seconds for s in self.samples.get(part, [])]

    @property
    def narrow(self) -> bool:
        """Are all its intervals as narrow as asked?"""
        return all(_half_width(self.seconds(part)) <= PRECISION for part in self.subject.calls)


class Bench:
    """``cases()`` measures and yields the run record's cases, those of a cell together.

    ``rates``     measured ceilings, for shares and for errors
    ``baseline``  the kernel that speedups are against; None where it does not run
    """

    def __init__(
        self,
        device: Device,
        kernels: Mapping[str, VerifyKernel],
        cells: Sequence[Cell],
        rates: Rates,
        *,
        timers: tuple[str, ...] = ("events", "graph"),
        baseline: str = "triton-unsplit",
        watch: Watch = lambda cell, doing, kernel: None,
    ) -> None:
        self.device, self.kernels, self.cells, self.rates = device, kernels, cells, rates
        self.timers, self.baseline, self.watch = timers, baseline, watch
        self._lost = ""
        self._done: set[str] = set()

    def cases(self) -> Iterator[list[dict[str, Any]]]:
        """Of each cell, in order."""
        for cell in self.cells:
            yield self._cell(cell)
            give_back(self.device.torch_device)

    def _cell(self, cell: Cell) -> list[dict[str, Any]]:
        timed, cases = [], []
        shared = Shared()
        for name, kernel in self.kernels.items():
            own = own_cell(kernel, cell)
            if f"{name} | {own.id}" in self._done:
                continue  # chains alone: a tree's cell and the chain's are one
            self._done.add(f"{name} | {own.id}")
            self.watch(cell.id, "checking", name)
            made = self._subject(kernel, own, shared)
            if isinstance(made, Subject):
                timed.append(Timed(made))
            else:
                cases.append(failed_record(name, own, *made))
        self._rounds(timed, cell.id)
        base = next((t for t in timed if t.subject.kernel.name == self.baseline
                     and t.failure is None), None)  # fmt: skip
        for one in timed:
            if one.failure:
                cases.append(failed_record(one.subject.kernel.name, one.subject.cell, *one.failure))
                continue
            cases.append(self._record(one, base))
        order = list(self.kernels)
        return sorted(cases, key=lambda c: order.index(c["parameters"]["kernel"]))

    def _record(self, one: Timed, base: Timed | None) -> dict[str, Any]:
        """Its case, with the speedup where both have a time of ``run``."""
        if one.subject.kernel.name == self.baseline:
            return case_record(one.subject, one.samples, self.rates, None)
        against = base.seconds("run") if base else []
        case = case_record(one.subject, one.samples, self.rates, against or None)
        if not against and self.baseline in self.kernels:
            case["notes"].append(f"no speedup: {self.baseline} has no time of run here")
        elif base and base.subject.cell != one.subject.cell:
            case["notes"].append(f"the speedup is over {self.baseline} on {base.subject.cell.id}")
        return case

    def _subject(
        self, kernel: VerifyKernel, cell: Cell, shared: Shared
    ) -> Subject | tuple[str, str]:
        """The subject, or (status, reason)."""
        if self._lost:
            return "skipped", self._lost
        try:
            return Subject(kernel, cell, self.device, shared, self.timers)
        except (NotApplicable, UnsupportedError, CaseError) as reason:
            return "skipped", str(reason)
        except CheckFailed as failure:
            return self._after(kernel, failure)
        except (Exception, SystemExit) as raised:  # a later launch than the checked ones
            text = f"the kernel raised\n{user_traceback(raised)}"
            return self._after(kernel, KernelRaised(text))

    def _rounds(self, timed: list[Timed], cell_id: str) -> None:
        """Warm up, then sample in turns; the order turns about, so that no kernel always follows
        the same one."""
        spent = 0.0
        judged = {(id(one), part): Moments() for one in timed for part in one.subject.calls}
        for number in range(WARM_UP + MOST_ROUNDS):
            going = [t for t in timed if t.failure is None]
            taken = number - WARM_UP
            late = taken >= LEAST_ROUNDS and spent > CELL_S
            if late or (taken in LOOKS and all(t.narrow for t in going)):
                return
            for one in going if number % 2 else reversed(going):
                for part in one.subject.calls:
                    self.watch(cell_id, "timing", one.subject.kernel.name)
                    check = judged[id(one), part](number)
                    sample = self._sample(one, part, check)
                    if sample is None:
                        break
                    spent += sample.seconds * one.subject.calls[part].method.calls
                    if taken >= 0:
                        one.samples.setdefault(part, []).append(sample)

    def _sample(self, one: Timed, part: str, check: bool) -> Sample | None:
        """One sample; None, and the subject's failure, where there is none to be had."""
        subject = one.subject
        own = True  # memory that runs out is then not the kernel's fault
        try:
            subject.disturb(part)
            own = False
            sample = self.device.sample(subject.calls[part])
            own = True
            if check and sample.stands:
                subject.judge(part)
            return sample
        except TimerError as wrong:
            one.failure = "error", str(wrong)
        except CheckFailed as failure:
            one.failure = self._after(subject.kernel, failure)
        except (Exception, SystemExit) as raised:
            if own and isinstance(raised, torch.OutOfMemoryError):
                one.failure = "skipped", f"out of GPU memory ({first_line(raised)})"
                return None
            text = f"the kernel raised while it was timed ({part})\n{user_traceback(raised)}"
            one.failure = self._after(subject.kernel, KernelRaised(text))
        return None

    def _after(self, kernel: VerifyKernel, failure: CheckFailed) -> tuple[str, str]:
        """(status, reason) of a failure; sees whether the GPU survived it."""
        if self.device.torch_device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                first = str(error).splitlines()[0]
                self._lost = f"{kernel.name} left the GPU unusable ({first}); nothing ran after it"
        return ("error" if isinstance(failure, KernelRaised) else "fail"), _told(failure)


def _told(failure: CheckFailed) -> str:
    """The failure with its first difference."""
    m = failure.mismatch
    if m is None:
        return failure.summary
    return (
        f"{failure.summary}: {m.count:,} of {m.total:,} elements of {m.name}, the first at "
        f"{list(m.index)}: {m.got:.6g}, right is {m.want:.6g} within {m.bound:.2g}"
    )


def _half_width(seconds: list[float]) -> float:
    if len(seconds) < FEWEST:
        return math.inf
    interval = median_interval(seconds)
    return max(interval.high - interval.median, interval.median - interval.low) / interval.median
