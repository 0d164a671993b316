"""Sweep a scenario and hold what was measured against what the server did."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from tests.live.truth.log import RequestLog
from tests.live.truth.priority import one_at_a_time, realtime
from tests.live.truth.process import TruthServer
from tests.live.truth.scenario import Scenario
from tests.live.truth.scenarios import Named, Settings
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.points import Trial
from verify_attn.live.prompts import prompt
from verify_attn.live.run import Run
from verify_attn.live.settings import Settings as SweepSettings
from verify_attn.live.target import Target

# Most that a send is late, or this client stands still, on a machine that has time for both.
CALM_S = 0.05


@dataclass
class Errors:
    """Of every measured answer: seconds for the first token, shares for the others.

    ``rate`` is held against the wire, where a first and a last release are cut as the client must
    cut them, or against the engine's own steps, where a proxy makes the wire's rate another one.
    ``committed`` are those that can be known exactly, ``inferred`` the others.
    """

    first_token_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)
    inferred: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Of the absolute errors; 0 where nothing was measured."""
        values = [abs(value) for value in getattr(self, name)]
        return statistics.median(values) if values else 0.0


@dataclass
class Swept:
    """A run and the server's own log."""

    run: Run
    requests: list[RequestLog]
    errors: Errors
    undisturbed: bool  # the system gave real-time priority

    @property
    def causes(self) -> set[str]:
        """All that were named."""
        return {finding.cause for finding in self.run.findings()}

    @property
    def trials(self) -> list[Trial]:
        """All answers, in order."""
        return [trial for point in self.run.points for trial in point.trials]

    @property
    def hindered_s(self) -> float:
        """The longest that the machine kept the server's script or this client waiting."""
        late = chain.from_iterable(request.lateness_s for request in self.requests)
        still = (b - a for trial in self.trials for a, b in trial.measurement.stood_still)
        return max(chain(late, still), default=0.0)


def sweep(scenario: Scenario, how: Settings, **changes: object) -> Swept:
    """Run the sweep against a fresh server, both before all other work of the machine."""
    settings = SweepSettings(
        contexts=how.contexts,
        max_tokens=how.max_tokens,
        endpoint="chat" if how.chat else "completions",
        first_token_s=how.first_token_s,
        stall_s=how.stall_s,
        **changes,  # type: ignore[arg-type]
    )
    prompt(settings.corpus, 1, 0)  # gathers its texts, once a process
    with one_at_a_time(), TruthServer(scenario, realtime=True) as server:
        run = Run(Target.parse(server.url), settings)
        with realtime() as undisturbed:
            asyncio.run(run.go(lambda progress: None))
        requests = server.requests()
    swept = Swept(run, requests, Errors(), undisturbed)
    swept.errors = _errors(swept, scenario)
    return swept


def _errors(swept: Swept, scenario: Scenario) -> Errors:
    errors = Errors()
    proxied = scenario.fault.buffer_s is not None or scenario.fault.buffer_bytes is not None
    for trial, log in pairs(swept):
        m = trial.measurement
        if not isinstance(m.first_token_s, Absent) and log.token_sends:
            errors.first_token_s.append(m.first_token_s - log.ttft_s)
        if not isinstance(m.decode_tok_s, Absent) and len(log.token_sends) > 2:
            true = log.engine_tok_per_s if proxied else log.decode_tok_per_s
            errors.rate.append(m.decode_tok_s / true - 1)
        committed = trial.committed_per_step
        if not isinstance(committed, Absent) and len(log.steps) > 3:
            # The end of the answer may cut the last step: counters have it as it was, events are
            # not told from a whole one.
            steps = log.steps[1:] if counted(trial) else log.steps[1:-1]
            true = statistics.fmean(step.committed for step in steps)
            kept = errors.committed if exactly(trial) else errors.inferred
            kept.append(committed / true - 1)
    return errors


def pairs(swept: Swept) -> Iterator[tuple[Trial, RequestLog]]:
    """Every measured answer with the server's log of it."""
    measured = [request for request in swept.requests if request.measured]
    return zip(swept.trials, measured, strict=False)


def counted(trial: Trial) -> bool:
    """Is the figure a count of the server's own?"""
    said = trial.acceptance
    return (
        isinstance(said, Acceptance)
        and said.committed_per_step is not None
        and said.scope in ("request", "interval")
    )


def exactly(trial: Trial) -> bool:
    """Does the answer or a counter of the server say what each step committed?"""
    seen = trial.measurement
    return counted(trial) or (seen.timeline.exact and seen.steps.kind == "events")


def wrong(named: Named, causes: set[str]) -> str | None:
    """What the diagnosis got wrong, or None."""
    missing = set(named.causes) - causes
    extra = causes - set(named.causes) - set(named.allowed)
    if missing or extra:
        return f"missing {sorted(missing)}, extra {sorted(extra)}"
    return None
