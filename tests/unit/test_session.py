"""What a check keeps of its workers' failures, in whatever order they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from verify_attn.conformance.pool import Pool, Task
from verify_attn.conformance.session import Session


class Scripted:
    """A pool whose workers are done with the chunks in this order, each with a failure."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def run(
        self, tasks: list[Task], enabled: Callable[[Task], list[str]]
    ) -> Iterator[tuple[Task, dict[str, Any]]]:
        by_chunk = {task.chunk: task for task in tasks}
        for chunk in self.order:
            case = json.dumps({"requests": [[1, "chain:" + "1" * (9 - chunk)]]})
            yield by_chunk[chunk], {
                "event": "failure", "check": "oracle", "text": f"found in chunk {chunk}",
                "case": case, "final": True,
            }  # fmt: skip
            yield by_chunk[chunk], {"event": "done"}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_failure_that_is_shown_is_the_first_chunks_whoever_was_quickest(
    order: list[int],
) -> None:
    session = Session(["torch"], ["oracle"], examples=30)
    for _ in session.run(cast(Pool, Scripted(order))):
        pass
    case = session.cases[0]
    assert case["reason"] == "found in chunk 0"
    assert [failure["chunk"] for failure in case["failures"]] == [0, 1, 2]
