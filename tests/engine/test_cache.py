"""Pages of requests: whatever is asked in whatever order, every row is where its table says.

The model is a pool of numbers.  The row of a token holds a number for the whole prefix that ends
with it, so a row of another request, another position or another past is a wrong row.  What nobody
may rely on (free pages, rows past the committed ones) is overwritten after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.engine.cache import Cache, Held
from verify_attn.engine.step import Moves
from verify_attn.paging import ALLOCATORS, OutOfPagesError, runs

ROOT = 1  # the number of the empty prefix


@dataclass(eq=False)
class Request:
    """``tokens`` are all that it has; the first ``held.length`` are committed."""

    held: Held
    tokens: list[int]
    most: int
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)


class World:
    """A cache, and the pool that its moves are done in; everything is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.requests: list[Request] = []
        self.past: list[list[int]] = []  # tokens of those that ended
        self.numbers: dict[tuple[int, int], int] = {}
        self.garbage = 0
        self.cache = Cache(
            self.upto(16, 1),
            self.upto(8, 1) if self.odds(0.5) else self.upto(2, 1),
            allocator=str(self.rng.choice(sorted(ALLOCATORS))),
            contiguous=self.odds(0.3),
            prefix_cache=self.odds(0.8),
        )
        self.pool = np.zeros(self.cache.pages * self.cache.page_size, dtype=np.int64)

    def live(self, operations: int) -> None:
        """That many operations, each followed by all checks; then everything ends."""
        acts = [self.admit, self.step, self.release, self.compact, self.flush]
        for _ in range(operations):
            acts[self.rng.choice(len(acts), p=[0.25, 0.5, 0.12, 0.1, 0.03])]()
            self.nothing_is_lost()
        # Every request may use all that it announced; then all pages come back.
        for request in self.requests:
            self.cache.room(request.held, request.most)
        for request in self.requests:
            self.cache.release(request.held, request.tokens)
        self.cache.check()
        self.cache.flush()
        self.cache.check()
        assert self.cache.measure().free == self.cache.pages

    # What happens.

    def admit(self) -> None:
        cache = self.cache
        prompt = self.rng.integers(0, 2, self.upto(2 * cache.page_size + 4, 1)).tolist()
        if self.past and self.odds(0.6):  # begins as another one did
            other = self.past[self.rng.integers(len(self.past))]
            prompt = other[: self.upto(len(other), 1)] + prompt * self.odds(0.7)
        most = len(prompt) + self.upto(3 * cache.page_size + 8)
        before = cache.measure()
        try:
            held = cache.admit(prompt, most)
        except ValueError:
            assert -(-most // cache.page_size) > cache.pages
            assert cache.measure() == before
            return
        except OutOfPagesError:
            assert self.requests  # alone, whatever can fit at all does
            assert cache.measure() == before
            return
        assert held.length == held.cached < len(prompt)
        assert held.cached % cache.page_size == 0
        if cache.contiguous:
            own = held.table[held.cached // cache.page_size :]
            assert len(held.table) == -(-most // cache.page_size)
            assert runs(own) == 1 or cache.measure().scattered > before.scattered
        self.requests.append(Request(held, prompt, most))

    def step(self) -> None:
        """A prefill chunk, or a pass over a tree of which some nodes are accepted."""
        if not self.requests:
            return
        request = self.any_request()
        held, cache = request.held, self.cache
        prefill = request.prompt - 1 - held.length
        size = self.upto(12, 1)
        nodes = min(size, prefill if prefill > 0 else request.most - held.length)
        if nodes <= 0:
            return
        cache.room(held, held.length + nodes)
        accepted = np.arange(nodes)
        if prefill <= 0:
            # The root is the last token; each accepted node decides another one.
            odds = self.rng.choice([0.0, 0.4, 1.0])
            accepted = accepted[(accepted == 0) | (self.rng.random(nodes) < odds)]
            missing = held.length + len(accepted) - len(request.tokens)
            request.tokens += self.rng.integers(0, 2, max(missing, 0)).tolist()
        for node in range(nodes):
            self.write(held, held.length + node, self.nothing())
        for i, node in enumerate(accepted):
            number = self.number(request.tokens[: held.length + i + 1])
            self.write(held, held.length + int(node), number)
        before = held.length
        self.do(cache.commit(held, accepted.tolist()))
        assert held.length == before + len(accepted)
        if self.odds(0.7):
            cache.trim(held)
            if not cache.contiguous:
                assert len(held.table) == -(-held.length // cache.page_size)

    def release(self) -> None:
        """Done, or cancelled at any point, with rejected slots or without."""
        if not self.requests:
            return
        request, cache = self.any_request(), self.cache
        self.requests.remove(request)
        self.past.append(request.tokens)
        cache.release(request.held, request.tokens)
        with pytest.raises(ValueError, match="is it released"):
            cache.release(request.held, request.tokens)
        if cache._keeps_prefixes and self.odds(0.5):
            # A request that asks for the same at once has all its whole pages.
            whole = request.held.length // cache.page_size * cache.page_size
            tokens = [*request.tokens[: request.held.length], 0]
            try:
                held = cache.admit(tokens, len(tokens))
            except (ValueError, OutOfPagesError):
                return
            assert held.cached == whole
            cache.release(held, tokens)

    def flush(self) -> None:
        before = self.cache.measure()
        assert self.cache.flush() == before.cached
        after = self.cache.measure()
        assert (after.free, after.cached) == (before.free + before.cached, 0)

    def compact(self) -> None:
        cache, size = self.cache, self.cache.page_size
        budget = None if self.odds(0.5) else self.upto(6)
        before = cache.measure()
        moves = cache.compact(budget)
        assert len(moves) % size == 0
        copies = len(moves) // size
        assert budget is None or copies <= budget
        assert (moves.sources % size == np.tile(np.arange(size), copies)).all()
        if copies and self.odds(0.5):
            # A crash inside a copy: rows of its page are lost.  The plan goes on from there.
            at = self.upto(copies - 1) * size
            inside = at + self.upto(size)
            self.do(Moves(moves.sources[:inside], moves.targets[:inside]))
            self.pool[moves.targets[at : at + size]] = self.nothing()
            self.do(Moves(moves.sources[at:], moves.targets[at:]))
        else:
            self.do(moves)
        measures = cache.measure()
        assert measures.free == (before.free or min(1, before.cached))
        if budget is None and measures.free:
            held_pages = {int(p) for request in self.requests for p in request.held.table}
            assert held_pages == set(range(len(held_pages)))
            assert len(cache.compact(None)) == 0
            assert cache.measure().free == measures.free

    # What must be so after each.

    def nothing_is_lost(self) -> None:
        cache = self.cache
        cache.check()
        measures = cache.measure()
        assert measures.free + measures.cached + measures.held == measures.pages
        promised = sum(request.held.promised for request in self.requests)
        assert promised <= measures.free + measures.cached
        for request in self.requests:
            held = request.held
            found = self.rows(held.table, held.length)
            assert found == self.path(request.tokens[: held.length])
        owned = np.zeros(cache.pages, dtype=np.bool_)
        for entry in cache._prefixes.entries():
            tokens, pages, at = [], [], entry
            while at.parent is not None:
                tokens, pages, at = [*at.tokens, *tokens], [at.page, *pages], at.parent
            assert self.rows(np.array(pages), len(tokens)) == self.path(tokens)
            owned[entry.page] = True
        for request in self.requests:
            owned[request.held.table] = True
            for position in range(request.held.length, len(request.held.table) * cache.page_size):
                self.write(request.held, position, self.nothing())
        self.pool.reshape(cache.pages, -1)[~owned] = self.nothing()

    # The pool.

    def odds(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def upto(self, most: int, least: int = 0) -> int:
        return int(self.rng.integers(least, most + 1))

    def any_request(self) -> Request:
        return self.requests[self.rng.integers(len(self.requests))]

    def path(self, tokens: list[int]) -> list[int]:
        numbers, at = [], ROOT
        for token in tokens:
            at = self.numbers.setdefault((at, token), len(self.numbers) + 2)
            numbers.append(at)
        return numbers

    def number(self, tokens: list[int]) -> int:
        return self.path(tokens)[-1]

    def nothing(self) -> int:
        self.garbage -= 1
        return self.garbage

    def slot(self, table: np.ndarray, position: int) -> int:
        size = self.cache.page_size
        return int(table[position // size]) * size + position % size

    def write(self, held: Held, position: int, number: int) -> None:
        self.pool[self.slot(held.table, position)] = number

    def rows(self, table: np.ndarray, length: int) -> list[int]:
        return [int(self.pool[self.slot(table, position)]) for position in range(length)]

    def do(self, moves: Moves) -> None:
        for source, target in zip(moves.sources.tolist(), moves.targets.tolist(), strict=True):
            self.pool[target] = self.pool[source]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_nothing_is_lost_whatever_happens(seed: int) -> None:
    World(seed).live(50)


def committed(cache: Cache, tokens: list[int], most: int | None = None) -> Held:
    """A running request with all these tokens in the pool."""
    held = cache.admit(tokens, most or len(tokens))
    cache.room(held, len(tokens))
    cache.commit(held, range(len(tokens) - held.length))
    return held


def pairs(moves: Moves) -> list[tuple[int, int]]:
    return list(zip(moves.sources.tolist(), moves.targets.tolist(), strict=True))


def test_the_accepted_path_comes_to_the_front() -> None:
    cache = Cache(8, 4)
    held = committed(cache, [1, 2, 3], most=11)
    cache.room(held, 11)
    assert pairs(cache.commit(held, [0, 1, 4, 7])) == [(7, 5), (10, 6)]  # 0 and 1 lie right
    cache.trim(held)
    assert (held.length, held.table.tolist(), held.promised) == (7, [0, 1], 1)
    assert cache.commit(held, [0]).sources.size == 0  # the tail of a page is used again
    assert held.length == 8


def test_the_order_is_right_where_slots_fall() -> None:
    cache = Cache(4, 1, prefix_cache=False)
    a, b = committed(cache, [1, 2]), committed(cache, [3, 4])
    cache.release(b, [3, 4])
    cache.release(a, [1, 2])
    held = cache.admit([0], 4)
    cache.room(held, 4)
    assert held.table.tolist() == [2, 3, 0, 1]
    assert pairs(cache.commit(held, [0, 2, 3])) == [(0, 3), (1, 0)]


def test_a_prefix_is_found_and_its_last_token_never() -> None:
    cache = Cache(20, 2)
    tokens = [5, 6, 7, 8, 9]
    cache.release(committed(cache, tokens), tokens)
    assert cache.measure().cached == 2
    assert cache.admit(tokens, 5).cached == 4
    assert cache.admit(tokens[:4], 5).cached == 2  # all four are there; one must be computed
    assert cache.admit([5, 6, 7, 9, 9], 5).cached == 2
    assert cache.admit([6, 5, 7, 8, 9], 5).cached == 0
    cache.check()


def test_token_zero_is_an_ordinary_token() -> None:
    cache = Cache(8, 2)
    cache.release(committed(cache, [0, 0, 0, 0]), [0, 0, 0, 0])
    assert cache.admit([0, 0, 0, 0, 0], 5).cached == 4
    assert cache.admit([0, 0, 1, 0, 0], 5).cached == 2


def test_without_a_prefix_cache_all_pages_come_back() -> None:
    cache = Cache(8, 2, prefix_cache=False)
    cache.release(committed(cache, [1, 2, 3, 4]), [1, 2, 3, 4])
    assert cache.measure().free == 8
    assert cache.admit([1, 2, 3, 4], 4).cached == 0


def test_cancelled_in_the_middle_of_prefill() -> None:
    cache = Cache(8, 2)
    held = cache.admit([1, 2, 3, 4, 5, 6], 10)
    cache.room(held, 5)
    cache.commit(held, range(3))
    cache.room(held, 8)  # the next chunk had begun
    cache.release(held, [1, 2, 3, 4, 5, 6])
    cache.check()
    assert (cache.measure().cached, cache.measure().free) == (1, 7)


def test_what_is_promised_to_one_is_not_given_to_another() -> None:
    cache = Cache(4, 1)
    first = cache.admit([1], 3)
    with pytest.raises(OutOfPagesError, match="2 pages may be needed, 1 are neither held nor"):
        cache.admit([2], 2)
    second = cache.admit([2], 1)
    cache.room(first, 3)
    cache.room(second, 1)
    with pytest.raises(ValueError, match="4 positions need 4 pages; the request was admitted for"):
        cache.room(first, 4)


def test_cached_pages_make_room_the_oldest_first() -> None:
    cache = Cache(6, 1)
    for tokens in ([1, 1, 1], [2, 2, 2]):
        cache.release(committed(cache, tokens), tokens)
    cache.release(cache.admit([1, 1, 1, 0], 4), [1, 1, 1, 0])  # used again
    held = cache.admit([3, 3], 2)
    cache.room(held, 2)
    assert cache.admit([1, 1, 1, 0], 4).cached == 3
    assert cache.measure().cached == 1
    cache.check()


def test_what_is_held_is_not_evicted() -> None:
    cache = Cache(4, 1)
    cache.release(committed(cache, [1, 2, 3]), [1, 2, 3])
    sharing = cache.admit([1, 2, 9], 3)
    assert sharing.cached == 2
    with pytest.raises(OutOfPagesError):
        cache.admit([7, 7], 2)  # one is promised, one is evictable
    assert cache.flush() == 1
    cache.check()


def test_two_requests_with_the_same_tokens_leave_one_copy() -> None:
    cache = Cache(8, 2)
    a, b = committed(cache, [1, 2, 3, 4]), committed(cache, [1, 2, 3, 4])
    cache.release(a, [1, 2, 3, 4])
    cache.release(b, [1, 2, 3, 4])
    cache.check()
    assert (cache.measure().cached, cache.measure().free) == (2, 6)


def test_tier_0_reserves_one_run_and_keeps_it() -> None:
    cache = Cache(8, 2, contiguous=True, allocator="fifo")
    a, b = cache.admit([1], 6), cache.admit([2], 4)
    assert (a.table.tolist(), b.table.tolist()) == ([0, 1, 2], [3, 4])
    cache.room(a, 6)
    cache.commit(a, [0, 3])
    cache.trim(a)
    assert a.table.tolist() == [0, 1, 2]
    assert cache.measure().mean_runs == 1


def test_tier_0_evicts_where_a_run_can_be_and_counts_where_none_can() -> None:
    cache = Cache(8, 1, contiguous=True)
    a = committed(cache, [1, 1, 1])
    b = committed(cache, [2, 2])
    c = committed(cache, [3, 3])
    cache.release(c, [3, 3])  # pages 5 and 6 cached, 7 free
    wide = cache.admit([4], 3)
    assert wide.table.tolist() == [5, 6, 7]
    assert cache.measure().scattered == 0
    cache.release(a, [1, 1, 1])
    cache.release(wide, [4])
    cache.flush()
    torn = cache.admit([5], 5)  # 0, 1, 2 and 5, 6, 7 are free, on both sides of b
    assert runs(torn.table) == 2
    assert cache.measure().scattered == 1
    assert b.table.tolist() == [3, 4]
    cache.check()


def test_tier_0_does_not_evict_the_prefix_that_it_found() -> None:
    cache = Cache(6, 1, contiguous=True)
    cache.release(committed(cache, [1, 2, 3]), [1, 2, 3])
    held = cache.admit([1, 2, 9], 6)
    assert held.table.tolist() == [0, 1, 2, 3, 4, 5]  # 0 and 1 found, the page of the 3 evicted
    assert held.cached == 2
    cache.check()


def test_compaction_moves_shared_pages_once_and_tells_everyone() -> None:
    cache = Cache(12, 1)
    filler = committed(cache, [8, 8, 8])
    cache.release(committed(cache, [1, 2, 3]), [1, 2, 3])
    a, b = committed(cache, [1, 2, 5]), committed(cache, [1, 2, 6])
    cache.release(filler, [8, 8, 8])
    cache.flush()
    moves = cache.compact(None)
    assert len(set(moves.sources.tolist())) == len(moves)
    assert (a.table.tolist(), b.table.tolist()) == ([0, 1, 2], [0, 1, 3])
    assert cache.measure().mean_runs == 1.5
    cache.check()
    c = cache.admit([1, 2, 7], 3)
    assert c.table.tolist() == [0, 1]
    cache.room(c, 3)
    assert c.table.tolist() == [0, 1, 4]  # the lowest free page


def test_compaction_of_a_pool_that_the_cache_fills() -> None:
    cache = Cache(4, 1)
    one, two = committed(cache, [1, 1], most=2), committed(cache, [2])
    cache.release(one, [1, 1])
    three = committed(cache, [3])
    cache.release(three, [3])
    assert cache.measure().free == 0
    assert pairs(cache.compact(None))  # the cache gave up a page for it
    assert two.table.tolist() == [0]
    cache.check()


def test_measures() -> None:
    cache = Cache(10, 1, prefix_cache=False)
    assert cache.measure().mean_run_pages == 0
    a, b = cache.admit([1], 4), cache.admit([2], 4)
    for positions in (1, 2):
        cache.room(a, positions)
        cache.room(b, positions)
    cache.room(a, 4)
    found = cache.measure()
    assert (a.table.tolist(), b.table.tolist()) == ([0, 2, 4, 5], [1, 3])
    assert (found.pages, found.free, found.cached, found.held) == (10, 4, 0, 6)
    assert (found.mean_runs, found.max_runs) == (2.5, 3)
    assert found.mean_run_pages == pytest.approx(6 / 5)
    assert found.mean_spanned_pages == 4.5


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda cache, held: Cache(0, 1), "at least one"),
        (lambda cache, held: Cache(1, 1, allocator="lifo"), "one of fifo, sorted, contiguous"),
        (lambda cache, held: cache.admit([], 4), "at least one token"),
        (lambda cache, held: cache.admit([1, 2], 1), "a bound that holds them"),
        (lambda cache, held: cache.admit([1], 9), "9 positions need 5 pages of 2; the pool has 4"),
        (lambda cache, held: cache.commit(held, []), "must begin with 0"),
        (lambda cache, held: cache.commit(held, [1]), "must begin with 0"),
        (lambda cache, held: cache.commit(held, [0, 2, 2]), "and rise"),
        (lambda cache, held: cache.commit(held, [0, 2]), "call room before"),
        (lambda cache, held: cache.room(held, 5), "admitted for 2"),
        (lambda cache, held: cache.release(held, [1]), "1 tokens are given, 2 are committed"),
    ],
)
def test_misuse_is_told(act: object, message: str) -> None:
    cache = Cache(4, 2)
    held = committed(cache, [1, 2], most=4)
    with pytest.raises(ValueError, match=message):
        act(cache, held)
    cache.check()
