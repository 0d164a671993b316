"""The tree of cached pages against a list of what was kept, and who goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.engine.prefix_cache import Branch, CacheError, PrefixCache

prompts = st.lists(st.integers(0, 1), max_size=9)


def kept(cache: PrefixCache) -> dict[tuple[int, ...], int]:
    """Prefix -> the page of its last tokens."""
    pages: dict[tuple[int, ...], int] = {}
    size = cache.page_size
    for branch in cache.branches():
        tokens = np.concatenate([above.tokens for above in branch.path()]).tolist()
        path = branch.path_pages().tolist()
        for page in range(len(path)):
            prefix = tuple(tokens[: (page + 1) * size])
            assert pages.setdefault(prefix, path[page]) == path[page]
    return pages


def array(pages: list[int]) -> np.ndarray:
    return np.array(pages, dtype=np.int32)


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
    ends: list[Branch] = []
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
            assert cache.add(value, array(given_pages)).tolist() == expected
            for prefix, page in zip(wanted, given_pages, strict=True):
                pages.setdefault(prefix, page)
                used[prefix] = now
        elif action == "hold":
            end = cache.find(value)
            wanted = [p for p in prefixes(value) if p in pages]
            assert end.path_pages().tolist() == [pages[p] for p in wanted]
            cache.hold(end)
            ends.append(end)
            spelled.append(wanted)
        elif action == "let go" and ends:
            at = value % len(ends)
            cache.let_go(ends.pop(at))
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
                assert cache.evict(1).size == 0
        cache.check(ends)
        assert kept(cache) == pages
        assert len(cache) == len(pages)
        assert cache.evictable == sum(not is_held(p) for p in pages)


def test_tokens_are_compared_and_not_their_hashes() -> None:
    cache = PrefixCache(1)
    cache.add([-1], array([3]))
    assert hash((-1,)) == hash((-2,))
    assert cache.find([-2]) is cache.root
    assert cache.find([-1, 4]).path_pages().tolist() == [3]


def test_the_same_page_after_another_past_is_another() -> None:
    cache = PrefixCache(2)
    cache.add([1, 1, 7, 7], array([0, 1]))
    cache.add([2, 2, 7, 7], array([2, 3]))
    assert cache.find([2, 2, 7, 7]).path_pages().tolist() == [2, 3]
    assert cache.find([7, 7]) is cache.root


def test_half_a_page_is_not_kept() -> None:
    cache = PrefixCache(4)
    assert cache.add([1, 2, 3, 4, 5, 6], array([0])).size == 0
    assert len(cache) == 1
    assert cache.find([1, 2, 3]) is cache.root
    assert cache.find([1, 2, 3, 4, 9]).path_pages().tolist() == [0]


def test_what_a_request_holds_stays_its_end_when_branches_part() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2, 3, 4], array([0, 1, 2, 3]))
    end = cache.find([1, 2, 3])
    cache.hold(end)
    cache.add([1, 9], array([0, 5]))  # parts inside what is held
    assert end.path_pages().tolist() == [0, 1, 2]
    cache.check([end])
    assert cache.evict(9).tolist() == [3, 5]
    cache.let_go(end)
    cache.check([])
    assert cache.evictable == 3


def test_eviction_takes_the_end_of_a_branch_and_no_more_than_asked() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2, 3, 4], array([0, 1, 2, 3]))
    cache.add([5], array([4]))
    assert cache.evict(2).tolist() == [2, 3]
    assert cache.find([1, 2, 3, 4]).path_pages().tolist() == [0, 1]
    assert cache.evict(9).tolist() == [0, 1, 4]
    assert len(cache) == 0


def test_pages_by_name_take_what_follows_with_them() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2, 3], array([0, 1, 2]))
    cache.add([1, 2, 4], array([0, 1, 3]))
    cache.add([5], array([4]))
    assert sorted(cache.evict_these([1]).tolist()) == [1, 2, 3]
    cache.check([])
    assert kept(cache) == {(1,): 0, (5,): 4}
    assert cache.evict(9).tolist() == [0, 4]  # the first has become a leaf, and is older
    cache.check([])


def test_what_is_held_cannot_be_named() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], array([0, 1]))
    cache.hold(cache.find([1]))
    with pytest.raises(CacheError, match=r"pages \[0\] is held"):
        cache.evict_these([0])


def test_old_offers_are_forgotten() -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], array([0, 1]))
    for _ in range(1000):
        end = cache.find([1, 2])
        cache.hold(end)
        cache.let_go(end)
    assert len(cache._leaves) < 100
    cache.check([])
    assert cache.evict(2).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda cache, end: setattr(end, "holders", 2), "counts 2 holders; 1 hold it"),
        (lambda cache, end: setattr(cache, "_held", 0), "0 cached pages are counted as held"),
        (lambda cache, end: setattr(cache, "_pages", 5), "5 cached pages are counted; there are"),
        (lambda cache, end: setattr(end, "used", 0), r"pages \[1\] was used after the one before"),
        (lambda cache, end: cache._leaves.clear(), r"pages \[1\] would never be evicted"),
        (lambda cache, end: setattr(end, "tokens", np.array([1, 1])), "has 2 tokens"),
        (
            lambda cache, end: cache.root.children.clear(),
            r"2 cached pages are counted; there are \[]",
        ),
        (
            lambda cache, end: cache.root.children.update({(7,): cache.root.children.pop((1,))}),
            "is not below its parent",
        ),
    ],
)
def test_the_check_sees(harm: object, message: str) -> None:
    cache = PrefixCache(1)
    cache.add([1, 2], array([0, 1]))
    end = cache.find([1])
    cache.hold(end)
    cache.check([end])
    harm(cache, end)
    with pytest.raises(CacheError, match=message):
        cache.check([end])
