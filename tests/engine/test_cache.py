"""Pages of requests: admission, passes, the prefix cache, both tiers of defragmentation."""

from __future__ import annotations

import pytest

from verify_attn.engine.cache import Cache, Held
from verify_attn.engine.step import Moves
from verify_attn.paging import OutOfPagesError, runs


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
