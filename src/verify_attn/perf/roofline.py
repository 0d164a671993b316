"""The least that a case must move and compute, and the time that no kernel can go below.

Each KV row that some request sees is read once, for all heads, all nodes and all requests that
share it; q, outputs, page tables and mask bits are moved once; a product and a sum are two
operations.  Whichever takes longer at the hardware's rates binds: with the 8 heads of a rank and
bf16 it is the memory up to some 14 nodes on an H200, and arithmetic above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verify_attn.assemble import shared_pages
from verify_attn.generate import DTYPES, Case, visible_rows
from verify_attn.geometry import AttentionGeometry
from verify_attn.tree import mask_words

INDEX_BYTES, LSE_BYTES, WORD_BYTES = 4, 4, 8  # of a page table's entry, an LSE, a mask word


@dataclass(frozen=True)
class Work:
    """``kv_bytes`` of unique rows; ``other_bytes`` of q, out, LSE, page tables and mask."""

    kv_bytes: int
    other_bytes: int
    flops: int

    @property
    def total_bytes(self) -> int:
        """All that must move."""
        return self.kv_bytes + self.other_bytes

    @property
    def flops_per_byte(self) -> float:
        """Above the hardware's own ratio arithmetic binds."""
        return self.flops / self.total_bytes


@dataclass(frozen=True)
class Rates:
    """What a GPU can do: a data sheet's peaks, or ceilings measured on the spot; ``source``."""

    gb_per_s: float
    tflops: float
    source: str


@dataclass(frozen=True)
class Limit:
    """Times that no kernel can go below, in seconds."""

    memory_s: float
    arithmetic_s: float

    @property
    def seconds(self) -> float:
        """The floor of both."""
        return max(self.memory_s, self.arithmetic_s)

    @property
    def binds(self) -> Literal["memory", "arithmetic"]:
        """Which of the two it is."""
        return "memory" if self.memory_s >= self.arithmetic_s else "arithmetic"


def limit(work: Work, rates: Rates) -> Limit:
    """At those rates."""
    return Limit(work.total_bytes / (rates.gb_per_s * 1e9), work.flops / (rates.tflops * 1e12))


def work_of(case: Case) -> Work:
    """Of one call on a case.  Rows outside the pool (``node_kv``) are of q's dtype."""
    geometry, element = case.attention_geometry, DTYPES[case.dtype].itemsize
    prefixes = [prefix_len for prefix_len, _ in case.requests]
    trees = {tree: _Tree.of(tree) for tree in {tree for _, tree in case.requests}}
    visible = [trees[tree] for _, tree in case.requests]
    nodes = [tree.rows for tree in visible]
    stored = [p + tree.seen for p, tree in zip(prefixes, visible, strict=True)]
    shared = shared_pages(case.shared_pages, case.page_size, prefixes)
    rows = sum(stored) - case.page_size * sum(shared[1:])  # the first request has them too
    in_pool = prefixes if case.node_kv else stored
    outside = sum(tree.seen for tree in visible) if case.node_kv else 0
    pages = sum(-(-tokens // case.page_size) for tokens in in_pool)
    pairs = sum(p * tree.rows + tree.pairs for p, tree in zip(prefixes, visible, strict=True))
    return Work(
        kv_bytes=(rows - outside) * geometry.row_bytes(case.pool_dtype.itemsize)
        + outside * geometry.row_bytes(element),
        other_bytes=_around(geometry, nodes, element) + INDEX_BYTES * pages,
        flops=pairs * flops_of_a_pair(geometry),
    )


@dataclass(frozen=True)
class _Tree:
    """``rows`` of q, how many of their KV rows are ``seen`` by any of them (padding is by none),
    and the ``pairs`` of a row and one that it sees."""

    rows: int
    seen: int
    pairs: int

    @classmethod
    def of(cls, text: str) -> _Tree:
        sees = visible_rows(text)
        return cls(len(sees), int(sees.any(axis=0).sum()), int(sees.sum()))


def flops_of_a_pair(geometry: AttentionGeometry) -> int:
    """Operations of one node's attention to one token, all heads: score and weighted value."""
    return 2 * geometry.heads * (geometry.qk_dim + geometry.latent_dim)


def _around(geometry: AttentionGeometry, nodes: list[int], element: int) -> int:
    """Bytes of q, out, LSE and mask."""
    count = sum(nodes)
    head = (geometry.qk_dim + geometry.latent_dim) * element + LSE_BYTES
    words = mask_words(max(nodes)) if nodes else 0
    return count * (geometry.heads * head + words * WORD_BYTES)
