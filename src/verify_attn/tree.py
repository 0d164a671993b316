"""The draft tree: parents, depths, ancestor bits, child and sibling links.

A small tree and its mask (row i shows which nodes node i attends to)::

    0 root          1....
    |- 1            11...
    |  `- 3         11.1.
    `- 2            1.1..
       `- 4         1.1.1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_NODES = 1025  # a node budget of 1,024 and the root
WORD_BITS = 64


class TreeError(ValueError):
    """Something that is no draft tree; the message names field, index, value and rule."""


def mask_words(nodes: int) -> int:
    """64-bit words in one row of the tree mask of a tree of that many nodes (at least one)."""
    return max(1, -(-nodes // WORD_BITS))


@dataclass(frozen=True)
class DraftTree:
    """A tree of draft tokens in topological order.

    ``parents[i]`` is the index of node i's parent, below i; the root (node 0) has -1.
    Insertion order need not be breadth first (DDTree's is best first).
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parents) <= MAX_NODES:
            raise TreeError(f"parents has {len(self.parents)} entries; a tree has 1 to {MAX_NODES}")
        if self.parents[0] != -1:
            raise TreeError(f"parents[0] is {self.parents[0]}; node 0 is the root: it must be -1")
        for i, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < i:
                raise TreeError(
                    f"parents[{i}] is {parent}; a parent's index must lie in 0..{i - 1}, "
                    "below its child's: put the nodes in topological order"
                )

    def __len__(self) -> int:
        return len(self.parents)

    # -- shapes ------------------------------------------------------------------------------

    @classmethod
    def chain(cls, nodes: int) -> DraftTree:
        """Root, child, grandchild ...: what a drafter without branches proposes."""
        return cls(tuple(range(-1, nodes - 1)))

    @classmethod
    def star(cls, nodes: int) -> DraftTree:
        """A root with ``nodes - 1`` children."""
        return cls((-1, *(0 for _ in range(1, nodes)))[:nodes])

    @classmethod
    def comb(cls, nodes: int) -> DraftTree:
        """A spine with one leaf at each spine node: deep and branching at once."""
        return cls((-1, *(((i - 1) // 2) * 2 for i in range(1, nodes)))[:nodes])

    @classmethod
    def random(cls, nodes: int, seed: int) -> DraftTree:
        """Each node hangs on a uniformly drawn earlier node."""
        rng = np.random.default_rng(seed)
        return cls((-1, *(int(rng.integers(0, i)) for i in range(1, nodes)))[:nodes])

    # -- structure ---------------------------------------------------------------------------

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node, the root's being 0; a node's RoPE position is prefix_len + depth."""
        depths = [0] * len(self)
        for i, parent in enumerate(self.parents[1:], start=1):
            depths[i] = depths[parent] + 1
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node in ascending order."""
        lists: list[list[int]] = [[] for _ in self.parents]
        for i, parent in enumerate(self.parents[1:], start=1):
            lists[parent].append(i)
        return tuple(tuple(kids) for kids in lists)

    def path(self, node: int) -> tuple[int, ...]:
        """From the root to ``node``, both included."""
        path = [node]
        while (parent := self.parents[path[-1]]) >= 0:
            path.append(parent)
        return tuple(reversed(path))

    @cached_property
    def visible(self) -> BoolArray:
        """``[nodes, nodes]`` bool: node i attends to node j iff j is i or an ancestor of i."""
        visible = np.zeros((len(self), len(self)), dtype=np.bool_)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                visible[i] = visible[parent]
            visible[i, i] = True
        return visible

    @cached_property
    def mask_bits(self) -> Int64Array:
        """``[nodes, words]`` int64: node j is bit j % 64 of word j // 64, least bit first."""
        return pack_words(self.visible)

    @cached_property
    def links(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(first child, next sibling) of each node, -1 where there is none.

        The layout of SGLang's ``retrieve_next_token`` and ``retrieve_next_sibling``, siblings in
        ascending order.
        """
        first = [-1] * len(self)
        sibling = [-1] * len(self)
        for node, kids in enumerate(self.children):
            if kids:
                first[node] = kids[0]
                for left, right in pairwise(kids):
                    sibling[left] = right
        return tuple(first), tuple(sibling)

    # -- from other layouts --------------------------------------------------------------------

    @classmethod
    def from_links(cls, first_child: Sequence[int], next_sibling: Sequence[int]) -> DraftTree:
        """From child and sibling links; a sibling may have the lower index (SGLang allows it)."""
        nodes = len(first_child)
        if not nodes:
            raise TreeError("first_child is empty; a tree has a root, node 0")
        if len(next_sibling) != nodes:
            raise TreeError(
                f"first_child has {nodes} entries and next_sibling {len(next_sibling)}; "
                "both have one a node"
            )
        parents = [-1] * nodes
        seen = {0}
        stack = [0]
        while stack:
            node = stack.pop()
            child = first_child[node]
            while child != -1:
                if not 0 <= child < nodes or child in seen:
                    raise TreeError(
                        f"node {node} links to {child}; a link must lead to a node of "
                        f"0..{nodes - 1} that no other link leads to, or be -1"
                    )
                seen.add(child)
                parents[child] = node
                stack.append(child)
                child = next_sibling[child]
        if len(seen) != nodes:
            lost = min(set(range(nodes)) - seen)
            raise TreeError(f"node {lost} is reached by no link; every node hangs on the root")
        return cls(tuple(parents))

    @classmethod
    def from_visible(cls, visible: npt.ArrayLike) -> DraftTree:
        """From a ``[nodes, nodes]`` bool mask; a mask that is no tree's is refused by row."""
        rows = np.asarray(visible, dtype=np.bool_)
        if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
            raise TreeError(f"visible has shape {rows.shape}; it must be square, one row a node")
        parents = []
        for i, row in enumerate(rows):
            earlier = np.flatnonzero(row[:i])
            parents.append(int(earlier[-1]) if earlier.size else -1)
        tree = cls(tuple(parents))
        wrong = np.flatnonzero((tree.visible != rows).any(axis=1))
        if wrong.size:
            i = int(wrong[0])
            raise TreeError(
                f"row {i} of the mask shows nodes {np.flatnonzero(rows[i]).tolist()}; a node sees "
                f"itself and its ancestors, here {list(tree.path(i))}"
            )
        return tree


def pack_words(visible: BoolArray, words: int | None = None) -> Int64Array:
    """Bool rows ``[n, nodes]`` to int64 words ``[n, words]``, least significant bit first."""
    rows, nodes = visible.shape
    words = mask_words(nodes) if words is None else words
    padded = np.zeros((rows, words * WORD_BITS), dtype=np.bool_)
    padded[:, :nodes] = visible
    packed = np.packbits(padded, axis=1, bitorder="little")
    return packed.view("<i8").astype(np.int64, copy=False).reshape(rows, words)


def unpack_words(bits: npt.ArrayLike, nodes: int) -> BoolArray:
    """Int64 words ``[n, words]`` to bool rows ``[n, nodes]``; the inverse of `pack_words`."""
    words = np.ascontiguousarray(np.asarray(bits, dtype="<i8"))
    unpacked = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return unpacked[:, :nodes].astype(np.bool_)


def accept_walk(
    tree: DraftTree, node_tokens: Sequence[int], target_tokens: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """Follow the target's choices down the tree.

    ``node_tokens[i]`` is node i's drafted token (the root's is not looked at) and
    ``target_tokens[i]`` what the target model says after node i (its argmax, or its sample: both
    are lossless).  From the root on, step to the first child, in ascending order, whose token is
    the target's.

    Returns (accepted nodes, bonus token): the nodes start with the root, so a step commits
    ``len(accepted)`` tokens, of which ``len(accepted) - 1`` are accepted drafts, the last being
    the bonus token.  Source: DDTree, arXiv 2604.12989, Algorithm 1.
    """
    for name, tokens in (("node_tokens", node_tokens), ("target_tokens", target_tokens)):
        if len(tokens) != len(tree):
            raise TreeError(f"{name} has {len(tokens)} entries; the tree has {len(tree)} nodes")
    accepted = [0]
    while True:
        wanted = target_tokens[accepted[-1]]
        step = _first(i for i in tree.children[accepted[-1]] if node_tokens[i] == wanted)
        if step is None:
            return tuple(accepted), int(wanted)
        accepted.append(step)


def _first(nodes: Iterable[int]) -> int | None:
    return next(iter(nodes), None)
