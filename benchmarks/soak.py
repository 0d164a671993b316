"""Random requests against `verify-attn serve`, and proof of every token that it sent.

    python benchmarks/soak.py --requests 1000 --json results/cpu/soak.json
    python benchmarks/soak.py --minutes 30 --json results/cpu/soak_30min.json

Sixteen clients at once: streams and whole answers, greedy and sampled, prompts of any length with
shared beginnings, stop strings, disconnects at any moment, bodies that are no request, overflows.
Each answer is held against one pass of the model over prompt and answer, on plain float32: every
token must be what the target says after the tokens before it (its argmax, or its sample under the
request's seed).  Where it is not, a float64 pass must put the two within 1e-4, and that is counted.
At the end no page may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import torch
from rich.console import Console
from rich.progress import Progress

from verify_attn.embedded import serving
from verify_attn.engine import tiny
from verify_attn.engine.model import Model
from verify_attn.engine.sampling import Sampling, probabilities, sample
from verify_attn.live.prompts import _text
from verify_attn.record import new_record, write_record

CLIENTS = 16
LONGEST_PROMPT, LONGEST_ANSWER = 600, 120
NEAR = 1e-4  # logits of float64 that may be taken for equal
ALLOWED = 1e-3  # of the requests, at most, may differ so
BAD_BODIES = (
    b"", b"{", b"[]", b'{"prompt": 5}', b'{"prompt": "a", "max_tokens": -1}', b"\xff\xfe",
    b'{"prompt": "a", "max_tokens": 1e99}', b'{"prompt": "a", "n": 3}', b'{"prompt": [1, 99999]}',
    b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": "a", "stop": 7}', b'{"prompt": []}',
    b'{"prompt": "a", "model": "gpt-9"}', b'{"messages": "hi"}', b"x" * 100_000,
)  # fmt: skip


@dataclass
class Tally:
    """What happened; ``wrong`` has what may not be."""

    kinds: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    checked: int = 0
    near: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@click.command(help=__doc__.splitlines()[0])
@click.option("--requests", type=click.IntRange(1), help="[1000]")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Instead of a number.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--drafter", default="block", show_default=True)
@click.option("--page-size", type=int, default=4, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(
    requests: int | None, minutes: float | None, seed: int, drafter: str, page_size: int, path: Path
) -> None:
    """Exit 1 where anything was wrong."""
    wanted = requests or (None if minutes else 1000)
    torch.set_num_threads(1)  # the server has the other core
    # A pool that 16 requests fill: admission waits, cached prefixes are evicted.
    arguments = ["tiny", "--drafter", drafter, "--page-size", str(page_size), "--kv-tokens", "6000",
                 "--context", "2k", "--compact", "64"]  # fmt: skip
    start = time.monotonic()
    with serving(arguments) as url:
        tally, resident = asyncio.run(soak(url, wanted, minutes, seed))
    record = new_record(["python", *sys.argv])
    near_share = len(tally.near) / max(tally.checked, 1)
    bad = tally.wrong or near_share > ALLOWED
    record["cases"] = [{
        "id": "soak",
        "parameters": {"seed": seed, "clients": CLIENTS, "serve": arguments},
        "status": "fail" if bad else "pass",
        "reason": f"{len(tally.wrong)} wrong, {len(tally.near)} near ties: "
                  f"{(tally.wrong + tally.near)[:5]}" if bad else "every token is the target's",
        "metrics": {
            "requests": sum(tally.kinds.values()), "by_kind": dict(sorted(tally.kinds.items())),
            "tokens": tally.tokens, "answers_checked": tally.checked,
            "near_ties": tally.near, "wrong": tally.wrong[:100],
            "seconds": time.monotonic() - start, "resident_mb": resident,
        },
    }]  # fmt: skip
    write_record(path, record)
    Console().print(record["cases"][0]["status"], record["cases"][0]["metrics"])
    sys.exit(1 if bad else 0)


async def soak(
    url: str, requests: int | None, minutes: float | None, seed: int
) -> tuple[Tally, list[float]]:
    """All clients until enough was asked; then the pages are counted."""
    tally, judge = Tally(), Judge()
    end = time.monotonic() + 60 * (minutes or 1e9)
    numbers = iter(range(requests or sys.maxsize))
    resident: list[float] = []
    bars = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
    bar = bars.add_task("soak", total=requests)

    async def client(http: httpx.AsyncClient) -> None:
        for number in numbers:
            if time.monotonic() > end:
                break
            await one(http, random.Random(f"{seed} {number}"), tally, judge, number)
            bars.advance(bar)
            if number % 100 == 0:
                resident.append((await metrics(http))["process_resident_memory_bytes"] / 1e6)

    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        with bars:
            await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
        await pages(http, tally)
    return tally, resident


async def pages(http: httpx.AsyncClient, tally: Tally) -> None:
    """With nothing running and the prefix cache flushed, every page is free."""
    for _ in range(100):
        await http.post("/flush_cache")
        gauges = await metrics(http)
        if gauges["num_requests_running"] == gauges["num_requests_waiting"] == 0:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)
    gauges = await metrics(http)
    if gauges["kv_pages_free"] != gauges["kv_pages"]:
        tally.wrong.append(f"{gauges['kv_pages'] - gauges['kv_pages_free']:.0f} pages leaked")
    health = await http.get("/health_generate")
    if health.status_code != 200:
        tally.wrong.append(f"/health_generate says {health.status_code}: {health.text}")


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """The engine's gauges and counters, without labels."""
    text = (await http.get("/metrics")).text
    lines = (line.split(" ") for line in text.splitlines() if "{" not in line and line[0] != "#")
    return {name.removeprefix("verify_attn:"): float(value) for name, value in lines}


async def one(
    http: httpx.AsyncClient, draw: random.Random, tally: Tally, judge: Judge, number: int
) -> None:
    """One request of a random kind."""
    kind = draw.choices(
        ["stream", "whole", "disconnect", "bad body", "overflow"], [45, 20, 20, 10, 5]
    )[0]
    tally.kinds[kind] += 1
    if kind == "bad body":
        answer = await http.post("/v1/completions", content=draw.choice(BAD_BODIES),
                                 headers={"content-type": "application/json"})  # fmt: skip
        if not 400 <= answer.status_code < 500 or "error" not in answer.json():
            tally.wrong.append(f"request {number}: bad body gave {answer.status_code}")
        return
    body = request(draw)
    if kind == "overflow":
        body["max_tokens"] = draw.choice([3000, 10**9])
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code != 400 or "context" not in answer.text:
            tally.wrong.append(f"request {number}: overflow gave {answer.status_code}")
        return
    if kind == "whole":
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code != 200:
            tally.wrong.append(f"request {number}: {answer.status_code} {answer.text[:200]}")
            return
        found = answer.json()
        prompt = found["choices"][0]["prompt_token_ids"]
        tokens = found["choices"][0]["token_ids"]
    else:
        leave_after = draw.randrange(12) if kind == "disconnect" else None
        prompt, tokens = await stream(http, body, leave_after, tally, number)
    tally.tokens += len(tokens)
    if tokens:
        verdict = await asyncio.to_thread(judge.verdict, prompt, tokens, body)
        tally.checked += 1
        if verdict.startswith("near"):
            tally.near.append(f"request {number}: {verdict}")
        elif verdict:
            tally.wrong.append(f"request {number}: {verdict}")


def request(draw: random.Random) -> dict[str, Any]:
    """Prompts share beginnings, so that the prefix cache has work."""
    stem = _text("mixed", LONGEST_PROMPT, draw.randrange(4))
    prompt = stem[: draw.randrange(1, LONGEST_PROMPT)] + draw.choice(["", "é\u20ac", "x" * 9])
    body: dict[str, Any] = {
        "prompt": prompt, "max_tokens": draw.randrange(1, LONGEST_ANSWER), "return_token_ids": True,
        "ignore_eos": draw.random() < 0.5,
    }  # fmt: skip
    if draw.random() < 0.3:
        body |= {"temperature": draw.choice([0.5, 1.0, 1.5]), "seed": draw.randrange(1000),
                 "top_p": draw.choice([1.0, 0.9])}  # fmt: skip
    else:
        body["temperature"] = 0
    if draw.random() < 0.3:
        body["stop"] = draw.choice([["\n\n"], ["zzzz", " the "], "e"])
    return body


async def stream(
    http: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None, tally: Tally,
    number: int,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """(prompt's ids, answer's ids), of as many events as were waited for."""
    prompt: list[int] = []
    tokens: list[int] = []
    finish = None
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            tally.wrong.append(f"request {number}: {answer.status_code}")
            return prompt, tokens
        events = 0
        async with contextlib.aclosing(answer.aiter_lines()) as lines:
            async for line in lines:
                if leave_after is not None and events >= leave_after:
                    return prompt, tokens
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                events += 1
                event = json.loads(line[6:])
                if "error" in event:
                    tally.wrong.append(f"request {number}: {event['error']}")
                    return prompt, tokens
                for choice in event["choices"]:
                    prompt = choice.get("prompt_token_ids") or prompt
                    tokens += choice.get("token_ids") or []
                    finish = choice["finish_reason"] or finish
    if leave_after is None and finish not in ("stop", "length"):
        tally.wrong.append(f"request {number}: the stream ended with {finish}")
    return prompt, tokens


class Judge:
    """The target itself, over a whole text at once: no pages, no trees, no batches."""

    def __init__(self) -> None:
        weights = tiny.weights()
        self._model = Model(tiny.CONFIG, weights)
        self._wide = Model(tiny.CONFIG, {name: w.double() for name, w in weights.items()})

    def verdict(self, prompt: list[int], tokens: list[int], body: dict[str, Any]) -> str:
        """Empty: every token is the target's; ``near ...`` a tie; anything else is wrong."""
        first = len(prompt)
        rows = logits(self._model, [*prompt, *tokens])[first - 1 : first - 1 + len(tokens)].float()
        temperature = body["temperature"]
        if temperature:
            sampling = Sampling(temperature, body["top_p"], body["seed"])
            expected = sample(rows, range(first, first + len(tokens)), sampling)
        else:
            expected = rows.argmax(-1).tolist()
        for i, (token, right) in enumerate(zip(tokens, expected, strict=True)):
            if token == right:
                continue
            wide = logits(self._wide, [*prompt, *tokens[:i]])[-1]
            gap = abs(float(wide[token] - wide[right]))
            if temperature:  # noise decides: both must have been possible and nearly tied
                shares = probabilities(wide.numpy(), sampling)
                return (
                    f"near: sampled {token} for {right}, gap {gap:.2e}"
                    if (shares[token] > 0 and self._tied(wide, token, right, first + i, sampling))
                    else f"token {i} is {token}, the target's sample is {right}"
                )
            if gap > NEAR:
                return f"token {i} is {token}, the target says {right}; {gap:.2e} apart"
            return f"near: token {i} is {token} for {right}, {gap:.2e} apart"
        return ""

    def _tied(
        self, wide: torch.Tensor, token: int, right: int, position: int, sampling: Sampling
    ) -> bool:
        """Would ``token`` be the sample if its logit were 1e-4 higher and the other's lower?"""
        nudged = wide.clone()
        nudged[token] += NEAR
        nudged[right] -= NEAR
        return sample(nudged[None], [position], sampling) == [token]


@torch.no_grad()
def logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """[T, vocabulary] of a causal pass in the model's own precision."""
    scale, latent = model.config.geometry.softmax_scale, model.config.latent_dim
    future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)

    def attend(layer: int, q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("thd,sd->hts", q, rows) * scale
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hts,sc->thc", weights, rows[:, :latent])

    hidden, _ = model.forward(torch.tensor(tokens), torch.arange(len(tokens)), attend)
    return torch.nn.functional.linear(hidden, model.head)


if __name__ == "__main__":
    main()
