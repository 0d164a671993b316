"""SGLang's cumulative acceptance, read without /metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.model import Acceptance
from verify_attn.live.acceptance.sglang_routes import from_loads, from_sglang_routes
from verify_attn.live.reply import Reply, Unreachable


def load(mean: float, rank: int = 0) -> dict[str, Any]:
    return {"dp_rank": rank, "speculative": {"accept_length": mean, "accept_rate": 0.5}}


def test_one_rank_and_equal_ranks() -> None:
    for loads in ([load(2.9)], {"loads": [load(2.9), load(2.9, 1)]}, load(2.9)):
        found = from_loads(loads)
        assert isinstance(found, Acceptance)
        assert found.committed_per_step == 2.9
        assert found.scope == "since start"


@pytest.mark.parametrize(
    "loads",
    [
        None,
        [],
        {},
        [{"speculative": None}],
        [load(0.0)],
        [load(float("nan"))],
        [load(2.9), load(4)],
    ],
)
def test_no_mean_is_made_up(loads: Any) -> None:
    assert isinstance(from_loads(loads), Absent)


def test_the_second_route_where_the_first_is_missing() -> None:
    asked: list[str] = []

    async def fetch(method: str, path: str, *, body: Any = None, timeout_s: float = 30.0) -> Reply:
        asked.append(path)
        if path.startswith("/v1/loads"):
            return Reply(404, "application/json", b"{}")
        states = {"internal_states": [{"avg_spec_accept_length": 3.5}]}
        return Reply(200, "application/json", json.dumps(states).encode())

    found = asyncio.run(from_sglang_routes(fetch))
    assert isinstance(found, Acceptance)
    assert found.source == "SGLang /server_info"
    assert len(asked) == 2


def test_unreachable_is_absent() -> None:
    async def fetch(method: str, path: str, *, body: Any = None, timeout_s: float = 30.0) -> Reply:
        raise Unreachable("refused")

    found = asyncio.run(from_sglang_routes(fetch))
    assert isinstance(found, Absent)
    assert found.reason.count("refused") == 2
