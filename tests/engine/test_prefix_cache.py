"""The tree of cached pages against a list of what was kept, and who goes first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.engine.prefix_cache import CacheError, Entry, PrefixCache

prompts = st.lists(st.integers(0, 1), max_size=9)


def kept(cache: PrefixCache) -> dict[tuple[int, ...], int]:
    """Prefix -> the page of its last tokens."""
    found: dict[int, tuple[int, ...]] = {}
    pages: dict[tuple[int, ...], int] = {}
    for entry in cache.entries():
        tokens = found.get(id(entry.parent), ()) + entry.tokens
        found[id(entry)] = tokens
        pages[tokens] = entry.page
    return pages


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(1, 3),
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), prompts),
            st.tuples(st.just("hold"), prompts),
            st.tuples(st.just("let go"), st.integers(0, 9)),
            st.tuples(st.just("evict"), st.integers(0, 5)),
        ),
        max_size=30,
    ),
)
def test_against_a_plain_model(page_size: int, actions: list[tuple[str, object]]) -> None:
    cache = PrefixCache(page_size)
    pages: dict[tuple[int, ...], int] = {}
    used: dict[tuple[int, ...], int] = {}
    paths: list[list[Entry]] = []
    spelled: list[list[tuple[int, ...]]] = []  # the prefixes of each held path
    fresh = 0

    def prefixes(tokens: list[int]) -> list[tuple[int, ...]]:
        return [tuple(tokens[:n]) for n in range(page_size, len(tokens) + 1, page_size)]

    def is_held(prefix: tuple[int, ...]) -> bool:
        return any(prefix in path for path in spelled)

    for now, (action, value) in enumerate(actions):
        if action == "add":
            wanted = prefixes(value)
            given_pages = list(range(fresh, fresh + len(wanted)))
            fresh += len(wanted)
            expected = [n for p, n in zip(wanted, given_pages, strict=True) if p in pages]
            assert cache.add(value, given_pages) == expected
            for prefix, page in zip(wanted, given_pages, strict=True):
                pages.setdefault(prefix, page)
                used[prefix] = now
        elif action == "hold":
            path = cache.find(value)
            wanted = [p for p in prefixes(value) if p in pages]
            assert [entry.page for entry in path] == [pages[p] for p in wanted]
            cache.hold(path)
            paths.append(path)
            spelled.append(wanted)
        elif action == "let go" and paths:
            at = value % len(paths)
            cache.let_go(paths.pop(at))
            used |= dict.fromkeys(spelled.pop(at), now)
        elif action == "evict":
            expected = []
            for _ in range(value):
                leaves = [
                    p
                    for p in pages
                    if not is_held(p) and not any(q[: len(p)] == p for q in pages if q != p)
                ]
                if not leaves:
                    break
                # Parents are used with their children, so several leaves may be equally old.
                oldest = min(used[p] for p in leaves)
                got = cache.evict(1)
                (gone,) = [p for p in leaves if pages[p] == got[0]]
                assert used[gone] == oldest
                del pages[gone]
                expected.append(gone)
            if len(expected) < value:
                assert cache.evict(1) == []
        cache.check(paths)
        assert kept(cache) == pages
        assert len(cache) == len(pages)
        assert cache.evictable == sum(not is_held(p) for p in pages)


def test_tokens_are_compared_and_not_their_hashes() -> None:
    cache = PrefixCache(1)
    cache.add([-1], [3])
    assert hash((-1,)) == hash((-2,))
    assert cache.find([-2]) == []
    assert [entry.page for entry in cache.find([-1, 4])] == [3]


def test_the_same_page_after_another_past_is_another() -> None:
    cache = PrefixCache(2)
    cache.add([1, 1, 7, 7], [0, 1])
    cache.add([2, 2, 7, 7], [2, 3])
    assert [entry.page for entry in cache.find([2, 2, 7, 7])] == [2, 3]
    assert cache.find([7, 7]) == []


def test_half_a_page_is_not_kept() -> None:
    cache = PrefixCache(4)
    assert cache.add([1, 2, 3, 4, 5, 6], [0, 1]) == []
    assert len(cache) == 1
    assert cache.find([1, 2, 3]) == []


def test_pages_by_name_take_what_follows_with_them() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2, 3], [0, 1, 2])
    cache.add([1, 2, 4], [0, 1, 3])
    cache.add([5], [4])
    assert sorted(cache.evict_these([1])) == [1, 2, 3]
    cache.check([])
    assert kept(cache) == {(1,): 0, (5,): 4}
    assert cache.evict(9) == [0, 4]  # the first has become a leaf, and is older
    cache.check([])


def test_what_is_held_cannot_be_named() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], [0, 1])
    path = cache.find([1])
    cache.hold(path)
    with pytest.raises(CacheError, match="page 0 is held"):
        cache.evict_these([0])


def test_old_offers_are_forgotten() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], [0, 1])
    for _ in range(1000):
        path = cache.find([1, 2])
        cache.hold(path)
        cache.let_go(path)
    assert len(cache._leaves) < 100
    cache.check([])
    assert cache.evict(2) == [1, 0]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda cache, path: setattr(path[0], "holders", 2), "page 0 counts 2 holders; 1 requests"),
        (lambda cache, path: setattr(cache, "_held", 0), "0 cached pages are counted as held"),
        (lambda cache, path: setattr(cache, "_entries", 5), "5 cached pages are counted"),
        (lambda cache, path: setattr(path[0], "used", 0), "page 1 was used after the page before"),
        (lambda cache, path: cache._leaves.clear(), "page 1 would never be evicted"),
        (lambda cache, path: path.append(Entry(9, (9,), path[0])), "no longer has"),
        (lambda cache, path: path.insert(0, Entry(9, (9,), None)), "which does not follow"),
    ],
)
def test_the_check_sees(harm: object, message: str) -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], [0, 1])
    path = cache.find([1])
    cache.hold(path)
    cache.check([path])
    harm(cache, path)
    with pytest.raises(CacheError, match=message):
        cache.check([path])
