"""DDTree: the best draft tree under a node budget, from per-position distributions.

A block drafter gives one distribution for each of the next L positions, independent of the path.
The probability of a tree node is then the product along its path, and the tree with the highest
expected acceptance is the one of the ``budget`` most probable paths.  A heap finds it in
O(budget log budget).  Source: Ringel and Romano, arXiv 2604.12989, Algorithm 1.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verify_attn.tree import DraftTree, TreeError

MAX_BUDGET = 1024


@dataclass(frozen=True)
class DDTree:
    """A draft tree with what it was built from; the root's entries are those of no draft.

    ``tree``       the nodes, in the order of falling path probability
    ``tokens``     token id of each drafted node, ``len(tree) - 1`` of them; id 0 is ordinary
    ``ranks``      each drafted node's rank among its position's tokens, 0 the most probable
    ``log_probs``  log probability of each drafted node's path
    """

    tree: DraftTree
    tokens: tuple[int, ...]
    ranks: tuple[int, ...]
    log_probs: tuple[float, ...]

    @property
    def expected_accepted(self) -> float:
        """Expected accepted drafts a step, were the target to follow the distributions."""
        return float(np.exp(self.log_probs).sum())


def ddtree(logits: npt.ArrayLike, budget: int) -> DDTree:
    """Build the tree of the ``budget`` most probable paths (root not counted).

    ``logits`` is ``[L, V]``: a row of unnormalised log probabilities a position (log
    probabilities themselves will do).  Scores are float32, ``logit - logsumexp``.  Equal path
    scores are taken in the lexicographic order of the paths' ranks.  A budget of 0 or no rows
    give the root alone.
    """
    if not 0 <= budget <= MAX_BUDGET:
        raise TreeError(f"budget is {budget}; it must lie in 0..{MAX_BUDGET}")
    rows = np.asarray(logits, dtype=np.float32)
    if rows.ndim != 2:
        raise TreeError(f"logits has shape {rows.shape}; it must be [positions, vocabulary]")
    if np.isnan(rows).any() or np.isposinf(rows).any():
        raise TreeError("logits holds NaN or +inf; every entry must be finite or -inf")
    if budget == 0 or rows.size == 0:
        return DDTree(DraftTree((-1,)), (), (), ())

    width = min(budget, rows.shape[1])
    top = _top(rows, width)
    scores = np.take_along_axis(rows, top, axis=1) - _logsumexp(rows)

    parents = [-1]
    tokens: list[int] = []
    ranks: list[int] = []
    log_probs: list[float] = []
    # Entry: minus the path's score, its ranks (the tie-break), its parent.
    heap: list[tuple[float, tuple[int, ...], int]] = [(-float(scores[0, 0]), (0,), 0)]
    while heap and len(tokens) < budget:
        cost, path, parent = heapq.heappop(heap)
        position, rank = len(path) - 1, path[-1]
        parents.append(parent)
        tokens.append(int(top[position, rank]))
        ranks.append(rank)
        log_probs.append(-cost)
        if rank + 1 < width:  # the next sibling
            change = float(scores[position, rank + 1]) - float(scores[position, rank])
            _push(heap, cost - change, (*path[:-1], rank + 1), parent)
        if position + 1 < len(rows):  # the first child
            _push(heap, cost - float(scores[position + 1, 0]), (*path, 0), len(tokens))
    return DDTree(DraftTree(tuple(parents)), tuple(tokens), tuple(ranks), tuple(log_probs))


def _push(
    heap: list[tuple[float, tuple[int, ...], int]], cost: float, path: tuple[int, ...], parent: int
) -> None:
    if np.isfinite(cost):  # a token of probability zero is no draft
        heapq.heappush(heap, (cost, path, parent))


def _top(rows: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.int64]:
    """Indices of the ``width`` largest entries a row, falling; equal ones by rising index."""
    return np.argsort(-rows, axis=1, kind="stable")[:, :width].astype(np.int64)


def _logsumexp(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    highest = rows.max(axis=1, keepdims=True)
    if not np.isfinite(highest).all():
        position = int(np.flatnonzero(~np.isfinite(highest[:, 0]))[0])
        raise TreeError(f"logits[{position}] is -inf throughout; a position needs a likely token")
    sums: npt.NDArray[np.float32] = highest + np.log(
        np.exp(rows - highest).sum(axis=1, keepdims=True)
    )
    return sums
