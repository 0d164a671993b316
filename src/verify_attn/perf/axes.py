"""What `bench` measures: cells, one axis at a time around a centre, or all combinations.

The centre is one rank of Kimi K2.6 at 32k: 1 request, 31,952 tokens, 32 nodes, 8 heads, page 1.
The contexts are those of the deployment that collapsed.  A node budget of 32 is 33 nodes, and 17,
33 and 65 are where a tile of 16, 32 or 64 rows overflows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from verify_attn.generate import Case
from verify_attn.tree import MAX_NODES

MOST_CELLS = 150  # without --grid
SHORTEST_SHARE = 1 / 16  # of several requests the shortest, by the longest
TREE_SEED = 1
TREES = ("tree", "chain")
# Cells of one request's KV may not be asked for beyond this: 2^24 tokens are 18 GiB.
MOST_TOKENS, MOST_REQUESTS, MOST_NODES = 1 << 24, 1024, MAX_NODES


class AxisError(ValueError):
    """A value that an axis cannot have; the message says which, and the rule."""


@dataclass(frozen=True)
class Cell:
    """One shape to measure.

    ``context``    prefix tokens of the longest request; several are in equal ratios down to a
                   sixteenth of it
    ``nodes``      of every request
    ``tree``       ``tree`` (random, seeded) or ``chain``
    """

    context: int = 31_952
    nodes: int = 32
    requests: int = 1
    heads: int = 8
    page_size: int = 1
    layout: str = "shuffled"
    tree: str = "tree"
    dtype: str = "bfloat16"
    geometry: str = "kimi-k2.6-tp8"
    kv_dtype: str = ""

    def __post_init__(self) -> None:
        for name, most in (
            ("context", MOST_TOKENS), ("nodes", MOST_NODES), ("requests", MOST_REQUESTS)
        ):  # fmt: skip
            value = getattr(self, name)
            least = 0 if name == "context" else 1
            if not least <= value <= most:
                raise AxisError(f"{name} is {value}; it must lie in {least}..{most}")
        if self.tree not in TREES:
            raise AxisError(f"tree is {self.tree!r}; it must be one of {', '.join(TREES)}")

    @property
    def id(self) -> str:
        """The same words for the same cell in every record."""
        kv = f" kv={self.kv_dtype}" if self.kv_dtype else ""
        return (
            f"{self.geometry} r{self.requests} c{self.context} n{self.nodes} h{self.heads} "
            f"p{self.page_size} {self.layout} {self.tree} {self.dtype}{kv}"
        )

    @property
    def prefix_lens(self) -> list[int]:
        """Of each request, the longest first."""
        steps = max(1, self.requests - 1)
        return [round(self.context * SHORTEST_SHARE ** (i / steps)) for i in range(self.requests)]

    def case(self) -> Case:
        """The cell as a case; raises ``CaseError`` or `AxisError` for what cannot be."""
        kind = f"chain:{self.nodes}" if self.tree == "chain" else f"random:{self.nodes}:{TREE_SEED}"
        extra: dict[str, Any] = {"kv_dtype": self.kv_dtype} if self.kv_dtype else {}
        return Case(
            tuple((length, kind) for length in self.prefix_lens),
            geometry=f"{self.geometry}/{self.heads}", dtype=self.dtype, layout=self.layout,
            page_size=self.page_size, **extra,
        )  # fmt: skip

    def changed(self, **values: Any) -> Cell:
        """A copy with other values."""
        return replace(self, **values)


CENTRE = Cell()
AXES: dict[str, tuple[Any, ...]] = {
    "context": (1_427, 11_402, 31_952, 63_903, 127_802, 184_728),
    "nodes": (8, 16, 17, 32, 33, 64, 65, 128, 256),
    "requests": (1, 4, 16, 64),
    "heads": (8, 16, 64, 128),
    "page_size": (1, 16, 64),
    "layout": ("contiguous", "shuffled"),
    "tree": TREES,
}
QUICK: dict[str, tuple[Any, ...]] = {"context": (1_427, 31_952, 184_728)}


def cells(
    axes: Mapping[str, Sequence[Any]] = AXES, grid: bool = False, centre: Cell = CENTRE
) -> list[Cell]:
    """The cells, each once, in the order of the axes.

    ``axes``  values of each axis; one that is not named stays at the centre's
    ``grid``  all combinations; else one axis at a time, the others at the centre's value (or,
              where it is not among theirs, at their first)
    """
    unknown = sorted(set(axes) - {f.name for f in fields(Cell)})
    if unknown:
        raise AxisError(f"no axis {unknown[0]!r}; there are: {', '.join(AXES)}")
    for name, values in axes.items():
        if not values:
            raise AxisError(f"axis {name} has no values; give at least one")
    own = {n: getattr(centre, n) for n in axes}
    centre = centre.changed(**{n: own[n] if own[n] in v else v[0] for n, v in axes.items()})
    if grid:
        found = [centre.changed(**dict(zip(axes, values, strict=True)))
                 for values in itertools.product(*axes.values())]  # fmt: skip
    else:
        found = [
            centre.changed(**{name: value}) for name, values in axes.items() for value in values
        ]
    unique = list(dict.fromkeys(found))
    if len(unique) > MOST_CELLS and not grid:
        raise AxisError(f"{len(unique)} cells; at most {MOST_CELLS} are measured without --grid")
    for cell in unique:
        cell.case()
    return unique
