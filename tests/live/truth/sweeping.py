"""Sweep a scenario and hold what was measured against what the server did."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field

from tests.live.truth.log import RequestLog
from tests.live.truth.process import TruthServer
from tests.live.truth.scenario import Scenario
from tests.live.truth.scenarios import Named, Settings
from verify_attn.live.absent import Absent
from verify_attn.live.run import Run
from verify_attn.live.settings import Settings as SweepSettings
from verify_attn.live.target import Target


@dataclass
class Errors:
    """Of every measured answer: seconds for the first token, a share for the rate."""

    first_token_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    engine_rate: list[float] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)

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

    @property
    def causes(self) -> set[str]:
        """All that were named."""
        return {finding.cause for finding in self.run.findings()}


def sweep(scenario: Scenario, how: Settings, **changes: object) -> Swept:
    """Run the sweep against a fresh server."""
    settings = SweepSettings(
        contexts=how.contexts,
        max_tokens=how.max_tokens,
        endpoint="chat" if how.chat else "completions",
        first_token_s=how.first_token_s,
        stall_s=how.stall_s,
        **changes,  # type: ignore[arg-type]
    )
    with TruthServer(scenario) as server:
        run = Run(Target.parse(server.url), settings)
        asyncio.run(run.go(lambda progress: None))
        requests = server.requests()
    return Swept(run, requests, _errors(run, requests))


def _errors(run: Run, requests: list[RequestLog]) -> Errors:
    errors = Errors()
    trials = [trial for point in run.points for trial in point.trials]
    measured = [r for r in requests if r.measured]
    for trial, log in zip(trials, measured, strict=False):
        m = trial.measurement
        if not isinstance(m.first_token_s, Absent) and log.token_sends:
            errors.first_token_s.append(m.first_token_s - log.ttft_s)
        if not isinstance(m.decode_tok_s, Absent) and len(log.token_sends) > 2:
            errors.rate.append(m.decode_tok_s / log.decode_tok_per_s - 1)
            errors.engine_rate.append(m.decode_tok_s / log.engine_tok_per_s - 1)
        committed = m.committed_per_step
        if not isinstance(committed, Absent) and len(log.steps) > 3:
            true = statistics.fmean(step.committed for step in log.steps[1:])
            errors.committed.append(committed / true - 1)
    return errors


def wrong(named: Named, causes: set[str]) -> str | None:
    """What the diagnosis got wrong, or None."""
    missing = set(named.causes) - causes
    extra = causes - set(named.causes) - set(named.allowed)
    if missing or extra:
        return f"missing {sorted(missing)}, extra {sorted(extra)}"
    return None
