"""The sweep against `verify-attn serve`'s own routes: what it is, what it counts, its cache.

The engine behind them is scripted, so that every count is known; see tests/engine/http.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.http.serving import Engine, answers, serving, silent, spent
from tests.engine.http.test_metrics import Pool
from tests.live.test_sweep_cli import record, sweep
from verify_attn.engine.job import Delta, Job, Speculation
from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import (
    Acceptance,
    ForeignTraffic,
    NothingDrafted,
    cached_between,
    foreign_running,
    from_counters,
    from_events,
    read_metrics,
)
from verify_attn.live.client import Client
from verify_attn.live.server import Fact, flush_cache, read_server
from verify_attn.live.target import Target

STEP_S = 0.003
ACCEPTED = (3, 0, 2)  # drafts, step by step and over again
BUDGET = 7


def decodes(engine: Engine, job: Job) -> None:
    """Prefill, then steps as `ACCEPTED` says; counted as the scheduler counts them."""
    metrics = engine.metrics
    metrics.state(1, 0, Pool())
    metrics.prefill(len(job.tokens), 0.001, 0)
    steps = engine_steps(job.most_tokens)
    job.emit(Delta((120,), "x", None if steps else "length"))
    for i, accepted in enumerate(steps):
        time.sleep(STEP_S)
        metrics.step(1, BUDGET, [accepted], STEP_S)
        delta = Delta((120,) * (accepted + 1), "x" * (accepted + 1))
        if i == len(steps) - 1:
            committed = [count + 1 for count in steps]
            delta = replace(delta, finish="length", speculation=spent(committed))
        job.emit(delta)
    metrics.finished("length", len(job.tokens), job.most_tokens)
    metrics.state(0, 0, Pool())


def engine_steps(tokens: int) -> list[int]:
    """Accepted drafts of each step of an answer of so many tokens."""
    steps: list[int] = []
    left = tokens - 1
    while left:
        steps.append(min(ACCEPTED[len(steps) % len(ACCEPTED)], left - 1))
        left -= steps[-1] + 1
    return steps


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, str]]:
    engine = Engine()
    with serving(engine) as url:
        yield engine, url


@pytest.fixture
def engine(served: tuple[Engine, str]) -> Engine:
    served[0].reset()
    return served[0]


@pytest.fixture
def client(served: tuple[Engine, str]) -> Client:
    return Client(Target.parse(served[1]))


def events(url: str, **body: Any) -> list[Any]:
    """The events of one streamed answer, as the sweep decodes them."""
    lines = httpx.post(f"{url}/v1/completions", json={"prompt": "x", "stream": True, **body}).text
    data = [line.removeprefix("data: ") for line in lines.split("\n\n")]
    return [httpx.Response(200, text=text).json() for text in data if text.startswith("{")]


def test_it_is_known(client: Client, engine: Engine) -> None:
    engine.lossless = False
    facts = asyncio.run(read_server(client.fetch))
    engine.lossless = True
    assert facts.engine == "verify-attn"
    assert facts.context_limit == Fact(4096, "/v1/models data[].max_model_len")
    assert facts.kv_capacity_tokens == Fact(8192, "/server_info kv_tokens")
    assert facts.page_size == Fact(16, "/server_info page_size")
    assert facts.attention_backend == Fact("torch", "/server_info kernel")
    assert isinstance(facts.speculative, Fact)
    assert facts.speculative.value == {"drafter": "block", "budget": 7, "lossless": False}
    assert isinstance(facts.memory, Fact)
    assert facts.memory.value["allocator"] == "fifo"
    assert isinstance(facts.version, Fact)
    assert facts.notes == ("prompts are not computed",)


def test_it_is_known_without_metrics() -> None:
    from tests.live.test_server_facts import models, read

    facts = read({"GET /v1/models": models("verify-attn", max_model_len=99)})
    assert facts.engine == "verify-attn"
    assert facts.context_limit == Fact(99, "/v1/models data[].max_model_len")
    assert isinstance(facts.page_size, Absent)


def test_its_cache_is_flushed(client: Client, engine: Engine) -> None:
    done = asyncio.run(flush_cache(client.fetch, "verify-attn"))
    assert (done.outcome, done.attempts) == ("done", 1)
    assert "3 pages freed" in done.why
    assert engine.flushed == 1
    engine.dead = "of a fault"
    failed = asyncio.run(flush_cache(client.fetch, "verify-attn"))
    assert failed.outcome == "failed"
    assert "of a fault" in failed.why


def test_an_answers_own_steps(served: tuple[Engine, str], engine: Engine) -> None:
    engine.script = decodes
    found = from_events(events(served[1], max_tokens=10))
    assert isinstance(found, Acceptance), found
    assert found.scope == "request"
    assert found.per_step == (3, 0, 2, 0)
    assert found.histogram == (2, 0, 1, 1)
    assert (found.steps, found.accepted_drafts, found.proposed_drafts) == (4, 5, 28)
    assert found.problems == []
    engine.script = answers("Hello")
    drafted = Speculation("none", 0, 4, 0, 0, (1, 1, 1, 1))

    def none(engine: Engine, job: Job) -> None:
        job.emit(Delta((1,), "x", "stop", speculation=drafted))

    engine.script = none
    assert isinstance(from_events(events(served[1])), NothingDrafted)


def test_lying_steps_are_noticed() -> None:
    stats = {"steps": 3, "proposed_drafts": 9, "accepted_drafts": 2, "committed": [2, 2]}
    found = from_events([{"speculation": stats}])
    assert isinstance(found, Acceptance)
    assert any("the per-step list holds 2 steps" in problem for problem in found.problems)
    junk = [{"speculation": {"steps": "x", "committed": [0, None]}}, {"speculation": 5}]
    assert isinstance(from_events(junk), Absent)


def test_its_counters(client: Client, engine: Engine) -> None:
    before = asyncio.run(read_metrics(client.fetch))
    engine.metrics.step(1, BUDGET, [2], STEP_S)
    engine.metrics.prefill(10, 0.1, 48)
    engine.metrics.state(2, 1, Pool())
    after = asyncio.run(read_metrics(client.fetch))
    found = from_counters(before, after)
    assert isinstance(found, Acceptance)
    assert (found.source, found.steps, found.accepted_drafts) == ("verify-attn /metrics", 1, 2)
    assert cached_between(before, after) == 48
    assert isinstance(foreign_running(after, 2), ForeignTraffic)
    assert foreign_running(after, 3) is None


@pytest.mark.timing
def test_a_sweep(served: tuple[Engine, str], engine: Engine, tmp_path: Path) -> None:
    engine.script = decodes
    args = ("--contexts", "500,1k", "--max-tokens", "150", "--json", "r.json")
    done = sweep(served[1], *args, cwd=tmp_path)
    assert done.exit_code == 0, done.stdout + done.stderr
    found = record(tmp_path / "r.json")
    assert found["server"]["facts"]["engine"] == "verify-attn"
    assert found["server"]["granted"] == {
        "usage": True, "per_chunk_usage": True, "token_ids": True,
    }  # fmt: skip
    assert engine.flushed >= 2
    for case in found["cases"]:
        (answer,) = case["answers"]
        metrics = answer["metrics"]
        assert metrics["prompt_tokens"] == pytest.approx(case["parameters"]["context"], rel=0.02)
        assert metrics["committed_per_step"] == pytest.approx(8 / 3, rel=0.05)
        assert metrics["server"]["acceptance_source"] == "verify-attn speculation"
        assert metrics["server"]["verify_steps"] == len(engine_steps(150))
        assert metrics["cached_tokens"] == 0
        assert answer["steps_from"] == "events"
        assert answer["arrival"]["events"] == len(engine_steps(150)) + 1


@pytest.mark.timing
def test_a_dead_engine_ends_a_sweep(
    served: tuple[Engine, str], engine: Engine, tmp_path: Path
) -> None:
    engine.script = silent
    engine.dead = "out of memory"
    done = sweep(served[1], "--contexts", "500", cwd=tmp_path)
    assert done.exit_code == 4
    assert "out of memory" in done.stderr
