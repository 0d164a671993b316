"""Pages of finished requests, kept for later ones that begin with the same tokens.

A tree: an entry is one whole page of committed rows, below the page before it.  A path from the
root so spells the tokens of a prefix, and tokens are compared, not hashes of them.  Entries that a
running request uses are held; what no one holds may be evicted, the least recently used first and
a page never before those that follow it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class CacheError(AssertionError):
    """The bookkeeping of pages contradicts itself; the message names what is wrong."""


@dataclass(eq=False, slots=True)
class Entry:
    """A page and its tokens (page_size of them); ``holders`` running requests use it."""

    page: int
    tokens: tuple[int, ...]
    parent: Entry | None
    children: dict[tuple[int, ...], Entry] = field(default_factory=dict)
    holders: int = 0
    used: int = 0  # the tick of its last use; a parent's is at least its children's


class PrefixCache:
    """The tree of entries.  It owns their pages until `evict` gives them back."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._root = Entry(-1, (), None)
        self._entries = 0
        self._held = 0  # entries with a holder
        self._tick = 0
        # (used, number, entry) of leaves without a holder, and of entries that were that once.
        self._leaves: list[tuple[int, int, Entry]] = []
        self._pushed = 0

    def __len__(self) -> int:
        """Pages in the cache."""
        return self._entries

    @property
    def evictable(self) -> int:
        """Pages that no running request holds."""
        return self._entries - self._held

    def find(self, tokens: Sequence[int]) -> list[Entry]:
        """The longest path of whole pages that hold a prefix of ``tokens``."""
        path: list[Entry] = []
        at = self._root
        for chunk in self._chunks(tokens):
            child = at.children.get(chunk)
            if child is None:
                break
            path.append(child)
            at = child
        return path

    def hold(self, path: Sequence[Entry]) -> None:
        """One more running request uses these entries, a path from the root."""
        for entry in path:
            self._held += entry.holders == 0
            entry.holders += 1

    def let_go(self, path: Sequence[Entry]) -> None:
        """One running request fewer; the path counts as just used."""
        self._tick += 1
        for entry in path:
            entry.holders -= 1
            self._held -= entry.holders == 0
            entry.used = self._tick
        if path:
            self._offer(path[-1])

    def add(self, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Keep the whole pages of ``tokens``, which lie in ``pages`` in order.

        Returns the pages that it did not take, since the cache has their tokens in others.
        """
        self._tick += 1
        left: list[int] = []
        at = self._root
        for chunk, page in zip(self._chunks(tokens), pages, strict=False):
            child = at.children.get(chunk)
            if child is None:
                child = Entry(page, chunk, at)
                at.children[chunk] = child
                self._entries += 1
            elif child.page != page:
                left.append(page)
            child.used = self._tick
            at = child
        self._offer(at)
        return left

    def evict(self, count: int) -> list[int]:
        """Drop that many pages, the least recently used first; fewer only if no more may go."""
        pages: list[int] = []
        while len(pages) < count and self._leaves:
            used, _, entry = heapq.heappop(self._leaves)
            if entry.used == used and self._is_loose_leaf(entry):
                pages.append(self._drop(entry))
        return pages

    def evict_these(self, wanted: Iterable[int]) -> list[int]:
        """Drop those of the pages that it has, and with them what follows; none may be held."""
        pages = set(wanted)
        doomed: dict[int, Entry] = {}
        for entry in self.entries():  # parents come first
            if entry.page in pages or id(entry.parent) in doomed:
                doomed[id(entry)] = entry
        return [self._drop(entry) for entry in reversed(doomed.values())]

    def entries(self) -> Iterator[Entry]:
        """Every entry, parents before children, a chain in one stretch."""
        stack = list(reversed(self._root.children.values()))
        while stack:
            entry = stack.pop()
            yield entry
            stack.extend(reversed(entry.children.values()))

    def move(self, places: Mapping[int, int]) -> None:
        """Contents moved: page before -> page now."""
        for entry in self.entries():
            entry.page = places.get(entry.page, entry.page)

    def check(self, paths: Iterable[Sequence[Entry]]) -> None:
        """Raise `CacheError` if a count is not that of the held ``paths`` or the tree is broken."""
        holders: dict[int, int] = {}
        for path in paths:
            above: Entry = self._root
            for entry in path:
                if entry.parent is not above:
                    raise CacheError(f"a request holds page {entry.page}, which does not follow")
                holders[id(entry)] = holders.get(id(entry), 0) + 1
                above = entry
        entries = list(self.entries())
        if len(entries) != self._entries or len({entry.page for entry in entries}) != len(entries):
            raise CacheError(f"{self._entries} cached pages are counted, {len(entries)} are there")
        for entry in entries:
            counted = holders.pop(id(entry), 0)
            if entry.holders != counted:
                raise CacheError(
                    f"page {entry.page} counts {entry.holders} holders; {counted} requests hold it"
                )
            if entry.parent is None or entry.parent.children.get(entry.tokens) is not entry:
                raise CacheError(f"page {entry.page} is not below its parent")
            if entry.parent is not self._root and entry.parent.used < entry.used:
                raise CacheError(f"page {entry.page} was used after the page before it")
        if holders:
            raise CacheError(f"{len(holders)} pages are held that the cache no longer has")
        if self._held != sum(entry.holders > 0 for entry in entries):
            raise CacheError(f"{self._held} cached pages are counted as held")
        waiting = {(used, id(entry)) for used, _, entry in self._leaves}
        for entry in entries:
            if self._is_loose_leaf(entry) and (entry.used, id(entry)) not in waiting:
                raise CacheError(f"page {entry.page} would never be evicted")

    def _chunks(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        size = self.page_size
        for start in range(0, len(tokens) - size + 1, size):
            yield tuple(tokens[start : start + size])

    def _is_loose_leaf(self, entry: Entry) -> bool:
        """May this entry be the next to go?  (One that went has no parent.)"""
        return entry.parent is not None and not entry.holders and not entry.children

    def _offer(self, entry: Entry) -> None:
        """Let `evict` find the entry, if it may go."""
        if not self._is_loose_leaf(entry):
            return
        if len(self._leaves) > 2 * self._entries + 64:  # most are of entries used or gone since
            self._leaves = [
                x for x in self._leaves if x[0] == x[2].used and self._is_loose_leaf(x[2])
            ]
            heapq.heapify(self._leaves)
        self._pushed += 1
        heapq.heappush(self._leaves, (entry.used, self._pushed, entry))

    def _drop(self, entry: Entry) -> int:
        if entry.parent is None or entry.holders or entry.children:
            raise CacheError(f"page {entry.page} is held or followed by another; it cannot go")
        del entry.parent.children[entry.tokens]
        parent, entry.parent = entry.parent, None
        self._entries -= 1
        self._offer(parent)
        return entry.page
