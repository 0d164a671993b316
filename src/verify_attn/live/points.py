"""A point of a sweep: the answers that were measured at one context length and concurrency."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.acceptance.timings import ServerTimings
from verify_attn.live.causes import Finding
from verify_attn.live.measure import Measurement
from verify_attn.live.together import Together, together
from verify_attn.live.tokens import Floats


@dataclass
class Trial:
    """One answer at a point.

    ``repeat`` counts the rounds of the point; streams of one round ran side by side.
    ``sent_ns`` is the monotonic time that the measurement's times count from.
    """

    measurement: Measurement
    asked_tokens: int | None
    acceptance: Acceptance | Absent
    cached_tokens: int | Absent
    repeat: int = 0
    sent_ns: int = 0
    # Prompt tokens whose KV the server made up instead of computing it (verify-attn serve can).
    filled_tokens: int = 0
    findings: list[Finding] = field(default_factory=list)
    # The server's own clock, where it tells; for comparison only.
    timings: ServerTimings | None = None

    @property
    def prefill_tok_s(self) -> float | Absent:
        """Prompt tokens that were computed, over the time to the first token."""
        if self.filled_tokens:
            return Absent(
                f"the server did not compute {self.filled_tokens:,} of the prompt's tokens: their "
                "KV is random rows"
            )
        return self.measurement.prefill_tok_s(self.cached_tokens)

    @property
    def usable(self) -> bool:
        """Does it have a decode rate?"""
        m = self.measurement
        ended_well = m.outcome in ("complete", "stopped")
        return ended_well and not isinstance(m.decode_tok_s, Absent)

    @property
    def committed_per_step(self) -> float | Absent:
        """From the server's counts of this request where there are any, else as seen here.

        A gauge or a log line covers some other stretch of time, so it comes last.
        """
        seen = self.measurement.committed_per_step
        if any(finding.cause == "chunk-interval" for finding in self.findings):
            seen = Absent("the server's chunks are not its steps")
        if isinstance(self.acceptance, Absent):
            return seen
        tokens = self.measurement.completion_tokens
        said = (
            self.acceptance.committed_per_step if isinstance(tokens, Absent)
            else self.acceptance.committed_over(tokens)
        )  # fmt: skip
        counted = self.acceptance.scope in ("request", "interval")
        return said if said is not None and (counted or isinstance(seen, Absent)) else seen

    @property
    def step_ms(self) -> float | Absent:
        """Mean step time: committed tokens a step over the rate."""
        rate, committed = self.measurement.decode_tok_s, self.committed_per_step
        if isinstance(rate, Absent):
            return rate
        return committed if isinstance(committed, Absent) else committed / rate * 1e3


@dataclass
class Point:
    """Everything about one context length and concurrency.

    ``skipped`` or ``error`` say why it was not measured; ``died`` that the server did.
    ``counted`` is, by round, what the server's counters say of several streams together.
    """

    asked_context: int
    concurrency: int
    name: str
    trials: list[Trial] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    error: str | None = None
    died: str | None = None
    counted: dict[int, Acceptance | Absent] = field(default_factory=dict)

    @property
    def usable(self) -> list[Trial]:
        """The trials with a decode rate."""
        return [trial for trial in self.trials if trial.usable]

    @property
    def context(self) -> int | Absent:
        """Prompt tokens by the server's count; the median of the trials."""
        counts = [
            trial.measurement.prompt_tokens
            for trial in self.trials
            if not isinstance(trial.measurement.prompt_tokens, Absent)
        ]
        if not counts:
            why = (t.measurement.prompt_tokens for t in self.trials)
            reason = next((w.reason for w in why if isinstance(w, Absent)), "nothing was measured")
            return Absent(f"{reason}, so the prompt's length is not known")
        return int(statistics.median(counts))

    @property
    def decode_tok_s(self) -> float | Absent:
        """Sustained rate of one stream: tokens over time, all trials together."""
        if not self.usable:
            return self._why_no_rate()
        tokens = sum(_decoded(t.measurement) for t in self.usable)
        seconds = sum(_decoded(t.measurement) / _rate(t.measurement) for t in self.usable)
        return tokens / seconds

    @property
    def committed_per_step(self) -> float | Absent:
        """By the server's counters over all streams together, else the median of the trials."""
        counted = self.counted_together
        if counted is not None:
            return counted
        return _median([trial.committed_per_step for trial in self.usable], self._why_no_rate)

    @property
    def step_ms(self) -> float | Absent:
        """Committed tokens a step over the rate, of all trials together."""
        committed, rate = self.committed_per_step, self.decode_tok_s
        if isinstance(committed, Absent) or isinstance(rate, Absent):
            return committed if isinstance(committed, Absent) else rate
        return committed / rate * 1e3

    @property
    def first_token_s(self) -> float | Absent:
        """Median of the trials."""
        return _median([t.measurement.first_token_s for t in self.trials], self._why_no_rate)

    def close_round(self, repeat: int, counted: Acceptance | Absent) -> None:
        """After several streams: what the counters say of them, and how many of them failed."""
        if self.concurrency == 1:
            return
        self.counted[repeat] = counted
        if self.error is not None:
            ended = [t.measurement.outcome for t in self.trials if t.repeat == repeat]
            failed = self.concurrency - sum(o in ("complete", "stopped") for o in ended)
            self.error = f"{failed} of {self.concurrency} streams failed: {self.error}"

    @property
    def counted_together(self) -> float | None:
        """Committed tokens a step over all streams and rounds, by the server's counters.

        None where it does not count, or says it of every request by itself.
        """
        if any(
            isinstance(t.acceptance, Acceptance) and t.acceptance.scope == "request"
            for t in self.trials
        ):
            return None
        known = [
            (a.committed, a.steps)
            for a in self.counted.values()
            if isinstance(a, Acceptance) and a.scope == "interval"
        ]
        steps = sum(steps or 0 for _, steps in known)
        return sum(committed or 0 for committed, _ in known) / steps if steps else None

    def rounds(self) -> list[Together | Absent]:
        """The streams of each round together."""
        repeats = sorted({trial.repeat for trial in self.usable})
        return [together([t for t in self.usable if t.repeat == n]) for n in repeats]

    def total_tok_s(self) -> float | Absent:
        """All streams of a round together, see `Together`; the mean over the rounds."""
        if not self.usable:
            return self._why_no_rate()
        rounds = self.rounds()
        known = [found.tok_per_s for found in rounds if not isinstance(found, Absent)]
        if known:
            return statistics.fmean(known)
        return next(found for found in rounds if isinstance(found, Absent))

    def step_gaps_s(self) -> Floats:
        """Gaps between steps of all usable trials."""
        gaps = [np.diff(trial.measurement.steps.t_s) for trial in self.usable]
        return np.concatenate(gaps) if gaps else np.array([])

    def step_tokens(self) -> Floats:
        """Committed tokens of all usable trials' steps, first and last left out."""
        counts = [
            trial.measurement.steps.tokens[1:-1]
            for trial in self.usable
            if not isinstance(trial.measurement.steps.tokens, Absent)
            and trial.measurement.steps.are_steps
        ]
        return np.concatenate(counts) if counts else np.array([])

    def _why_no_rate(self) -> Absent:
        for reason in (self.skipped, self.died, self.error):
            if reason:
                return Absent(reason)
        for trial in self.trials:
            m = trial.measurement
            if m.reason and m.outcome not in ("complete", "stopped"):
                return Absent(m.reason)
            if isinstance(m.decode_tok_s, Absent):
                return m.decode_tok_s
        return Absent("nothing was measured here")


def _rate(m: Measurement) -> float:
    assert not isinstance(m.decode_tok_s, Absent)
    return m.decode_tok_s


def _decoded(m: Measurement) -> float:
    assert not isinstance(m.steps.tokens, Absent)
    return float(m.steps.tokens[1:].sum())


def _median(values: list[float | Absent], why: object) -> float | Absent:
    known = [value for value in values if not isinstance(value, Absent)]
    if known:
        return float(statistics.median(known))
    missing = [value for value in values if isinstance(value, Absent)]
    if missing:
        return missing[0]
    assert callable(why)
    reason = why()
    assert isinstance(reason, Absent)
    return reason
