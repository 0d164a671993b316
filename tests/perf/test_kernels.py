"""Times of the built-in kernels on a GPU, under pytest-benchmark; see docs/perf-tests.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verify_attn.perf.axes import Cell

CELLS = (
    Cell(context=1_427),  # short: launches and the merge of splits show
    Cell(),  # one rank of Kimi K2.6 at 32k
    Cell(nodes=33),  # a node budget of 32: a tile of 32 rows overflows
    Cell(context=184_728),  # where the deployment collapsed
    Cell(requests=16),
)


def _id(cell: Cell) -> str:
    return f"r{cell.requests}-c{cell.context}-n{cell.nodes}"


@pytest.mark.gpu
@pytest.mark.perf
@pytest.mark.parametrize("part", ["run", "prepare_run"])
@pytest.mark.parametrize("kernel", ["triton-unsplit", "triton-split", "sm120"])
@pytest.mark.parametrize("cell", CELLS, ids=_id)
def test_kernel(
    verify_benchmark: Callable[..., dict[str, Any]], cell: Cell, kernel: str, part: str
) -> None:
    verify_benchmark(kernel, cell, part)
