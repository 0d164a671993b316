"""One kernel's fuzz in one process: draw cases, run checks, shrink what fails.

Everything that happens is told as events, so that the process that watches can name the culprit
if this one hangs or dies.
"""

from __future__ import annotations

import math
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from verify_attn.conformance import POISONED_EXIT
from verify_attn.conformance.checks import CHECKS
from verify_attn.conformance.fitting import fitted
from verify_attn.conformance.strategies import CPU, GPU, Profile, cases
from verify_attn.conformance.text import describe
from verify_attn.conformance.trial import CheckFailed, NotApplicable, Trial
from verify_attn.generate import Case
from verify_attn.kernels.base import UnsupportedError, VerifyKernel
from verify_attn.kernels.registry import choose_triton_mode

Emit = Callable[[dict[str, Any]], None]
KEEP_BYTES = 1 << 31
# The checks that see most are drawn for most cases, so that a rare kind of case meets them.
SHARES = {"oracle": 8.0, "lse": 4.0}
# After ten cases Hypothesis begins to draw mutants: five of six are then an earlier case with one
# part copied over another.  A new round, with another seed, draws every case afresh.
ROUND, BARREN_ROUNDS = 9, 3
SHRINK_S, SHRINK_INTERPRETED_S = 20.0, 60.0


class _TimeIsUp(BaseException):
    """Ends a round at once: Hypothesis passes on what is no `Exception`."""


class _Found(Exception):  # the one exception that Hypothesis shrinks
    pass


@dataclass
class _Failure:
    check: str
    case: Case
    text: str
    reasons: list[str]
    finite: bool
    cut_short: bool = False


@dataclass
class Fuzz:
    """The state of one run over one kernel."""

    kernel: VerifyKernel
    device: torch.device
    checks: list[str]
    emit: Emit
    seed: int
    executed: Counter[str] = field(default_factory=Counter)
    inapplicable: Counter[str] = field(default_factory=Counter)
    done: int = 0
    seen: set[Case] = field(default_factory=set)
    failure: _Failure | None = None
    shrink_until: float = 0.0

    def run(self, examples: int) -> None:
        """Draw that many cases; a check that failed is not drawn again."""
        rounds = barren = 0
        profile = GPU if self.device.type == "cuda" else CPU
        profile = fitted(profile, self.kernel, self.device, self._start)
        while self.done < examples and self.checks:
            before = self.done
            self._explore(profile, examples, self.seed + 7919 * rounds)
            failure = self._explained()
            rounds += 1
            if failure:
                self.emit({
                    "event": "failure", "check": failure.check, "text": failure.text,
                    "case": failure.case.to_json(), "final": True,
                })  # fmt: skip
                self.checks = [c for c in self.checks if c != failure.check]
            barren = barren + 1 if self.done == before else 0
            if barren == BARREN_ROUNDS:
                break  # there are no further cases

    def _start(self, case: Case) -> None:
        """Should asking end this process, it is known over which case; any check asks."""
        if self.checks:
            self.emit({"event": "start", "check": self.checks[0], "case": case.to_json()})

    def _explore(self, profile: Profile, examples: int, this_seed: int) -> None:
        self.failure = None
        rng = random.Random(this_seed)

        # Every setting is given, so that a CI environment or a user's profile changes nothing.
        @seed(this_seed)
        @settings(
            max_examples=min(ROUND, examples - self.done) + 1,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(cases(profile, self.kernel.capabilities))
        def explore(case: Case) -> None:
            if self.failure:
                self._shrink(case)
                return
            if case in self.seen or self.done == examples:
                return  # each round begins with the simplest case
            self.seen.add(case)
            self.done += 1
            for name in self._choose(rng):
                self._one(case, name)
            self.emit({"event": "example", "tokens": case.tokens})

        with suppress(_Found, Flaky, _TimeIsUp):  # the failure is in self.failure
            explore()

    def _explained(self) -> _Failure | None:
        """The failure found, run once more to say why."""
        best = self.failure
        if best:
            self.emit({"event": "start", "check": best.check, "case": best.case.to_json()})
            again = attempt(self.kernel, best.case, best.check, self.device, best.reasons)
            if again["status"] == "fail":
                best.text = again["text"]
            else:
                best.text += "\n(this case does not fail every time)"
            if best.cut_short:
                best.text += "\n(the time to find a smaller case was up: another run may show one)"
        return best

    def _choose(self, rng: random.Random) -> list[str]:
        """Two or three checks, those that have run least of their share first."""

        def runs(name: str) -> float:
            waste = self.inapplicable[name] * (0.25 if self.executed[name] else 1.0)
            return (self.executed[name] + waste + rng.random()) / SHARES.get(name, 1.0)

        return sorted(self.checks, key=runs)[: rng.choice((2, 3))]

    def _shrink(self, case: Case) -> None:
        """Try a simpler case with the failed check alone, as long as there is time."""
        assert self.failure
        if time.monotonic() > self.shrink_until:
            self.failure.cut_short = True
            raise _TimeIsUp  # no failure that Hypothesis would go on shrinking, for 5 minutes more
        self._one(case, self.failure.check)

    def _one(self, case: Case, name: str) -> None:
        self.emit({"event": "start", "check": name, "case": case.to_json()})
        outcome = attempt(self.kernel, case, name, self.device, explain=not self.failure)
        if outcome["status"] == "fail":
            if self.failure:
                if outcome["finite"] != self.failure.finite:
                    return  # NaN is another story than a wrong number: keep to the one begun
                reasons = self.failure.reasons
            else:
                limit = SHRINK_INTERPRETED_S if choose_triton_mode() else SHRINK_S
                self.shrink_until = time.monotonic() + limit
                reasons = outcome["reasons"]
            self.failure = _Failure(name, case, outcome["text"], reasons, outcome["finite"])
            self.emit({
                "event": "failure", "check": name, "text": outcome["text"],
                "case": case.to_json(), "final": False,
            })  # fmt: skip
            if outcome["poisoned"]:
                os._exit(POISONED_EXIT)  # nothing that this process says from now on counts
            raise _Found(name)
        if not self.failure:
            counter = self.executed if outcome["status"] == "pass" else self.inapplicable
            counter[name] += 1
            self.emit({"event": "check", "check": name, **outcome})


def attempt(
    kernel: VerifyKernel,
    case: Case,
    name: str,
    device: torch.device,
    among: list[str] | None = None,
    explain: bool = True,
) -> dict[str, Any]:
    """One check on one case: ``status`` pass, fail or skipped, with reason or text.

    ``among``: likely reasons to prefer; ``explain=False``: look for none, which is quicker.
    """
    try:
        return _attempt(Trial(kernel, case, device), name, among, explain)
    finally:
        _give_back_memory(device)


def _attempt(trial: Trial, name: str, among: list[str] | None, explain: bool) -> dict[str, Any]:
    try:
        CHECKS[name].run(trial)
    except (NotApplicable, UnsupportedError) as reason:
        return {"status": "skipped", "reason": str(reason)}
    except CheckFailed as failure:
        return _failed(trial, name, failure, among, explain)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return {"status": "skipped", "reason": f"out of GPU memory: {str(error).split('.')[0]}"}
    except Exception as error:  # the kernel's own exceptions come as KernelRaised
        trace = "".join(traceback.format_exception(error)).rstrip()
        summary = f"verify-attn itself raised, which is a bug of its own\n{trace}"
        return _failed(trial, name, CheckFailed(summary), None, explain)
    return {"status": "pass", "worst": trial.worst}


def _failed(
    trial: Trial, name: str, failure: CheckFailed, among: list[str] | None, explain: bool
) -> dict[str, Any]:
    poisoned = _is_poisoned(trial.device)
    text = f"{name}: {failure.summary}\ncase:   {trial.case.to_json()}"
    reasons: list[str] = []
    if explain and not poisoned:
        try:
            text, reasons = describe(trial, name, failure, among)
        except Exception as error:  # the kernel failed again while its failure was explained
            text += f"\n(and raised when run again: {error})"
    finite = failure.mismatch is None or math.isfinite(failure.mismatch.got)
    return {
        "status": "fail", "text": text, "reasons": reasons, "poisoned": poisoned,
        "finite": finite,
    }  # fmt: skip


def _give_back_memory(device: torch.device) -> None:
    """Workers share the GPU: what a large case took must not stay with one of them."""
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > KEEP_BYTES:
        with suppress(RuntimeError):  # a lost context gives nothing back
            torch.cuda.empty_cache()


def _is_poisoned(device: torch.device) -> bool:
    """After an illegal access every CUDA call of the process fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(1, device=device).item() != 1.0)
    except RuntimeError:
        return True
