"""Pages of finished requests, kept for later ones that begin with the same tokens.

A tree: a branch is a stretch of whole pages of committed rows, below the branch before it.  A path
from the root so spells the tokens of a prefix, and tokens are compared, not hashes of them.  Where
prefixes part inside a branch it is split, so whatever is found or held ends where a branch ends.
What no running request holds may be evicted, the least recently used first, from its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from verify_attn.paging import PageIds

Tokens = npt.NDArray[np.int64]


class CacheError(AssertionError):
    """The bookkeeping of pages contradicts itself; the message names what is wrong."""


class Branch:
    """``pages`` and the page_size times as many ``tokens`` in them; ``holders`` requests use it.

    ``used`` is the tick of the last use; a parent's is at least its children's.  Evicted, it has no
    parent.  Children are found by the tokens of their first page.
    """

    def __init__(self, tokens: Tokens, pages: PageIds, parent: Branch | None) -> None:
        self.tokens = tokens
        self.pages = pages
        self.parent = parent
        self.children: dict[tuple[int, ...], Branch] = {}
        self.holders = 0
        self.used = 0

    def path(self) -> list[Branch]:
        """The branches from the root down to this one, the root itself left out."""
        path: list[Branch] = []
        at = self
        while at.parent is not None:
            path.append(at)
            at = at.parent
        return path[::-1]

    def path_pages(self) -> PageIds:
        """The pages of the whole prefix, in order."""
        return _joined(branch.pages for branch in self.path())

    @property
    def is_loose_leaf(self) -> bool:
        """May it be the next to go?"""
        return self.parent is not None and not self.holders and not self.children


class PrefixCache:
    """The tree.  It owns its pages until one of the ``evict`` methods gives them back."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Branch(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), None)
        self._pages = 0
        self._held = 0  # of them, in branches with a holder
        self._tick = 0
        # (used, number, branch) of loose leaves, and of branches that were that once.
        self._leaves: list[tuple[int, int, Branch]] = []
        self._pushed = 0

    def __len__(self) -> int:
        """Pages in the cache."""
        return self._pages

    @property
    def evictable(self) -> int:
        """Pages that no running request holds."""
        return self._pages - self._held

    def find(self, tokens: Sequence[int] | Tokens) -> Branch:
        """The branch at which the longest prefix of whole pages ends; the root if there is none."""
        return self._walk(np.asarray(tokens, dtype=np.int64))[0]

    def hold(self, end: Branch) -> None:
        """One more running request uses the prefix that ends there."""
        for branch in end.path():
            if not branch.holders:
                self._held += len(branch.pages)
            branch.holders += 1

    def let_go(self, end: Branch) -> None:
        """One running request fewer; the prefix counts as just used."""
        self._tick += 1
        for branch in end.path():
            branch.holders -= 1
            if not branch.holders:
                self._held -= len(branch.pages)
            branch.used = self._tick
        self._offer(end)

    def add(self, tokens: Sequence[int] | Tokens, pages: PageIds) -> PageIds:
        """Keep the whole pages of ``tokens``, which lie in ``pages`` in order.

        Returns the pages that it did not take, since the cache has their tokens in others.
        """
        whole = np.asarray(tokens, dtype=np.int64)[: len(pages) * self.page_size]
        end, found = self._walk(whole)
        known = pages[: found // self.page_size]
        left: PageIds = known[known != end.path_pages()]
        if found < len(whole):
            new = Branch(whole[found:].copy(), pages[found // self.page_size :].copy(), end)
            end.children[self._key(new.tokens)] = new
            self._pages += len(new.pages)
            end = new
        self._tick += 1
        for branch in end.path():
            branch.used = self._tick
        self._offer(end)
        return left

    def evict(self, count: int) -> PageIds:
        """Drop that many pages, the least recently used first; fewer only if no more may go."""
        gone: list[PageIds] = []
        missing = count
        while missing > 0 and self._leaves:
            used, _, branch = heapq.heappop(self._leaves)
            if branch.used == used and branch.is_loose_leaf:
                gone.append(self._cut(branch, max(len(branch.pages) - missing, 0)))
                missing -= len(gone[-1])
        return _joined(gone)

    def evict_these(self, wanted: Iterable[int]) -> PageIds:
        """Drop those of the pages that it has, and with them what follows; none may be held."""
        doomed = np.fromiter(wanted, dtype=np.int64)
        first: dict[Branch, int] = {}  # branch -> how many of its pages stay
        for branch in self.branches():  # parents come first
            hit = np.flatnonzero(np.isin(branch.pages, doomed))
            if branch.parent in first:
                first[branch] = 0
            elif hit.size:
                first[branch] = int(hit[0])
        return _joined([self._cut(branch, keep) for branch, keep in reversed(first.items())])

    def branches(self) -> Iterator[Branch]:
        """Every branch, parents before children; only children stay close to theirs."""
        stack = list(self.root.children.values())[::-1]
        while stack:
            branch = stack.pop()
            yield branch
            stack.extend(reversed(branch.children.values()))

    def pages(self, *, held: bool = True) -> PageIds:
        """Its pages in the order of `branches`, or those alone that nobody holds."""
        return _joined(b.pages for b in self.branches() if held or not b.holders)

    def move(self, now: PageIds) -> None:
        """Contents moved: ``now[page]`` is where that of a page is."""
        for branch in self.branches():
            branch.pages = now[branch.pages]

    def check(self, held: Iterable[Branch]) -> None:
        """Raise `CacheError` if a count is not that of the ``held`` ends or the tree is broken."""
        holders: dict[Branch, int] = {}
        for end in held:
            for branch in end.path():
                holders[branch] = holders.get(branch, 0) + 1
        branches = list(self.branches())
        pages = self.pages()
        if len(pages) != self._pages or len(np.unique(pages)) != len(pages):
            raise CacheError(f"{self._pages} cached pages are counted; there are {pages.tolist()}")
        waiting = {(used, branch) for used, _, branch in self._leaves}
        for branch in branches:
            name = f"the branch of pages {branch.pages.tolist()}"
            counted = holders.pop(branch, 0)
            if branch.holders != counted:
                raise CacheError(f"{name} counts {branch.holders} holders; {counted} hold it")
            above = branch.parent
            if above is None or above.children.get(self._key(branch.tokens)) is not branch:
                raise CacheError(f"{name} is not below its parent")
            if len(branch.tokens) != len(branch.pages) * self.page_size or not len(branch.pages):
                raise CacheError(f"{name} has {len(branch.tokens)} tokens")
            if above is not self.root and above.used < branch.used:
                raise CacheError(f"{name} was used after the one before it")
            if branch.is_loose_leaf and (branch.used, branch) not in waiting:
                raise CacheError(f"{name} would never be evicted")
        if holders:
            raise CacheError(f"{len(holders)} branches are held that the cache no longer has")
        if self._held != sum(len(branch.pages) for branch in branches if branch.holders):
            raise CacheError(f"{self._held} cached pages are counted as held")

    def _key(self, tokens: Tokens) -> tuple[int, ...]:
        return tuple(tokens[: self.page_size].tolist())

    def _walk(self, tokens: Tokens) -> tuple[Branch, int]:
        """(branch, tokens found): where the longest prefix ends; splits a branch that goes on."""
        at, found = self.root, 0
        while len(tokens) - found >= self.page_size:
            child = at.children.get(self._key(tokens[found:]))
            if child is None:
                break
            length = min(len(child.tokens), len(tokens) - found)
            differ = np.flatnonzero(child.tokens[:length] != tokens[found : found + length])
            same = (int(differ[0]) if differ.size else length) // self.page_size
            found += same * self.page_size
            if same < len(child.pages):
                return self._split(child, same), found
            at = child
        return at, found

    def _split(self, branch: Branch, keep: int) -> Branch:
        """Give a branch's first ``keep`` pages to a new one above it, and return that.

        The end stays the branch that it was, since it is ends that requests hold.
        """
        above, tokens = branch.parent, keep * self.page_size
        assert above is not None
        new = Branch(branch.tokens[:tokens], branch.pages[:keep], above)
        new.holders, new.used = branch.holders, branch.used
        above.children[self._key(new.tokens)] = new
        branch.tokens, branch.pages, branch.parent = (
            branch.tokens[tokens:],
            branch.pages[keep:],
            new,
        )
        new.children[self._key(branch.tokens)] = branch
        return new

    def _cut(self, branch: Branch, keep: int) -> PageIds:
        """Drop a loose leaf's pages but the first ``keep``."""
        above = branch.parent
        if above is None or not branch.is_loose_leaf:
            raise CacheError(
                f"the branch of pages {branch.pages.tolist()} is held or goes on; it cannot go"
            )
        gone = branch.pages[keep:]
        self._pages -= len(gone)
        if keep:
            branch.tokens = branch.tokens[: keep * self.page_size]
            branch.pages = branch.pages[:keep]
            self._offer(branch)
        else:
            del above.children[self._key(branch.tokens)]
            branch.parent = None
            self._offer(above)
        return gone

    def _offer(self, branch: Branch) -> None:
        """Let `evict` find the branch, if it may go."""
        if not branch.is_loose_leaf:
            return
        if len(self._leaves) > 2 * self._pages + 64:  # most are of branches used or gone since
            self._leaves = [x for x in self._leaves if x[0] == x[2].used and x[2].is_loose_leaf]
            heapq.heapify(self._leaves)
        self._pushed += 1
        heapq.heappush(self._leaves, (branch.used, self._pushed, branch))


def _joined(pages: Iterable[PageIds]) -> PageIds:
    return np.concatenate([np.zeros(0, dtype=np.int32), *pages])
