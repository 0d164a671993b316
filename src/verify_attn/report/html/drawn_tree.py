"""A draft tree and its mask, drawn: the failing example's, or one that says it is an example."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from verify_attn.report.html.figure import Section, Table
from verify_attn.report.html.matrix import first_failure
from verify_attn.report.html.values import Record, listed, parameter, plain
from verify_attn.tree import DraftTree

EXAMPLE = (-1, 0, 0, 1, 1, 2, 3, 3, 6)
MOST = 96  # nodes drawn; a page has no room for more
STEP_X, STEP_Y, RADIUS, CELL = 34, 52, 13, 15
# How a failure names the row that it is about.
WHERE = re.compile(r"^first:\s+request (\d+), node (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """``node``: the failing row; ``padding``: rows behind the tree that see the prefix alone."""

    tree: DraftTree
    says: str
    prefix: int | None = None
    padding: int = 0
    node: int | None = None


def tree_section(record: Record | None) -> Section:
    """Always there: the mask is what all of this is about."""
    shown, notes = None, []
    found = first_failure(record)
    if found is not None:
        try:
            shown = _failing(*found)
        except ValueError as wrong:
            notes.append(f"The failing example's tree cannot be drawn: {plain(wrong, 300)}")
    if shown is None:
        shown = Example(
            DraftTree(EXAMPLE),
            "An example of nine nodes, since no check failed on a tree."
            if found is None
            else "An example of nine nodes.",
        )
    return Section("tree", "A draft tree and its mask", kind="tree", notes=notes,
                   more=_drawing(shown))  # fmt: skip


def _failing(case: Record, failure: Record) -> Example | None:
    """The request that the failure names, or its first that has a tree; None: all padding."""
    from verify_attn.generate import tree_rows  # brings torch

    requests = listed(failure["case"]["requests"])
    where = WHERE.search(str(failure.get("text")))
    named = int(where[1]) if where and int(where[1]) < len(requests) else None
    order = [*([] if named is None else [named]), *range(len(requests))]
    for i in order:
        pair = requests[i]
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"request {i} is {pair!r}; it must be [prefix_len, tree]")
        text = json.dumps(pair[1]) if isinstance(pair[1], list) else str(pair[1])
        text, _, padding = text.partition("+")
        _, tree = tree_rows(text)
        if tree is None:
            continue
        node = int(where[2]) if where and i == named and int(where[2]) < len(tree) else None
        extra = int(padding) if padding.isdecimal() else 0
        says = (
            f"Of the first failing example: {plain(parameter(case, 'kernel'), 80)}, check "
            f"{plain(parameter(case, 'check'), 60)}, request {i} of {len(requests)}."
        )
        prefix = pair[0] if isinstance(pair[0], int) else None
        return Example(tree, says, prefix, min(extra, 10**6), node)
    return None


def _drawing(shown: Example) -> dict[str, Any]:
    tree = shown.tree
    count = min(len(tree), MOST)
    places = _places(tree, count)
    path = set(tree.path(shown.node)) if shown.node is not None and shown.node < count else set()
    nodes = [
        {"i": i, "x": x, "y": y, "on": i in path, "first": i == shown.node}
        for i, (x, y) in enumerate(places)
    ]  # fmt: skip
    edges = [
        {"x1": places[p][0], "y1": places[p][1], "x2": places[i][0], "y2": places[i][1],
         "on": i in path}
        for i, p in enumerate(tree.parents[:count]) if p >= 0
    ]  # fmt: skip
    words = [shown.says]
    if shown.prefix is not None:
        words.append(f"Every node also sees the {shown.prefix:,} tokens of the prefix.")
    if shown.node is not None:
        seen = ", ".join(map(str, tree.path(shown.node)))
        words.append(f"The first wrong row is node {shown.node}: of the nodes it sees {seen}.")
    if shown.padding:
        words.append(f"{shown.padding:,} rows of padding behind the tree see the prefix alone.")
    if count < len(tree):
        words.append(f"{count} of {len(tree):,} nodes are drawn.")
    rows = [
        [str(i), str(tree.parents[i]) if i else "", str(tree.depths[i]),
         " ".join(map(str, tree.path(i)))]
        for i in range(len(tree))
    ]  # fmt: skip
    return {
        "says": " ".join(words), "nodes": nodes, "edges": edges, "radius": RADIUS,
        "width": max(x for x, _ in places) + STEP_X / 2 + 4,
        "height": max(y for _, y in places) + STEP_Y / 2, "cell": CELL, "count": count,
        "side": CELL * (count + 2), "mask": _mask(tree, count), "bad_row": shown.node,
        "labels": [i for i in range(count) if count <= 32 or i % 8 == 0],
        "table": Table.of(["node", "parent", "depth", "sees nodes"], rows),
        "alt": f"a tree of {len(tree)} nodes, {max(tree.depths) + 1} levels deep",
    }  # fmt: skip


def _places(tree: DraftTree, count: int) -> list[tuple[float, float]]:
    """Leaves side by side, a parent in the middle above its children; no recursion, a chain may
    have a thousand nodes."""
    column, x = 0, [0.0] * count
    stack = [(0, False)]
    while stack:
        node, done = stack.pop()
        kids = [k for k in tree.children[node] if k < count]
        if not kids:
            x[node], column = float(column), column + 1
        elif done:
            x[node] = (x[kids[0]] + x[kids[-1]]) / 2
        else:
            stack.append((node, True))
            stack += [(k, False) for k in reversed(kids)]
    return [(x[i] * STEP_X + STEP_X / 2 + 4, tree.depths[i] * STEP_Y + STEP_Y / 2)
            for i in range(count)]  # fmt: skip


def _mask(tree: DraftTree, count: int) -> str:
    """One SVG path of all cells that are seen."""
    cells = []
    for i in range(count):
        for j in tree.path(i):
            x, y = CELL * (j + 1.5) + 1, CELL * (i + 1.5) + 1
            cells.append(f"M{x:g} {y:g}h{CELL - 2}v{CELL - 2}h-{CELL - 2}z")
    return "".join(cells)
