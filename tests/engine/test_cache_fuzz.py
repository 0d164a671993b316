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
        for branch in cache._prefixes.branches():
            tokens = np.concatenate([above.tokens for above in branch.path()]).tolist()
            assert self.rows(branch.path_pages(), len(tokens)) == self.path(tokens)
            owned[branch.pages] = True
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
