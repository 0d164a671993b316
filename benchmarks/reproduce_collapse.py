"""Reproduce the collapse of a deployment, and its cure, on one GPU.

    python benchmarks/reproduce_collapse.py --json results/h200/collapse.json

`verify-attn serve k2.6-rank` runs at the contexts of that deployment with each kernel in turn, and
`verify-attn sweep` measures it: 32 nodes, page_size 1, four tokens committed a step by decree, the
prompts' KV random rows of a seed, so that nothing but the step is looked at.  Then the attention of
all layers is timed alone, for its share of the step.  Last, without any of these shortcuts, at 11k
tokens (and at the shortest context, which warms up): prompts computed, drafts looked up in the
text so far, what is committed decided by the target.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from verify_attn.engine.build import open_engine
from verify_attn.engine.decode import Decoder, Running
from verify_attn.engine.http.app import create_app
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.options import Options
from verify_attn.engine.sampling import Sampling
from verify_attn.engine.scheduler import Scheduler
from verify_attn.engine.step import Part
from verify_attn.engine.timing import attention_time, pass_time
from verify_attn.environment import gpus
from verify_attn.record import new_record, write_record

CONTEXTS = (1_427, 11_402, 31_952, 63_903, 127_802, 184_728)
KERNELS = ("triton-unsplit", "triton-split", "sm120")
PIN, BUDGET = 4, 31
WARM_UP_STEPS, STEPS = 4, 16
TOKENS = 1 + PIN * (WARM_UP_STEPS + STEPS)  # the first comes from prefill
REPEATS = 3
TRUE_CONTEXTS, TRUE_TOKENS = (1_427, 11_402), 129


def main() -> int:
    """All runs; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--model", default="k2.6-rank")
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    parser.add_argument("--true-contexts", default=",".join(map(str, TRUE_CONTEXTS)))
    parser.add_argument("--kernels", default=",".join(KERNELS))
    asked = parser.parse_args()
    contexts, computed = (
        [int(size) for size in sizes.split(",")] for sizes in (asked.contexts, asked.true_contexts)
    )
    record = new_record(["python", *sys.argv])
    for kernel in asked.kernels.split(","):
        options = Options(
            asked.model, kernel=kernel, drafter="replay", pin=PIN, budget=BUDGET, fill_seed=7,
            prefix_cache=False,
        )  # fmt: skip
        with served(options) as (engine, url):
            print(f"{kernel}: serving", flush=True)
            swept = sweep(url, contexts, TOKENS, geometry(asked.model))
            about(record, kernel, swept)
            record["cases"] += [pinned_case(kernel, case, engine) for case in swept["cases"]]
        write_record(asked.json, record)
    for kernel in asked.kernels.split(","):
        options = Options(
            asked.model, kernel=kernel, drafter="ngram", budget=BUDGET, prefix_cache=False
        )
        with served(options) as (engine, url):
            print(f"{kernel}: serving, nothing pinned or filled", flush=True)
            swept = sweep(url, computed, TRUE_TOKENS, geometry(asked.model))
            record["cases"] += [
                {**case, "id": f"true,{kernel},{case['id']}"} for case in swept["cases"]
            ]
            about(record, f"true,{kernel}", swept)
        write_record(asked.json, record)
    show(record)
    return 0


def about(record: dict[str, Any], name: str, swept: dict[str, Any]) -> None:
    """What a sweep says beside its cases: the server, and what all points together show."""
    record.setdefault("sweeps", {})[name] = {
        key: swept[key] for key in ("findings", "overview", "server")
    }


def geometry(model: str) -> list[str]:
    """What lets the sweep weigh a slope against the memory's rate."""
    return ["--geometry", "kimi-k2.6-tp8", "--gpu", "h200"] if model == "k2.6-rank" else []


@contextmanager
def served(options: Options) -> Iterator[tuple[Scheduler, str]]:
    """The engine of `verify-attn serve` with these options, in this process, on a free port."""
    engine = open_engine(options, Metrics())
    engine.start()
    config = uvicorn.Config(create_app(engine), port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield engine, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        engine.close()


def sweep(url: str, contexts: list[int], tokens: int, more: list[str]) -> dict[str, Any]:
    """The record of one `verify-attn sweep`; its table goes to the terminal."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "sweep.json"
        command = [
            sys.executable, "-m", "verify_attn.cli", "sweep", "--url", url, "--contexts",
            ",".join(map(str, contexts)), "--max-tokens", str(tokens), "--budget", "0",
            "--json", str(path), *more,
        ]  # fmt: skip
        done = subprocess.run(command, check=False)
        if not path.exists():
            raise RuntimeError(f"the sweep ended with {done.returncode} and wrote no record")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def pinned_case(kernel: str, case: dict[str, Any], engine: Scheduler) -> dict[str, Any]:
    """One point with the attention's share of its step, both timed by the GPU's events."""
    tokens = int(case["metrics"]["prompt_tokens"])
    timed: dict[str, float] = {}

    def measure() -> int:
        timed.update(times(engine.decoder, tokens))
        return 0

    engine.call(measure)
    case = {**case, "id": f"{kernel},{case['id']}"}
    case["parameters"] = {**case["parameters"], "kernel": kernel, "pin": PIN, "nodes": BUDGET + 1}
    case["metrics"] = {
        **case["metrics"],
        "attention_ms": 1e3 * timed["attention_s"],
        "pass_ms": 1e3 * timed["pass_s"],
        "attention_share_of_step": 1e3 * timed["attention_s"] / case["metrics"]["step_ms"],
        "clocks_mhz": [[gpu.sm_clock_mhz, gpu.memory_clock_mhz] for gpu in gpus()],
    }
    return case


def times(decoder: Decoder, tokens: int) -> dict[str, float]:
    """Of one request with so many prompt tokens, in a pool that holds nothing else."""
    held = decoder.cache.admit([0] * tokens, tokens + BUDGET + 2)
    request = Running(-1, [0] * tokens, tokens, held, Sampling())
    decoder.fill(request, 7)
    request.tokens.append(0)
    proposal = decoder.drafter.propose([request], BUDGET)[0]
    decoder.cache.room(held, held.length + len(proposal.tree))
    parts = [Part([0, *proposal.tokens], proposal.tree, held.table, held.length)]
    found = {
        "attention_s": attention_time(decoder.runner, parts, REPEATS),
        "pass_s": pass_time(decoder.runner, parts, REPEATS),
    }
    decoder.release(request)
    return found


def show(record: dict[str, Any]) -> None:
    """The table of the README."""
    for case in record["cases"]:
        m = case["metrics"]
        share = m.get("attention_share_of_step")
        print(
            f"{case['id']:32} {m['prompt_tokens']:>8,} tokens {m['decode_tok_s']:8.1f} tok/s "
            f"{m['step_ms']:8.1f} ms a step" + (f", attention {share:.0%}" if share else "")
        )


if __name__ == "__main__":
    sys.exit(main())
