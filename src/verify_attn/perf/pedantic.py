"""What ``verify_benchmark`` does: a time through pytest-benchmark, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from verify_attn.conformance.trial import CheckFailed, KernelRaised, NotApplicable
from verify_attn.generate import Case
from verify_attn.kernels.base import UnsupportedError, VerifyKernel
from verify_attn.kernels.registry import load
from verify_attn.perf.axes import Cell
from verify_attn.perf.case import failed_record
from verify_attn.perf.device import TimerError
from verify_attn.perf.own_case import CaseCell, cell_of
from verify_attn.perf.rounds import WARM_UP, Clock, NotPassed, Rounds
from verify_attn.perf.saved import KEY
from verify_attn.perf.statistics import SampleError
from verify_attn.perf.subject import Shared, Subject, give_back, own_cell
from verify_attn.perf.tested import Tested
from verify_attn.tracebacks import user_traceback

PARTS = ("run", "prepare_run")
CHECKED = "benchmarks are disabled: checked, not timed"


class Pedantic:
    """All kernels of a session; ``baseline``: the name of what their speedups are against.

    Raises `KernelError` for a baseline that is no kernel.
    """

    def __init__(self, tested: Tested, baseline: str) -> None:
        self.tested, self.baseline = tested, load(baseline)
        self.lost = ""  # why nothing more can run
        # Of the last cell alone: the next test is likely to be of it too, and memory is finite.
        self._of = ""
        self._shared = Shared()
        self._base: Subject | str | None = None  # or why there is none

    def measure(
        self, benchmark: Any, clock: Clock, kernel: str | VerifyKernel, problem: Cell | Case,
        part: str,
    ) -> dict[str, Any]:  # fmt: skip
        """The case, as a run record holds it; no time is kept unless its status is pass.

        ``benchmark``  pytest-benchmark's fixture, with ``clock`` for a timer
        ``part``       ``run`` or ``prepare_run``

        Raises ValueError, TypeError, `KernelError` and `CaseError` for what is none of these, and
        RuntimeError once a kernel has broken the GPU.
        """
        with _used(benchmark):
            if part not in PARTS:
                raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}")
            if not isinstance(problem, Cell | Case):
                raise TypeError(f"{problem!r} is no problem; give a Cell or a Case")
            if self.lost:
                raise RuntimeError(self.lost)
            kernel = load(kernel) if isinstance(kernel, str) else kernel
            cell = cell_of(problem)
            cell = cell if isinstance(cell, CaseCell) else own_cell(kernel, cell)
            cell.case()
        try:
            case = self._timed(benchmark, clock, kernel, cell, part)
        except NotPassed as measured:
            case = measured.case
        except (NotApplicable, UnsupportedError) as reason:
            case = failed_record(kernel.name, cell, "skipped", str(reason))
        except (TimerError, SampleError) as wrong:
            case = failed_record(kernel.name, cell, "error", str(wrong))
        except (Exception, SystemExit) as raised:
            self._look_after(kernel)
            case = failed_record(kernel.name, cell, *_failed(raised))
        finally:
            if not benchmark.extra_info.get(KEY):
                _forget(benchmark)
        case["parameters"].pop("text", None)  # of a `CaseCell`: the case itself is there
        return case

    def _timed(
        self, benchmark: Any, clock: Clock, kernel: VerifyKernel, cell: Cell, part: str
    ) -> dict[str, Any]:
        with _used(benchmark):
            self._turn_to(cell)
            subject = Subject(kernel, cell, self.tested.device, self._shared, ("events",))
            if not benchmark.disabled:
                base = None if kernel.name == self.baseline.name else self._baseline(cell)
                usable = base if isinstance(base, Subject) else None
                rounds = Rounds(self.tested, clock, subject, part, usable)
                if isinstance(base, str):
                    rounds.notes.append(f"no speedup: {self.baseline.name}: {base}")
        if benchmark.disabled:
            benchmark.pedantic(lambda: None)
            return failed_record(kernel.name, cell, "skipped", CHECKED)
        benchmark.pedantic(
            rounds.call, setup=rounds.before, teardown=rounds.after, rounds=rounds.count,
            warmup_rounds=WARM_UP, iterations=1,
        )  # fmt: skip
        if benchmark.stats.stats.data != [s.seconds for s in rounds.samples[part]]:
            reason = (
                "pytest-benchmark took its times from another timer: let verify_benchmark ask for "
                "the benchmark fixture, and leave timer= out of pytest.mark.benchmark"
            )
            return failed_record(kernel.name, cell, "error", reason)
        benchmark.extra_info.update(_extra_info(rounds.case, part))
        return rounds.case

    def _turn_to(self, cell: Cell) -> None:
        if self._of == cell.id:
            return
        self._of, self._shared, self._base = cell.id, Shared(), None
        give_back(self.tested.device.torch_device)

    def _baseline(self, cell: Cell) -> Subject | str:
        """The baseline on the cell, or why there is none; made once a cell."""
        if self._base is None:
            device = self.tested.device
            try:
                made = Subject(self.baseline, cell, device, self._shared, ("events",))
                self._base = made if "run" in made.calls else made.absent["run"]
            except (Exception, SystemExit) as reason:  # no fault of the kernel's that is measured
                self._look_after(self.baseline)
                self._base = str(reason) or type(reason).__name__
        return self._base

    def _look_after(self, kernel: VerifyKernel) -> None:
        """After a failure: one that broke the GPU is the only one to be blamed for it."""
        if self.tested.device.torch_device.type != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            self.lost = f"{kernel.name} left the GPU unusable ({first}); nothing ran after it"


@contextmanager
def _used(benchmark: Any) -> Iterator[None]:
    """Whatever is raised in here is raised inside of pytest-benchmark: it takes its fixture for
    used, with an error and without a time."""
    try:
        yield
    except (Exception, SystemExit) as reason:
        failure = reason

        def fail() -> None:
            raise failure

        benchmark.pedantic(fail)


def _forget(benchmark: Any) -> None:
    """No time in pytest-benchmark's files, and none in its table."""
    benchmark.has_error = True
    if benchmark.stats is not None:
        benchmark.stats.stats.data.clear()


def _failed(raised: BaseException) -> tuple[str, str]:
    """(status, reason), with the first difference from the reference."""
    if not isinstance(raised, CheckFailed):
        return "error", f"the kernel raised while it was timed\n{user_traceback(raised)}"
    if isinstance(raised, KernelRaised) or raised.mismatch is None:
        return "error" if isinstance(raised, KernelRaised) else "fail", raised.summary
    m = raised.mismatch
    return "fail", (
        f"{raised.summary}: {m.count:,} of {m.total:,} elements of {m.name}, the first at "
        f"{list(m.index)}: {m.got:.6g}, right is {m.want:.6g} within {m.bound:.2g}"
    )


def _extra_info(case: dict[str, Any], part: str) -> dict[str, Any]:
    """The case for the gate, and beside it what people read."""
    metrics, method = case["metrics"], case["methods"][part]
    flat = {
        "gb_per_s": metrics["gb_per_s"], "share_of_limit": metrics["limit_share"],
        "speedup": metrics.get("speedup"),
        "method": f"{method['timer']}, L2 {method['l2']}, "
                  + ("host time inside" if method["drained"] else "GPU time alone"),
    }  # fmt: skip
    ours = {key: case[key] for key in ("parameters", "metrics", "methods", "notes")}
    return {**{k: v for k, v in flat.items() if v is not None}, KEY: ours}
