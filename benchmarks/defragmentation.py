"""What scattered KV costs a whole decode step, and what it costs to put it together.

    python benchmarks/defragmentation.py --json results/h200/defragmentation.json

`verify-attn serve`'s own engine without HTTP: the pool is aged by requests that come, decode side
by side and go under the FIFO allocator, then one request decodes from the pages they left (four
tokens a step by decree, 32 nodes), the pool is compacted, and it decodes on.  Both halves are one
process, one request.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verify_attn.engine.build import open_engine
from verify_attn.engine.decode import Decoder, Running
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.memory import row_bytes
from verify_attn.engine.options import Options
from verify_attn.engine.sampling import Sampling
from verify_attn.engine.step import Moves
from verify_attn.environment import gpus
from verify_attn.paging import runs
from verify_attn.record import new_record, write_record

PIN, BUDGET = 4, 31
STEPS, WARM_UP = 30, 3
LEAST_STEPS, ENOUGH_S = 8, 8.0  # a kernel with slow steps takes fewer
SHORTEST, LONGEST = 200, 12_000  # tokens of the requests that age the pool
LIVE = 12  # of them at a time
AGE = 200
DECODED = 50  # steps of each from one arrival to the next


def main() -> int:
    """Each cell: before, the compaction, after."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="k2.6-rank")
    parser.add_argument("--kernels", default="triton-split,triton-unsplit")
    parser.add_argument("--page-sizes", default="1,64")
    parser.add_argument("--tokens", type=int, default=63_903)
    asked = parser.parse_args()
    record = new_record(["python", *sys.argv])
    for kernel in asked.kernels.split(","):
        for page_size in map(int, asked.page_sizes.split(",")):
            record["cases"].append(cell(asked.model, kernel, page_size, asked.tokens))
            write_record(asked.json, record)
            print(record["cases"][-1]["id"], record["cases"][-1]["metrics"], flush=True)
    return 0


def cell(model: str, kernel: str, page_size: int, tokens: int) -> dict[str, Any]:
    """One engine, one request of ``tokens``."""
    options = Options(
        model, kernel=kernel, page_size=page_size, drafter="replay", pin=PIN, budget=BUDGET,
        fill_seed=7, prefix_cache=False, kv_tokens=2 * tokens + LIVE * LONGEST,
        context=tokens + 1000,
    )  # fmt: skip
    engine = open_engine(options, Metrics())
    decoder = engine.decoder
    age(decoder, random.Random(3))
    request = admit(decoder, tokens, -1)
    decoder.fill(request, 7)
    request.tokens.append(0)
    metrics: dict[str, Any] = {"runs_before": runs(request.held.table)}
    metrics["step_ms_before"] = steps_ms(decoder, request)
    metrics |= compact(decoder)
    metrics["runs_after"] = runs(request.held.table)
    metrics["step_ms_after"] = steps_ms(decoder, request)
    median = {when: statistics.median(metrics[f"step_ms_{when}"]) for when in ("before", "after")}
    metrics["median_ms_before"], metrics["median_ms_after"] = median["before"], median["after"]
    metrics["before_to_after"] = median["before"] / median["after"]
    metrics["clocks_mhz"] = [[gpu.sm_clock_mhz, gpu.memory_clock_mhz] for gpu in gpus()]
    engine.close()
    return {
        "id": f"{kernel},page={page_size},ctx={tokens}",
        "parameters": {"model": model, "kernel": kernel, "page_size": page_size, "tokens": tokens,
                       "nodes": BUDGET + 1, "pin": PIN},
        "status": "pass", "reason": "measured; held to no limit", "metrics": metrics,
    }  # fmt: skip


def age(decoder: Decoder, draw: random.Random) -> None:
    """Requests of random length: half of each is its prompt, the rest it decodes beside others."""
    live: list[Running] = []
    for number in range(AGE):
        while len(live) >= LIVE:
            decoder.release(live.pop(draw.randrange(len(live))))
        one = admit(decoder, draw.randrange(SHORTEST, LONGEST), number)
        decoder.cache.room(one.held, one.prompt_tokens // 2)
        live.append(one)
        for _ in range(DECODED):
            for other in live:
                have = len(other.held.table) * decoder.cache.page_size
                decoder.cache.room(other.held, min(other.prompt_tokens, have + PIN))
    for one in draw.sample(live, len(live)):
        decoder.release(one)


def admit(decoder: Decoder, tokens: int, key: int) -> Running:
    """A request with a promise of the pages that all its steps take."""
    prompt = [0] * tokens
    held = decoder.cache.admit(prompt, tokens + PIN * 2 * (STEPS + WARM_UP) + BUDGET + 2)
    return Running(key, prompt, tokens, held, Sampling())


def steps_ms(decoder: Decoder, request: Running) -> list[float]:
    """Wall time of steps, each to its end on the device."""
    times = list[float]()
    for number in range(WARM_UP + STEPS):
        if len(times) >= LEAST_STEPS and sum(times) > 1e3 * ENOUGH_S:
            break
        start = time.perf_counter()
        decoder.step([request])
        wait(decoder)
        if number >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - start))
    return times


def compact(decoder: Decoder) -> dict[str, Any]:
    """The whole pool at once: planning on the host, moving on the device."""
    itself = np.zeros(1, dtype=np.int64)
    decoder.move([Moves(itself, itself)])  # what moves rows is compiled before it is timed
    wait(decoder)
    start = time.perf_counter()
    moves = decoder.cache.compact(None)
    planned = time.perf_counter()
    decoder.move([moves])
    wait(decoder)
    moved = time.perf_counter()
    row = row_bytes(decoder.runner.config, decoder.runner.machine.model.dtype)
    return {
        "rows_moved": len(moves), "bytes_moved": len(moves) * row,
        "plan_ms": 1e3 * (planned - start), "move_ms": 1e3 * (moved - planned),
    }  # fmt: skip


def wait(decoder: Decoder) -> None:
    """Until the device is done."""
    if decoder.runner.device.type == "cuda":
        torch.cuda.synchronize(decoder.runner.device)


if __name__ == "__main__":
    sys.exit(main())
