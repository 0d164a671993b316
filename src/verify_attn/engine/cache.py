"""Which pages of the pool each request holds: bookkeeping on the host, no tensor in sight.

A page is free, or cached (rows of finished requests, see `verify_attn.engine.prefix_cache`), or
held by running requests; only whole committed pages are ever shared, and what a pass writes lies
past them.  A request says at admission how many positions it may come to need.  The pages it does
not have yet are promised to it: all promises together never exceed what is free or evictable, so a
request that runs cannot run out of memory.

Tier 0 of defragmentation is ``contiguous=True``: everything is reserved at admission, as one run.
Tier 1 is `Cache.compact`: it moves pages of a pool that is scattered already.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from verify_attn.defrag import places_after, plan_compaction
from verify_attn.engine.measures import Measures, measure
from verify_attn.engine.prefix_cache import Branch, PrefixCache
from verify_attn.engine.prefix_cache import CacheError as CacheError
from verify_attn.engine.step import Moves
from verify_attn.paging import ALLOCATORS, OutOfPagesError, PageIds, first_run, runs


@dataclass(eq=False)
class Held:
    """What one running request has of the pool.  Only `Cache` changes it.

    ``table``   its pages in token order (int32); replaced, never written to, where it changes
    ``length``  committed positions: their rows are in the pool
    ``cached``  tokens of the prompt that the prefix cache had
    """

    table: PageIds
    length: int
    cached: int
    _most_pages: int
    _prefix: Branch = field(repr=False)  # the end of what it shares with the prefix cache

    @property
    def promised(self) -> int:
        """Pages that it may yet ask for."""
        return self._most_pages - len(self.table)


class Cache:
    """Pages for requests.  Not safe to call from several threads."""

    def __init__(
        self,
        pages: int,
        page_size: int,
        *,
        allocator: str = "fifo",
        contiguous: bool = False,
        prefix_cache: bool = True,
    ) -> None:
        """``allocator`` is a name in `verify_attn.paging.ALLOCATORS`; tier 0 has its own."""
        if pages < 1 or page_size < 1:
            raise ValueError(f"{pages} pages of {page_size} rows; a pool has at least one of one")
        if allocator not in ALLOCATORS:
            raise ValueError(
                f"allocator is {allocator!r}; it must be one of {', '.join(ALLOCATORS)}"
            )
        self.pages = pages
        self.page_size = page_size
        self.contiguous = contiguous
        self._allocator = ALLOCATORS["contiguous" if contiguous else allocator](pages)
        self._keeps_prefixes = prefix_cache
        self._prefixes = PrefixCache(page_size)
        self._running: dict[Held, None] = {}  # in the order of admission
        self._promised = 0
        self._scattered = 0

    def admit(self, tokens: Sequence[int], most: int) -> Held:
        """A request with this prompt, that will need at most ``most`` token positions.

        ``most`` counts prompt, new tokens and the nodes of a tree.  Whole pages that the prefix
        cache has of ``tokens[:-1]`` are the request's from now on: the last token must be computed.

        Raises `OutOfPagesError` if it does not fit now, ``ValueError`` if it never will.
        """
        if not 1 <= len(tokens) <= most:
            raise ValueError(
                f"{len(tokens)} tokens, at most {most} positions; give at least one token and a "
                "bound that holds them all"
            )
        most_pages = self._pages_for(most)
        if most_pages > self.pages:
            raise ValueError(
                f"{most} positions need {most_pages} pages of {self.page_size}; the pool has "
                f"{self.pages}: shorten the request or make the pool larger"
            )
        prefix = self._prefixes.find(tokens[:-1]) if self._keeps_prefixes else self._prefixes.root
        self._prefixes.hold(prefix)
        shared = prefix.path_pages()
        wanted = most_pages - len(shared)
        available = self._allocator.free_pages + self._prefixes.evictable - self._promised
        if wanted > available:
            self._prefixes.let_go(prefix)
            raise OutOfPagesError(
                f"{wanted} pages may be needed, {max(available, 0)} are neither held nor promised; "
                "wait until a request ends"
            )
        table = shared
        if self.contiguous:
            table = np.concatenate([shared, self._reserve(wanted)])
        length = len(shared) * self.page_size
        held = Held(table, length, length, most_pages, prefix)
        self._running[held] = None
        self._promised += held.promised
        return held

    def room(self, held: Held, positions: int) -> None:
        """See to pages for token positions 0..positions.

        Raises ``ValueError`` for more positions than were announced at admission.
        """
        self._require_running(held)
        more = self._pages_for(positions) - len(held.table)
        if more <= 0:
            return
        if more > held.promised:
            raise ValueError(
                f"{positions} positions need {len(held.table) + more} pages; the request was "
                f"admitted for {len(held.table) + held.promised}"
            )
        self._make_free(more)
        held.table = np.concatenate([held.table, self._allocator.allocate(more)])
        self._promised -= more

    def commit(self, held: Held, accepted: Sequence[int]) -> Moves:
        """Commit nodes of the last pass: the moves that bring their rows to the front.

        ``accepted``  node indices, 0 first, rising; node i's row is at position length + i

        A row moves to a lower position than its own, and the rows that move later come from still
        higher ones, so that the moves are right one after the other wherever the slots are.
        """
        self._require_running(held)
        nodes = np.asarray(accepted, dtype=np.int64)
        if nodes.size == 0 or nodes[0] != 0 or (np.diff(nodes) < 1).any():
            raise ValueError(f"accepted is {list(accepted)}; it must begin with 0 and rise")
        if held.length + nodes[-1] >= self._rows(held):
            raise ValueError(
                f"node {nodes[-1]} after {held.length} committed positions lies past the request's "
                f"{len(held.table)} pages of {self.page_size}; call room before the pass"
            )
        moving = np.flatnonzero(nodes != np.arange(len(nodes)))
        sources = self._slots(held, held.length + nodes[moving])
        targets = self._slots(held, held.length + moving)
        held.length += len(nodes)
        return Moves(sources, targets)

    def trim(self, held: Held) -> None:
        """Give back the pages past the committed positions, those of rejected nodes.

        They stay promised.  In tier 0 the reservation stays as it is.
        """
        self._require_running(held)
        keep = self._pages_for(held.length)
        if self.contiguous or keep >= len(held.table):
            return
        self._allocator.free(held.table[keep:])
        self._promised += len(held.table) - keep
        held.table = held.table[:keep]

    def release(self, held: Held, tokens: Sequence[int]) -> None:
        """The request is over, at whatever point: its whole pages may serve later ones.

        ``tokens[:held.length]`` are those whose rows are in the pool.
        """
        self._require_running(held)
        if len(tokens) < held.length:
            raise ValueError(
                f"{len(tokens)} tokens are given, {held.length} are committed; give all of them"
            )
        whole = 0
        if self._keeps_prefixes:
            rows = np.asarray(tokens, dtype=np.int64)[: held.length]
            if self._prefixes.find(rows[: held.cached]) is not held._prefix:
                raise ValueError("the tokens do not begin with the prefix that was admitted")
            whole = held.length // self.page_size
            self._allocator.free(self._prefixes.add(rows, held.table[:whole]))
        self._allocator.free(held.table[whole:])
        self._prefixes.let_go(held._prefix)
        self._promised -= held.promised
        del self._running[held]

    def flush(self) -> int:
        """Forget the cached pages that no running request holds; returns how many."""
        pages = self._prefixes.evict(self._prefixes.evictable)
        self._allocator.free(pages)
        return len(pages)

    def compact(self, budget_pages: int | None = None) -> Moves:
        """Tier 1: move pages until every request is one run, at most ``budget_pages`` of them.

        Running requests come first, in the order of admission, then the cached pages; a page that
        several share moves once.  Tables and cache are those after the moves at once, so the moves
        must be done before the next pass.  They are whole pages, page_size rows each, and after
        any of them the pool is in a right state; see `verify_attn.defrag`.  Free pages are handed
        out in ascending order afterwards.  One must be free for it: if none is, the least recently
        used cached page goes; if all pages are held, nothing can move.
        """
        self._make_free(1)
        tables: list[npt.ArrayLike] = [held.table for held in self._running]
        tables.append(self._prefixes.pages())
        copies = plan_compaction(dict(enumerate(tables)), self.pages, budget_pages)
        if copies:
            places = places_after(copies)
            now = np.arange(self.pages, dtype=np.int32)
            now[list(places)] = list(places.values())
            for held in self._running:
                held.table = now[held.table]
            self._prefixes.move(now)
            free = np.ones(self.pages, dtype=np.bool_)
            for table in tables:
                free[now[np.asarray(table)]] = False
            self._allocator.allocate(self._allocator.free_pages)
            self._allocator.free(np.flatnonzero(free).tolist())
        rows = np.arange(self.page_size)
        pairs = np.array([(c.source, c.target) for c in copies], dtype=np.int64).reshape(-1, 2)
        slots = pairs[:, :, None] * self.page_size + rows
        return Moves(slots[:, 0].reshape(-1), slots[:, 1].reshape(-1))

    def measure(self) -> Measures:
        """How full the pool is and how scattered its requests are, now."""
        return measure(
            (held.table for held in self._running),
            pages=self.pages,
            free=self._allocator.free_pages,
            cached=self._prefixes.evictable,
            scattered=self._scattered,
        )

    def check(self) -> None:
        """Raise `CacheError` if a page is lost, or is two things at once, or a count is wrong."""
        self._prefixes.check(held._prefix for held in self._running)
        owner = dict.fromkeys(self._prefixes.pages().tolist(), "cached")
        for number, held in enumerate(self._running):
            shared = held.cached // self.page_size
            if not np.array_equal(held.table[:shared], held._prefix.path_pages()):
                raise CacheError(f"request {number} has other pages than the cache's it shares")
            for page in held.table[shared:].tolist():
                if page in owner:
                    raise CacheError(f"page {page} is of request {number}, and {owner[page]}")
                owner[page] = f"of request {number}"
            if held.promised < 0 or not held.cached <= held.length <= self._rows(held):
                raise CacheError(f"request {number} does not fit into its pages: {held}")
        # A copy of the allocator tells its free pages without giving them away.
        left = copy.deepcopy(self._allocator)
        free = left.allocate(left.free_pages).tolist()
        for page in free:
            if page in owner:
                raise CacheError(f"page {page} is free, and {owner[page]}")
        if set(free) | set(owner) != set(range(self.pages)):
            lost = set(range(self.pages)) - set(free) - set(owner)
            raise CacheError(f"pages {sorted(lost)} are neither free nor anyone's")
        if self._promised != sum(held.promised for held in self._running):
            raise CacheError(f"{self._promised} pages are counted as promised")
        if self._promised > len(free) + self._prefixes.evictable:
            raise CacheError(f"{self._promised} pages are promised; fewer are free or evictable")

    def _reserve(self, count: int) -> PageIds:
        """Tier 0: ``count`` pages as one run if there can be one."""
        run = first_run(self._unheld(cached=False), count)
        if run is None:
            run = first_run(self._unheld(cached=True), count)
            if run is not None:
                self._allocator.free(self._prefixes.evict_these(range(run, run + count)))
        self._make_free(count)
        pages = self._allocator.allocate(count)
        self._scattered += runs(pages) > 1
        return pages

    def _unheld(self, *, cached: bool) -> npt.NDArray[np.bool_]:
        """[pages]: which are free, or with ``cached`` free or evictable."""
        mask = np.ones(self.pages, dtype=np.bool_)
        for held in self._running:
            mask[held.table] = False
        mask[self._prefixes.pages()] = False
        if cached:
            mask[self._prefixes.pages(held=False)] = True
        return mask

    def _make_free(self, count: int) -> None:
        """Evict until that many pages are free, or nothing is left to evict."""
        missing = count - self._allocator.free_pages
        if missing > 0:
            self._allocator.free(self._prefixes.evict(missing))

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self.page_size)

    def _rows(self, held: Held) -> int:
        return len(held.table) * self.page_size

    def _slots(self, held: Held, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        pages = held.table[positions // self.page_size].astype(np.int64)
        return pages * self.page_size + positions % self.page_size

    def _require_running(self, held: Held) -> None:
        if held not in self._running:
            raise ValueError("the request is not one of this cache's running ones; is it released?")
