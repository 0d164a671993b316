"""Continuous batching: a thread that admits jobs, prefills in chunks between steps, and decodes.

One loop: take what came in, drop what was cancelled, admit what fits, one prefill chunk, one verify
step of everything that decodes.  Only this thread touches the decoder.
"""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verify_attn.engine.decode import Decoder, Running
from verify_attn.engine.faults import Faults
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.inbox import Inbox
from verify_attn.engine.job import (
    ContextOverflowError,
    Delta,
    FinishReason,
    Job,
    RefusedError,
    Speculation,
)
from verify_attn.engine.options import MOST_RUNNING, MOST_WAITING, PREFILL_CHUNK
from verify_attn.engine.sampling import Sampling
from verify_attn.engine.step import Moves
from verify_attn.engine.text import Answer
from verify_attn.paging import OutOfPagesError

# Loops between two looks at whether the pool wants compaction: planning costs more than a step.
COMPACT_EVERY = 32
COMPACT_BACKOFF = 16  # times that, after a look that found nothing to move
REPORT_EVERY_S = 0.1


@dataclass(frozen=True)
class Limits:
    """``fill_seed``: prompts are not computed, their KV is random rows of that seed.

    ``compact_pages`` is how many pages compaction may copy between two steps; 0 is off.
    """

    max_context: int
    running: int = MOST_RUNNING
    waiting: int = MOST_WAITING
    chunk: int = PREFILL_CHUNK
    compact_pages: int = 0
    fill_seed: int | None = None


@dataclass(eq=False)
class _Admitted:
    job: Job
    running: Running
    answer: Answer
    cached: int
    filled: int = 0
    announced: bool = False


class Scheduler:
    """The engine behind the HTTP side; ``submit``, ``cancel`` and ``flush`` are thread-safe."""

    def __init__(
        self, decoder: Decoder, limits: Limits, metrics: Metrics,
        faults: Faults | None = None, *, model_name: str = "model", lossless: bool = True,
        about: dict[str, object] | None = None, notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.decoder = decoder
        self.limits = limits
        self.metrics = metrics
        self.model_name = model_name
        self.max_context = limits.max_context
        self.drafter = decoder.drafter.name
        self.budget = decoder.budget
        self.lossless = lossless
        self.notes = tuple(notes)
        self.about = {**(about or {}), "notes": list(self.notes)}
        self._faults = faults or Faults()
        self._inbox = Inbox(limits.waiting, limits.running)
        self._admitted: list[_Admitted] = []
        self._loops = 0
        self._compact_at = COMPACT_EVERY
        self._reported_s = 0.0
        self._keys = 0
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    # -- from any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Let the thread end, jobs that run be told so, and the pool go."""
        self._inbox.stop()
        self._faults.end()
        if self._thread.is_alive():
            self._thread.join()
        self.decoder.runner.close()

    def submit(self, job: Job) -> None:
        """Queue it; raises `RefusedError` (see job.py) where it cannot run."""
        if not job.tokens:
            raise RefusedError("the prompt has no tokens; give at least one")
        vocabulary = self.decoder.runner.config.vocabulary
        outside = [token for token in job.tokens if not 0 <= token < vocabulary]
        if outside:
            raise RefusedError(
                f"token id {outside[0]} is none: the vocabulary has 0..{vocabulary - 1}"
            )
        if job.most_tokens < 1:
            raise RefusedError(f"max_tokens is {job.most_tokens}; it must be at least 1")
        asked = len(job.tokens) + job.most_tokens
        most = self.limits.max_context
        if asked > most:
            raise ContextOverflowError(
                f"This model's maximum context length is {most} tokens; you asked for {asked} "
                f"({len(job.tokens)} in the prompt, {job.most_tokens} to generate). Shorten the "
                "prompt or lower max_tokens."
            )
        self._inbox.submit(job)

    def cancel(self, name: str) -> None:
        """Drop the job of that name, wherever it is; its pages are free at the next loop."""
        self._inbox.cancel(name)

    def flush(self) -> int:
        """Empty the prefix cache; returns the pages freed."""
        return self.call(self.decoder.cache.flush)

    def call(self, work: Callable[[], int]) -> int:
        """Run ``work`` in the engine's thread between two steps; raises `RefusedError` if dead."""
        return self._inbox.call(work)

    def alive(self) -> str | None:
        """None, or why the engine does not answer any more."""
        return self._inbox.dead

    # -- the engine's thread -------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._inbox.wait(busy=bool(self._admitted)):
                self._take_in()
                self._prefill()
                self._step()
                self._compact()
                self._report()
        except BaseException as error:  # whatever it is, nobody must wait for ever
            traceback.print_exc()
            self._die(f"{type(error).__name__}: {error}")
        else:
            self._die("it was stopped")

    def _take_in(self) -> None:
        """Calls, cancellations, and as many waiting jobs as fit, in the order they came."""
        taken = self._inbox.take()
        for work, done in taken.calls:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)
        for job in taken.dropped:
            self.metrics.finished("cancelled", len(job.tokens), 0)
            self._tell(job, Delta(finish="cancelled"))
        for one in [one for one in self._admitted if one.job.name in taken.cancelled]:
            self._finish(one, "cancelled")
        while len(self._admitted) < self.limits.running and self._admit_next():
            pass
        self._inbox.seats = self.limits.running - len(self._admitted)

    def _admit_next(self) -> bool:
        job = self._inbox.first()
        if job is None:
            return False
        # The tree of the last step may reach past the last token.
        most = len(job.tokens) + job.most_tokens + self.decoder.budget + 1
        try:
            held = self.decoder.cache.admit(job.tokens, most)
        except (OutOfPagesError, ValueError) as error:
            if isinstance(error, OutOfPagesError) and self._admitted:
                return False  # it fits once others are done
            held = None
            self.metrics.finished("error", len(job.tokens), 0)
            self._tell(job, Delta(finish="error", error=str(error)))
        self._inbox.pop()
        if held is None:
            return True
        self._keys += 1
        seed = job.seed if job.seed is not None else secrets.randbits(63)
        running = Running(
            self._keys, list(job.tokens), len(job.tokens), held,
            Sampling(job.temperature, job.top_p, seed),
        )  # fmt: skip
        answer = Answer(job.most_tokens, job.stop, job.ignore_eos)
        self._admitted.append(_Admitted(job, running, answer, held.cached))
        return True

    def _prefill(self) -> None:
        """One chunk of the request that has waited longest."""
        one = next((one for one in self._admitted if one.running.in_prefill), None)
        if one is None:
            return
        running = one.running
        start = time.perf_counter()
        if self.limits.fill_seed is not None and running.prompt_tokens > 1:
            one.filled += self.decoder.fill(running, self.limits.fill_seed)
        end = min(running.prompt_tokens, running.held.length + self.limits.chunk)
        self._faults.before_prefill(end)
        count = self.decoder.prefill(running, self.limits.chunk)
        seconds = time.perf_counter() - start
        self.metrics.prefill(count, seconds, 0 if one.announced else one.cached)
        one.announced = True
        if not running.in_prefill:
            self._emit(one, (running.tokens[-1],))

    def _step(self) -> None:
        decoding = [one for one in self._admitted if not one.running.in_prefill]
        if not decoding:
            return
        start = time.perf_counter()
        requests = [one.running for one in decoding]
        self._faults.before_step(requests)
        steps = self.decoder.step(requests)
        accepted = [len(step.tokens) - 1 for step in steps]
        proposed = sum(step.proposed for step in steps)
        self.metrics.step(len(steps), proposed, accepted, time.perf_counter() - start)
        for one, step in zip(decoding, steps, strict=True):
            self._emit(one, step.tokens)

    def _emit(self, one: _Admitted, tokens: tuple[int, ...]) -> None:
        counted, text = one.answer.add(tokens)
        if one.answer.finish is not None:
            self._finish(one, one.answer.finish, counted, text)
        else:
            news = Delta(counted, text, cached_tokens=one.cached, filled_tokens=one.filled)
            self._tell(one.job, news)

    def _finish(
        self, one: _Admitted, reason: FinishReason, tokens: tuple[int, ...] = (), text: str = ""
    ) -> None:
        self._admitted.remove(one)
        self.decoder.release(one.running)
        last = Delta(tokens, text, reason, None, one.cached, one.filled, self._spent(one))
        # Counted first: who has the whole answer finds it in the metrics.
        self.metrics.finished(reason, one.running.prompt_tokens, one.answer.tokens)
        self._tell(one.job, last)

    def _tell(self, job: Job, news: Delta) -> None:
        """A listener that fails costs its own job, not everyone's."""
        try:
            job.emit(news)
        except Exception:
            traceback.print_exc()
            self.cancel(job.name)

    def _spent(self, one: _Admitted) -> Speculation:
        committed = tuple(one.running.committed)
        return Speculation(
            self.decoder.drafter.name, self.decoder.budget, len(committed),
            one.running.proposed_drafts, sum(committed) - len(committed), committed,
        )  # fmt: skip

    def _compact(self) -> None:
        """Between steps, within the budget, where some request lies scattered."""
        self._loops += 1
        if not self.limits.compact_pages or self._loops < self._compact_at:
            return
        self._compact_at = self._loops + COMPACT_EVERY
        if self.decoder.cache.measure().max_runs > 1:
            moved = len(self.compact_now(self.limits.compact_pages))
            # What shares its beginning with others may never become one run.
            if not moved:
                self._compact_at = self._loops + COMPACT_EVERY * COMPACT_BACKOFF

    def compact_now(self, pages: int | None) -> Moves:
        """In the engine's thread (see `call`): copy up to ``pages`` pages towards their places."""
        moves = self.decoder.cache.compact(pages)
        self.decoder.move([moves])
        return moves

    def _report(self) -> None:
        """Often enough for who reads metrics; looking at every page costs too much for a step."""
        now = time.monotonic()
        if self._admitted and now - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s = now
        measures = self.decoder.cache.measure()
        self.metrics.state(len(self._admitted), len(self._inbox), measures)

    def _die(self, why: str) -> None:
        waiting = self._inbox.die(why)
        for job in [*(one.job for one in self._admitted), *waiting]:
            self.metrics.finished("error", len(job.tokens), 0)
            self._tell(job, Delta(finish="error", error=f"the engine died: {why}"))
        self._admitted.clear()
        self.metrics.state(0, 0, None)
