"""The sweep: every point in ascending order, counters read around it, health after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    LogReading,
    LogTail,
    cached_between,
    foreign_traffic,
    from_counters,
    from_sglang_routes,
    read_lines,
    read_metrics,
)
from verify_attn.live.causes import HIGH, Finding
from verify_attn.live.chunk import Chunk
from verify_attn.live.client import Answer
from verify_attn.live.lag import LagWatch
from verify_attn.live.points import Point, Trial
from verify_attn.live.requests import replayed
from verify_attn.live.server import flush_cache
from verify_attn.live.session import Session
from verify_attn.live.settings import point_name
from verify_attn.live.together import no_collection, own_work
from verify_attn.live.trial import Around, make_trial, skip_too_long

LOG_LINES = 40
# Our own request has ended: what still keeps the server busy is somebody else's, for how long
# nobody knows.  A nonce in front of every prompt keeps the cache out as well.
FLUSH_LIMIT_S = 8.0
NO_LOG = Absent("no log was named, so none was read")


@dataclass
class Progress:
    """What is going on, for whoever watches: phase and tokens so far."""

    point: str
    phase: str
    tokens: int = 0


def _unwatched(progress: Progress) -> None:
    """Nobody looks."""


@dataclass
class Sweep:
    """Measures points of a session: `visit` adds one, `measure` adds a round to it."""

    session: Session
    watch: Callable[[Progress], None] = _unwatched
    points: list[Point] = field(default_factory=list)
    log: LogTail | Absent = NO_LOG
    died: str | None = None
    flush_note: str | None = None
    flushes: int = 0
    answers: list[tuple[str, Answer]] = field(default_factory=list)

    async def visit(self, context: int, streams: int) -> Point:
        """Measure a point as often as the settings say, unless it cannot be or the server died."""
        point = Point(context, streams, point_name(context, streams))
        self.points.append(point)
        if self.died is not None:
            point.skipped = f"the server died at {self.died}"
            return point
        reason = self._too_long(context, streams)
        if reason is not None:
            skip_too_long(point, f"not sent: {reason}")
            return point
        for _ in range(self.session.settings.repeats):
            await self.measure(point)
            if point.died or point.skipped or point.error:
                break
        return point

    def _too_long(self, context: int, streams: int) -> str | None:
        """Does the server itself say that a point cannot fit?  Flagged before it runs."""
        most = self.session.facts.usable_tokens
        limit = self.session.facts.context_limit
        if isinstance(most, Absent) or context == 0:
            return None
        need = context + self.session.settings.max_tokens
        if need > most:
            less = "" if isinstance(limit, Absent) else f" (context limit {limit.value:,})"
            return (
                f"{context:,} + {self.session.settings.max_tokens:,} tokens do not fit the "
                f"server's {most:,}{less}"
            )
        pool = self.session.facts.kv_capacity_tokens
        if not isinstance(pool, Absent) and need * streams > pool.value:
            return f"{streams} streams of {need:,} tokens do not fit the KV pool of {pool.value:,}"
        return None

    async def measure(self, point: Point) -> None:
        """One round of a point: its streams side by side, then health."""
        await self._flush()
        repeat = 1 + max((trial.repeat for trial in point.trials), default=-1)
        bodies = [await self._body(point, repeat, i) for i in range(point.concurrency)]
        if not isinstance(self.log, Absent):
            self.log.mark()
        before = await read_metrics(self.session.client.fetch)
        answers = await self._answers(point, [body for body, _ in bodies])
        await self.session.rest()
        after = await read_metrics(self.session.client.fetch)
        lines = self._lines(point.concurrency)
        if lines is not None:
            point.notes += [note for note in lines.notes if note not in point.notes]
        counted = from_counters(before, after)
        if type(counted) is Absent and self.session.facts.engine == "SGLang":
            counted = await self._sglang(counted)
        around = Around(counted, cached_between(before, after), lines)
        window = self.session.settings.window_tokens
        trials: list[Trial] = []
        for answer, (body, chars) in zip(answers, bodies, strict=True):
            trial = make_trial(point, answer, body, around, repeat, window, chars)
            if trial is not None:
                trials.append(trial)
                if chars:
                    self.session.learn(chars, trial.measurement)
            if self.session.settings.keep_reads:
                self.answers.append((f"{point.name}#{repeat}", answer))
        point.trials += trials
        point.close_round(repeat, around.acceptance)
        own = own_work(trials, len(answers))
        self._foreign(point, trials, foreign_traffic(before, after, own), lines)
        if not point.skipped:
            await self._health(point)

    async def _body(self, point: Point, repeat: int, stream: int) -> tuple[dict[str, Any], int]:
        """(body, characters of its prompt; 0 for a recorded one)."""
        session = self.session
        settings = session.settings
        if settings.request is not None:
            return replayed(session.dialect, settings.request, settings.max_tokens), 0
        seed = settings.seed + 7919 * repeat + 104729 * stream + point.asked_context
        text = await session.text(point.asked_context, seed)
        return session.dialect.body(text, self._max_tokens(point)), len(text)

    def _max_tokens(self, point: Point) -> int:
        """As asked, unless the answer would be cut before a count that comes only at its end."""
        settings = self.session.settings
        grants = self.session.grants
        earlier = [p for p in self.points if p is not point and p.usable]
        if grants.get("per_chunk_usage") or grants.get("token_ids") or not earlier:
            return settings.max_tokens
        last = max(earlier, key=lambda p: p.asked_context)
        assert not isinstance(last.decode_tok_s, Absent)
        # A step's time grows with the context at worst.
        slower = max(1.0, point.asked_context / max(last.asked_context, 1))
        room = int(0.8 * settings.decode_limit_s * last.decode_tok_s / slower)
        fewer = max(settings.min_tokens, min(settings.max_tokens, room))
        if fewer < settings.max_tokens:
            note = (
                f"asked for {fewer} tokens, not {settings.max_tokens}: this server counts only at "
                f"the end, and {settings.decode_limit_s:g} s may not be enough for more"
            )
            if note not in point.notes:
                point.notes.append(note)
        return fewer

    async def _answers(self, point: Point, bodies: list[dict[str, Any]]) -> list[Answer]:
        limit = self.session.first_token_limit_s(point.asked_context, point.concurrency)
        progress = Progress(point.name, "prefill")
        self.watch(progress)

        def on_chunk(chunk: Chunk) -> None:
            if chunk.text_chars or chunk.tokens:
                progress.phase = "decode"
                progress.tokens += chunk.tokens or 1
                self.watch(progress)

        sends = (self.session.send(body, limit, on_chunk=on_chunk) for body in bodies)
        with no_collection():
            async with LagWatch() as lag:
                answers = await asyncio.gather(*sends)
        for answer in answers:
            answer.stalls = lag.stalls
        return list(answers)

    def _lines(self, streams: int) -> LogReading | None:
        if isinstance(self.log, Absent):
            return None
        return read_lines(self.log.since_mark(), own_running=streams)

    @staticmethod
    def _foreign(point: Point, trials: list[Trial], found: Any, lines: LogReading | None) -> None:
        text = None
        if found is not None and not isinstance(found, Absent):
            text = str(found)
        elif lines is not None and lines.foreign is not None:
            text = lines.foreign
        if text is not None:
            point.findings.append(Finding("foreign-traffic", HIGH, text, (point.name,)))
            # The counters' steps are not all ours.
            for trial in trials:
                if isinstance(trial.acceptance, Acceptance) and trial.acceptance.scope != "request":
                    trial.acceptance = Absent("the counters also counted others' requests")
            others = Absent("the counters also counted others' requests")
            point.counted = dict.fromkeys(point.counted, others)

    async def _sglang(self, why: Absent) -> Acceptance | Absent:
        """Its cumulative figures, where `/metrics` has none."""
        found = await from_sglang_routes(self.session.client.fetch)
        return Absent(f"{why.reason}; {found.reason}") if isinstance(found, Absent) else found

    async def _flush(self) -> None:
        if not self.session.settings.flush or self.flush_note is not None:
            return
        found = await flush_cache(
            self.session.client.fetch, self.session.facts.engine, limit_s=FLUSH_LIMIT_S
        )
        if found.outcome == "done":
            self.flushes += 1
        else:
            # Nonces keep the cache out as well; say it once and do not wait for it every time.
            self.flush_note = f"cache flush {found.outcome}: {found.why}"

    async def _health(self, point: Point) -> None:
        self.watch(Progress(point.name, "health"))
        wrong = await self.session.alive()
        if wrong is None:
            return
        point.died = f"the server died at {point.name}: {wrong}"
        self.died = point.name
        tail = [] if isinstance(self.log, Absent) else self.log.last(LOG_LINES)
        point.notes += [f"log: {line}" for line in tail]
        point.findings.append(Finding("server-death", HIGH, point.died, (point.name,)))
