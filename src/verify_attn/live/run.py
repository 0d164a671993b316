"""A whole sweep: session, points, repeats for what is undecided, diagnosis, record."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import LogTail
from verify_attn.live.across import Overview, Split, overview, split
from verify_attn.live.case import case_of, reads_of
from verify_attn.live.causes import Finding
from verify_attn.live.client import Client
from verify_attn.live.floors import Floor
from verify_attn.live.limit import KvRead
from verify_attn.live.points import Point
from verify_attn.live.requests import replayed
from verify_attn.live.saved import SavedRun
from verify_attn.live.session import Session
from verify_attn.live.settings import Settings, point_name
from verify_attn.live.sweep import NO_LOG, Progress, Sweep
from verify_attn.live.target import Target
from verify_attn.live.verdict import Verdict, judge
from verify_attn.record import new_record

MAX_REPEATS = 20  # of one undecided point


@dataclass
class Run:
    """Everything that a front end shows: fed by `go`, complete even where that is interrupted."""

    target: Target
    settings: Settings
    floors: list[Floor] = field(default_factory=list)
    saved: SavedRun | None = None
    kv: KvRead | None = None
    session: Session | None = None
    sweep: Sweep | None = None
    interrupted: bool = False
    _began: float = 0.0

    async def go(self, watch: Callable[[Progress], None]) -> None:
        """Measure everything.  Raises `session.Dead` and `session.Unusable` before any point."""
        await self.open(watch)
        try:
            for context, streams in self.settings.points():
                await self.visit(context, streams)
            await self.settle(self.points)
        finally:
            self.close()

    async def open(self, watch: Callable[[Progress], None]) -> None:
        """Get to know the server."""
        self._began = time.monotonic()
        watch(Progress("server", "first requests"))
        self.session = await Session.open(Client(self.target), self.settings)
        log = self.settings.log
        opened = NO_LOG if log is None else LogTail.open(log)
        self.sweep = Sweep(self.session, watch, log=opened)

    async def visit(self, context: int, streams: int) -> Point:
        """Measure one more point; `open` came before."""
        assert self.sweep is not None
        return await self.sweep.visit(context, streams)

    async def settle(self, points: list[Point]) -> None:
        """Repeat the undecided ones of ``points`` while the time budget lasts."""
        assert self.sweep is not None
        while not self.died and time.monotonic() - self._began < self.settings.budget_s:
            undecided = [
                p for p in points
                if self.verdict(p).undecided and len({t.repeat for t in p.trials}) < MAX_REPEATS
            ]  # fmt: skip
            if not undecided:
                return
            for point in undecided:
                if not self.died:
                    await self.sweep.measure(point)

    def interrupt(self) -> None:
        """Somebody ended the run: say so of the point in hand and of those not reached."""
        self.interrupted = True
        if self.sweep is None:
            return
        done = {point.name for point in self.points}
        for point in self.points:
            if not (point.trials or point.skipped or point.error):
                point.skipped = "interrupted"
        self.sweep.points += [
            Point(context, streams, name, skipped="not reached: interrupted")
            for context, streams in self.settings.points()
            if (name := point_name(context, streams)) not in done
        ]

    def close(self) -> None:
        """Let go of the log."""
        if self.sweep is not None and not isinstance(self.sweep.log, Absent):
            self.sweep.log.close()

    @property
    def points(self) -> list[Point]:
        """The points so far."""
        return [] if self.sweep is None else self.sweep.points

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return "" if self.session is None else self.session.dialect.model

    @property
    def died(self) -> bool:
        """Did the server die?"""
        return self.sweep is not None and self.sweep.died is not None

    def verdict(self, point: Point) -> Verdict:
        """Status and reason of a point."""
        return judge(
            point, self.points, self.floors, self.model, self.saved,
            self.settings.window_tokens, self.settings.request is not None,
            self.overview(point.concurrency).findings,
        )  # fmt: skip

    def overview(self, concurrency: int) -> Overview:
        """What the points of one concurrency say together."""
        return overview([p for p in self.points if p.concurrency == concurrency], self.kv)

    def findings(self) -> list[Finding]:
        """Every cause of the run, those of single answers with the points that show them."""
        found: list[Finding] = [] if self.session is None else list(self.session.findings)
        for concurrency in dict.fromkeys(self.settings.concurrency):
            found += self.overview(concurrency).findings
        for point in self.points:
            seen: set[str] = set()
            for finding in [*point.findings, *(f for t in point.trials for f in t.findings)]:
                if finding.cause not in seen:
                    seen.add(finding.cause)
                    found.append(
                        Finding(finding.cause, finding.confidence, finding.evidence, (point.name,))
                    )
        return found

    def splits(self, point: Point) -> list[Split]:
        """The point's rate against the shortest context and against the saved run."""
        if not point.usable:
            return []
        same = [p for p in self.points if p.concurrency == point.concurrency and p.usable]
        shortest = min(same, key=lambda p: p.asked_context)
        found: list[Split | Absent] = []
        if shortest is not point:
            rate, committed, step = (
                shortest.decode_tok_s, shortest.committed_per_step, shortest.step_ms,
            )  # fmt: skip
            if not any(isinstance(value, Absent) for value in (rate, committed, step)):
                numbers = [float(v) for v in (rate, committed, step) if not isinstance(v, Absent)]
                found.append(split(point, shortest.name, *numbers))
        if self.saved is not None and not isinstance(point.context, Absent):
            near = self.saved.near(point.context, point.concurrency)
            if near is not None:
                found.append(
                    split(point, self.saved.name, near.decode_tok_s, near.committed, near.step_ms)
                )
        return [s for s in found if not isinstance(s, Absent)]

    def record(self, command: Sequence[str]) -> dict[str, Any]:
        """The run record; the API key appears nowhere in it."""
        record = new_record(command)
        record["cases"] = [
            case_of(p, self.verdict(p), self.splits(p), self._text()) for p in self.points
        ]
        record["findings"] = [finding.as_json() for finding in self.findings()]
        record["overview"] = {
            str(c): self.overview(c).as_json() for c in dict.fromkeys(self.settings.concurrency)
        }
        record["server"] = self._server()
        record["floors_given"] = len(self.floors)
        record["interrupted"] = self.interrupted
        if self.saved is not None:
            record["against"] = {"name": self.saved.name, "differs": self._differs()}
        if self.settings.request is not None:
            record["request"] = self._replayed()
        if self.sweep is not None and self.settings.keep_reads:
            record["reads"] = [{"case": n, **reads_of(a)} for n, a in self.sweep.answers]
        scrubbed = scrub(record, self.target)
        assert isinstance(scrubbed, dict)
        return scrubbed

    def _text(self) -> str:
        return self.settings.corpus if self.settings.request is None else "recorded request"

    def _differs(self) -> list[str]:
        """What makes the saved run a comparison with something else."""
        if self.saved is None or self.session is None:
            return []
        now = {
            "model": self.model, "engine": self.session.facts.engine,
            "max_tokens": self.settings.max_tokens,
        }  # fmt: skip
        return [
            f"{name} was {before}, is {now[name]}"
            for name, before in self.saved.about.items()
            if before is not None and before != now[name]
        ]

    def _replayed(self) -> dict[str, Any]:
        """What was sent for a recorded request: its digest and every field but the text."""
        assert self.settings.request is not None
        given = self.settings.request
        found: dict[str, Any] = {
            "sha256": hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(),
        }
        if self.session is not None:
            sent = replayed(self.session.dialect, given, self.settings.max_tokens)
            found["sent"] = {k: v for k, v in sent.items() if k not in ("messages", "prompt")}
            found["added_or_changed"] = sorted(k for k, v in sent.items() if given.get(k) != v)
        return found

    def _server(self) -> dict[str, Any]:
        if self.session is None:
            return {"url": self.target.root}
        session = self.session
        overhead, rate = session.calibration.line
        server: dict[str, Any] = {
            "url": self.target.root,
            "max_tokens": self.settings.max_tokens,
            "model": session.dialect.model,
            "endpoint": session.dialect.endpoint,
            "facts": session.facts.as_record(),
            "extras_sent": list(session.dialect.extras),
            "extras_refused": session.dialect.refused,
            "granted": session.grants,
            "calibration": {
                "overhead_tokens": overhead, "tokens_per_char": rate,
                "requests": len(session.calibration.seen),
                "sized_by": session.sized_by,
            },
            "notes": list(session.notes),
        }  # fmt: skip
        if self.sweep is not None:
            server["died_at"] = self.sweep.died
            if self.sweep.flushes:
                server["notes"].append(f"prefix cache flushed {self.sweep.flushes} times")
            if self.sweep.flush_note:
                server["notes"].append(self.sweep.flush_note)
            if isinstance(self.sweep.log, Absent):
                server["notes"].append(self.sweep.log.reason)
        return server


def scrub(value: Any, target: Target) -> Any:
    """A copy of a record, or of a part of one, without the API key."""
    if isinstance(value, str):
        return target.scrub(value)
    if isinstance(value, dict):
        # A short key may be a word of the record's own: names and statuses stay what they are.
        long = len(target.api_key or "") >= 8
        return {
            target.scrub(str(k)) if long else k: v if k == "status" else scrub(v, target)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [scrub(v, target) for v in value]
    return value
