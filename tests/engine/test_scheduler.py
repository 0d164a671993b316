"""The engine's thread: batching, cancelling, refusing, dying; no page lost over many requests."""

from __future__ import annotations

import queue
import random
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from tests.engine.small import CONFIG, decoder_of, differs_by, generate
from verify_attn.engine.drafters.ngram import NgramDrafter
from verify_attn.engine.drafters.none import NoDrafter
from verify_attn.engine.faults import Faults
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.job import ContextOverflowError, Delta, Job, QueueFullError, RefusedError
from verify_attn.engine.scheduler import Limits, Scheduler

CONTEXT = 200


@dataclass
class Heard:
    """What one job was told."""

    deltas: queue.Queue[Delta] = field(default_factory=queue.Queue)

    def all(self, limit_s: float = 30.0) -> list[Delta]:
        found = [self.deltas.get(timeout=limit_s)]
        while found[-1].finish is None:
            found.append(self.deltas.get(timeout=limit_s))
        return found

    def tokens(self) -> list[int]:
        return [token for delta in self.all() for token in delta.tokens]


@pytest.fixture
def scheduler():
    made: list[Scheduler] = []

    def make(drafter=None, budget: int = 9, faults: Faults | None = None, **how) -> Scheduler:
        limits = Limits(CONTEXT, chunk=16, **{k: how.pop(k) for k in list(how) if k in LIMITS})
        decoder = decoder_of(drafter or NgramDrafter(), budget, **{"tokens": 1000, **how})
        made.append(Scheduler(decoder, limits, Metrics(), faults))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


LIMITS = {"running", "waiting", "compact_pages", "fill_seed"}


def submit(scheduler: Scheduler, name: str, tokens, new: int, **how) -> Heard:
    heard = Heard()
    scheduler.submit(Job(name, tuple(tokens), new, heard.deltas.put, ignore_eos=True, **how))
    return heard


PLAIN = decoder_of(NoDrafter(), 0, prefix_cache=False)


def plain(prompt, new: int) -> list[int]:
    return generate(PLAIN, [prompt], new)[0]


def same_as_plain(prompt, tokens) -> None:
    expected = plain(list(prompt), len(tokens))
    text = [*prompt, *tokens]
    assert text == expected[: len(text)] or differs_by(text, expected) < 1e-4


def test_many_at_once_each_as_if_alone(scheduler):
    engine = scheduler(page_size=2)
    draw = random.Random(1)
    prompts = [[draw.randrange(32) for _ in range(draw.randrange(1, 60))] for _ in range(40)]
    heard = [submit(engine, f"{i}", p, 1 + i % 20) for i, p in enumerate(prompts)]
    for i, (prompt, one) in enumerate(zip(prompts, heard, strict=True)):
        tokens = one.tokens()
        assert len(tokens) == 1 + i % 20
        same_as_plain(prompt, tokens)


def test_first_token_comes_from_prefill_and_the_rest_from_steps(scheduler):
    deltas = submit(scheduler(), "a", [1, 2, 3] * 10, 20).all()
    spent = deltas[-1].speculation
    assert len(deltas[0].tokens) == 1
    assert spent.steps == len(spent.committed) == len(deltas) - 1
    assert sum(spent.committed) >= 19
    assert spent.accepted_drafts == sum(spent.committed) - spent.steps
    assert [len(d.tokens) for d in deltas[1:-1]] == list(spent.committed[:-1])


def test_a_cached_prefix_is_not_computed_again(scheduler):
    engine = scheduler(page_size=4)
    prompt = list(range(30))
    first = submit(engine, "a", prompt, 8).all()
    again = submit(engine, "b", prompt, 8).all()
    assert first[-1].cached_tokens == 0
    assert again[-1].cached_tokens == 28
    assert [d.tokens for d in again] == [d.tokens for d in first]
    assert engine.flush() > 0
    assert submit(engine, "c", prompt, 8).all()[-1].cached_tokens == 0


def test_a_cancelled_job_gives_its_pages_back_at_once(scheduler):
    engine = scheduler(faults=Faults(step_time_ms=500.0), prefix_cache=False)
    heard = submit(engine, "a", [1] * 50, 140)
    heard.deltas.get(timeout=10)
    engine.cancel("a")
    assert heard.all()[-1].finish == "cancelled"
    cache = engine.decoder.cache
    assert engine.call(lambda: cache.measure().free) == cache.pages


def test_a_waiting_job_can_be_cancelled(scheduler):
    engine = scheduler(running=1, faults=Faults(step_time_ms=200.0))
    busy = submit(engine, "a", [1] * 20, 100)
    waiting = submit(engine, "b", [1] * 20, 100)
    engine.cancel("b")
    assert waiting.all()[-1].finish == "cancelled"
    engine.cancel("a")
    assert busy.all()[-1].finish == "cancelled"


def test_a_full_queue_refuses(scheduler):
    engine = scheduler(running=1, waiting=2, faults=Faults(stall=(0, 1.0)))
    submit(engine, "a", [1], 5).deltas.get(timeout=10)
    for name in "bc":
        submit(engine, name, [1], 5)
    with pytest.raises(QueueFullError, match="2 requests wait"):
        submit(engine, "d", [1], 5)


@pytest.mark.parametrize(("tokens", "new"), [([1] * 150, 51), ([1] * 201, 1), ([1], 10**9)])
def test_what_does_not_fit_the_context_is_refused(scheduler, tokens, new):
    with pytest.raises(ContextOverflowError, match="maximum context length is 200 tokens"):
        submit(scheduler(), "a", tokens, new)


@pytest.mark.parametrize("token", [-1, 32, 10**20])
def test_an_id_outside_the_vocabulary_is_refused(scheduler, token):
    engine = scheduler()
    with pytest.raises(RefusedError, match=f"token id {token}"):
        submit(engine, "a", [1, token], 5)
    assert len(submit(engine, "b", [1], 5).tokens()) == 5


def test_what_never_fits_the_pool_is_told_so(scheduler):
    engine = scheduler(tokens=100)
    assert "100" in submit(engine, "a", [1] * 90, 60).all()[-1].error
    assert len(submit(engine, "b", [1] * 10, 5).tokens()) == 5


def test_jobs_wait_for_pages(scheduler):
    engine = scheduler(tokens=150, prefix_cache=False)
    heard = [submit(engine, f"{i}", [i] * 60, 20) for i in range(6)]
    assert [len(one.tokens()) for one in heard] == [20] * 6


def test_out_of_memory_is_a_dead_engine_that_says_so(scheduler):
    engine = scheduler(faults=Faults(out_of_memory=40))
    first, second = submit(engine, "a", [1] * 20, 60), submit(engine, "b", [2] * 20, 60)
    assert "out of memory at 4" in first.all()[-1].error
    assert second.all()[-1].finish == "error"
    engine._thread.join(10)
    assert "out of memory" in engine.alive()
    with pytest.raises(RefusedError, match="dead"):
        submit(engine, "c", [1], 1)
    with pytest.raises(RefusedError, match="dead"):
        engine.flush()


def test_a_stall_happens_once(scheduler):
    engine = scheduler(drafter=NoDrafter(), budget=0, faults=Faults(stall=(3, 0.6)))
    heard = submit(engine, "a", [1], 8)
    times = []
    while True:
        delta = heard.deltas.get(timeout=10)
        times.append(time.monotonic())
        if delta.finish:
            break
    gaps = [b - a for a, b in pairwise(times)]
    assert [gap > 0.5 for gap in gaps] == [False, False, True, False, False, False, False]


def test_filled_prompts_are_not_computed(scheduler):
    engine = scheduler(fill_seed=3, prefix_cache=False)
    one = submit(engine, "a", [1] * 50, 8).all()
    other = submit(engine, "b", [2] * 49 + [1], 8).all()
    assert (one[0].filled_tokens, one[0].cached_tokens) == (49, 0)
    # The prompt's content is the seed's: only the last token and the length are the prompt's.
    assert [t for d in one for t in d.tokens] == [t for d in other for t in d.tokens]


@pytest.mark.parametrize("compact_pages", [0, 7])
@pytest.mark.parametrize("contiguous", [False, True])
def test_nothing_leaks_and_nothing_is_wrong_over_many_requests(
    scheduler, compact_pages, contiguous
):
    """Lengths, cancels at any moment, shared prefixes, a pool that is often full."""
    engine = scheduler(
        budget=7, page_size=2, tokens=600, compact_pages=compact_pages, contiguous=contiguous,
        waiting=200,
    )  # fmt: skip
    draw = random.Random(5)
    stems = [[draw.randrange(CONFIG.vocabulary) for _ in range(40)] for _ in range(3)]
    jobs = []
    for i in range(60):
        prompt = [*stems[i % 3][: draw.randrange(1, 40)], draw.randrange(32)]
        heard = submit(engine, f"{i}", prompt, draw.randrange(1, 30))
        if draw.random() < 0.3:
            threading.Timer(draw.random() * 0.3, engine.cancel, [f"{i}"]).start()
        jobs.append((prompt, heard))
    for prompt, heard in jobs:
        deltas = heard.all()
        tokens = [token for delta in deltas for token in delta.tokens]
        assert deltas[-1].finish in ("length", "cancelled")
        if tokens:
            same_as_plain(prompt, tokens)
    cache = engine.decoder.cache

    def settled() -> int:
        cache.check()
        cache.flush()
        return cache.measure().free

    assert engine.call(settled) == cache.pages
