"""A case of one's own, where a bench takes cells."""

from __future__ import annotations

from dataclasses import dataclass

from verify_attn.generate import Case, visible_rows
from verify_attn.perf.axes import Cell


@dataclass(frozen=True)
class CaseCell(Cell):
    """What no cell says: shared pages, nodes outside the pool, trees of several kinds.

    ``text``  the case as JSON; the other fields describe it, ``nodes`` and ``context`` those of
              the longest request
    """

    text: str = ""

    def __post_init__(self) -> None:
        """The case is sound already, and the bounds of the axes are not its own."""

    @property
    def id(self) -> str:
        """The case itself."""
        return self.text

    def case(self) -> Case:
        """The very case."""
        return Case.from_json(self.text)


def cell_of(problem: Cell | Case) -> Cell:
    """The cell, or a case as one."""
    if isinstance(problem, Cell):
        return problem
    return CaseCell(
        context=problem.tokens,
        nodes=max(len(visible_rows(tree)) for _, tree in problem.requests),
        requests=len(problem.requests),
        heads=problem.attention_geometry.heads,
        page_size=problem.page_size,
        layout=problem.layout,
        tree=", ".join(dict.fromkeys(tree for _, tree in problem.requests)),
        dtype=problem.dtype,
        geometry=problem.geometry.partition("/")[0],
        kv_dtype=problem.kv_dtype,
        text=problem.to_json(),
    )
