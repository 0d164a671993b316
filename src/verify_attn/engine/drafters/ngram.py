"""``ngram``: what followed the last few tokens earlier in the text, as a tree.

Prompt lookup with branches: the earlier places that agree longest with the text's end come first,
and what followed each is added to the tree until the budget is used up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from verify_attn.engine.drafters.base import NOTHING, Drafted, Proposal
from verify_attn.tree import DraftTree

KEY_TOKENS = 4  # the least that must agree
LONGEST_MATCH = 32  # agreeing further back makes a place no better
PLACES = 8  # the latest so many are looked at
DEPTH = 16  # drafted tokens on one path


class _Index:
    """Where each run of KEY_TOKENS tokens of one request ends."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.upto = KEY_TOKENS

    def extend(self, tokens: Sequence[int]) -> None:
        for end in range(self.upto, len(tokens)):  # not the text's own end
            self.ends[tuple(tokens[end - KEY_TOKENS : end])].append(end)
        self.upto = max(self.upto, len(tokens))


class NgramDrafter:
    """See the module's first lines."""

    name = "ngram"
    taps: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}

    def propose(self, requests: Sequence[Drafted], budget: int) -> list[Proposal]:
        return [self._one(request, budget) for request in requests]

    def observe(self, request: Drafted, start: int, features: torch.Tensor) -> None:
        """Nothing to learn from features."""

    def forget(self, request: Drafted) -> None:
        self._indices.pop(request.key, None)

    def _one(self, request: Drafted, budget: int) -> Proposal:
        tokens = request.tokens
        if len(tokens) < KEY_TOKENS:
            return NOTHING
        index = self._indices.setdefault(request.key, _Index())
        index.extend(tokens)
        places = index.ends.get(tuple(tokens[-KEY_TOKENS:]), [])[-PLACES:]
        best_first = sorted(places, key=lambda end: (_agreeing(tokens, end), end), reverse=True)
        return tree_of([tokens[end : end + DEPTH] for end in best_first], budget)


def tree_of(paths: Sequence[Sequence[int]], budget: int) -> Proposal:
    """The paths' common tree, the first whole, then what of the others the budget leaves."""
    parents, drafted = [-1], list[int]()
    child: dict[tuple[int, int], int] = {}
    for path in paths:
        node = 0
        for token in path:
            step = child.get((node, token))
            if step is None:
                if len(drafted) == budget:
                    break
                step = len(parents)
                parents.append(node)
                drafted.append(token)
                child[node, token] = step
            node = step
    return Proposal(DraftTree(tuple(parents)), tuple(drafted))


def _agreeing(tokens: Sequence[int], end: int) -> int:
    """How many tokens before ``end`` are those before the text's end."""
    most = min(LONGEST_MATCH, end)
    for back in range(1, most + 1):
        if tokens[end - back] != tokens[-back]:
            return back - 1
    return most
