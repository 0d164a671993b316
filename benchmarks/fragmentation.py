"""What scattered KV pages cost a verify kernel on one GPU, and what it costs to put them together.

    python -m benchmarks.fragmentation --json results/h200/fragmentation.json

One request, 8 heads (Kimi K2.6 on 8 GPUs), bf16, a random tree of 32 nodes.  The same rows lie in
contiguous pages, in pages from a FIFO allocator that a busy server has aged, and in pages without
any order, which is the worst that ageing can come to.  Layouts take turns within each round, in an
order drawn anew, the L2 flushed before each call, so that a ratio is one of calls made next to each
other.  Kernels do not take turns: a call right after a far longer one would be timed differently.
Then the moves: the rows of an accepted path, and all of a scattered request, over 61 layers.
A kernel or a move that is wrong is not timed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.intervals import interval
from benchmarks.kernel_times import FLUSH_BYTES, usable

from verify_attn.conformance.trial import Trial
from verify_attn.defrag import plan_compaction, tables_after
from verify_attn.engine.rows import move_plainly, move_rows, rows_of
from verify_attn.engine.step import Moves
from verify_attn.environment import gpus
from verify_attn.generate import Case
from verify_attn.kernels.base import VerifyKernel
from verify_attn.paging import FifoAllocator, PageIds, churn, runs
from verify_attn.problem import VerifyBatch
from verify_attn.record import new_record, write_record

KERNELS = ("triton-split", "triton-unsplit")
PAGE_SIZES = (1, 16, 64)
CONTEXTS = (31_952, 184_728)
NODES = 32
ROUNDS, WARM_UP = 20, 3
CHURN_STEPS = 500  # requests that came and went before; about as many runs come of it, and more
LAYERS, POOL_TOKENS, WIDTH = 61, 200_000, 576
ACCEPTED = (0, 3, 9, 17, 30)  # a typical path: four rows move


def main() -> int:
    """Time everything; 2 without a GPU."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", type=Path, required=True)
    path = arguments.parse_args().json
    if not torch.cuda.is_available():
        print("error: no GPU; nothing can be timed here", file=sys.stderr)
        return 2
    kernels = usable(KERNELS)
    record = new_record(["python", "-m", "benchmarks.fragmentation", *sys.argv[1:]])
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def timer(call: Callable[[], None]) -> float:
        return device_ms(call, flush)

    for page_size in PAGE_SIZES:
        for context in CONTEXTS:
            case = Case(
                ((context, f"random:{NODES}:1"),), geometry="kimi-k2.6-tp8", dtype="bfloat16",
                page_size=page_size,
            )  # fmt: skip
            record["cases"] += time_layouts(kernels, case, torch.device("cuda"), timer)
            write_record(path, record)
    for page_size in PAGE_SIZES:
        pages = -(-POOL_TOKENS // page_size)
        pool = torch.empty((LAYERS, pages, page_size, WIDTH), dtype=torch.bfloat16, device="cuda")
        pool.view(torch.int16).random_()  # NaN among them: it is bits that are moved
        record["cases"] += time_moves(pool, CONTEXTS[-1], timer)
        write_record(path, record)
        del pool
    return 0


def device_ms(call: Callable[[], None], flush: torch.Tensor) -> float:
    """Time of a call on the GPU, the L2 cold."""
    flush.zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


Timer = Callable[[Callable[[], None]], float]


def page_layouts(pages: int, count: int) -> dict[str, PageIds]:
    """``count`` pages out of ``pages`` by name of layout."""
    rng = np.random.default_rng(0)
    aged = FifoAllocator(pages)
    churn(aged, rng, load=0.8, steps=CHURN_STEPS)
    return {
        "contiguous": np.arange(count, dtype=np.int32),
        "churned": aged.allocate(count),
        "shuffled": rng.permutation(pages)[:count].astype(np.int32),
    }


def in_pages(batch: VerifyBatch, table: PageIds) -> VerifyBatch:
    """The same single request with its rows in other pages of a pool as large."""
    old = batch.page_table[0, : len(table)].long()
    new = torch.from_numpy(table).to(batch.device)
    pool = torch.full_like(batch.kv_pool, torch.nan)
    pool[new.long()] = batch.kv_pool[old]
    page_table = batch.page_table.clone()
    page_table[0, : len(table)] = new
    return batch.with_fields(kv_pool=pool, page_table=page_table)


def time_layouts(
    kernels: Mapping[str, VerifyKernel], case: Case, device: torch.device, timer: Timer
) -> list[dict[str, Any]]:
    """One page size and context: every kernel in every layout."""
    context, page_size = case.tokens, case.page_size
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    layouts: dict[str, PageIds] = {}
    for name, kernel in kernels.items():
        trial = Trial(kernel, case, device)
        count = -(-trial.batch.stored_tokens(0) // page_size)
        layouts = layouts or page_layouts(int(trial.batch.kv_pool.shape[0]), count)
        for layout, table in layouts.items():
            batch = in_pages(trial.batch, table)
            what = f"{name} is wrong in {layout} pages"
            trial.compare(trial.run(batch), trial.reference, batch, what)
            calls[name, layout] = prepared(kernel, batch)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    draw = random.Random(0)
    for name in kernels:
        for round_number in range(WARM_UP + ROUNDS):
            for layout in draw.sample(list(layouts), len(layouts)):
                elapsed = timer(calls[name, layout])
                if round_number >= WARM_UP:
                    times[name, layout].append(elapsed)
    clocks = [[gpu.sm_clock_mhz, gpu.memory_clock_mhz] for gpu in gpus()]
    cases = []
    for (name, layout), measured in times.items():
        base = times[name, "contiguous"]
        ratio = interval([a / b for a, b in zip(measured, base, strict=True)])
        found = interval(measured)
        cases.append({
            "id": f"{name}/{layout}/{page_size}/{context}",
            "parameters": {"kernel": name, "layout": layout, "page_size": page_size,
                           "context": context, "nodes": NODES, "heads": 8, "dtype": case.dtype},
            "status": "pass", "reason": None,
            "metrics": {"runs": runs(layouts[layout]), "rounds": len(measured),
                        "clocks_mhz": clocks, **found.metrics("ms"),
                        **ratio.metrics("ratio_to_contiguous")},
        })  # fmt: skip
        print(
            f"{name:>14} page {page_size:>2} {context:>7} tokens {layout:>10} "
            f"{runs(layouts[layout]):>6} runs: {found.median:8.4f} ms, "
            f"x {ratio.median:.4f} ({ratio.low:.4f} to {ratio.high:.4f})",
            flush=True,
        )
    return cases


def prepared(kernel: VerifyKernel, batch: VerifyBatch) -> Callable[[], None]:
    """``run`` of a kernel, ready to be timed."""
    plan = kernel.plan(batch)
    kernel.prepare(batch, plan)
    out, lse = batch.outputs()
    return lambda: kernel.run(batch, plan, out, lse)


def time_moves(pool: torch.Tensor, context: int, timer: Timer) -> list[dict[str, Any]]:
    """One pool [layers, pages, page_size, width]: a commit, and compactions of one request."""
    _, pages, page_size, _ = pool.shape
    layouts = page_layouts(pages, -(-(context + NODES) // page_size))
    cases = []
    for layout in ("churned", "shuffled"):
        table = layouts[layout]
        commit = commit_moves(table, page_size, context)
        cases.append(time_move("commit", pool, commit, layout, table, table, timer, ROUNDS))
        start = time.perf_counter()
        copies = plan_compaction({0: table}, pages)
        plan_ms = (time.perf_counter() - start) * 1e3
        after = tables_after({0: table}, copies)[0]
        pairs = np.array([(c.source, c.target) for c in copies], dtype=np.int64).reshape(-1, 2)
        slots = (pairs[:, :, None] * page_size + np.arange(page_size)).swapaxes(0, 1)
        moves = Moves(*slots.reshape(2, -1))
        cases.append(time_move("compaction", pool, moves, layout, table, after, timer, ROUNDS // 4))
        cases[-1]["metrics"] |= {
            "plan_ms": plan_ms, "pages_copied": len(copies), "runs_after": runs(after)
        }  # fmt: skip
    return cases


def commit_moves(table: PageIds, page_size: int, length: int) -> Moves:
    """The accepted path of the tree after ``length`` committed tokens comes to the front."""
    nodes = np.array(ACCEPTED)
    moving = np.flatnonzero(nodes != np.arange(len(nodes)))
    sources, targets = length + nodes[moving], length + moving
    return Moves(
        *(table[p // page_size].astype(np.int64) * page_size + p % page_size
          for p in (sources, targets))
    )  # fmt: skip


def time_move(
    what: str, pool: torch.Tensor, moves: Moves, layout: str, table: PageIds, after: PageIds,
    timer: Timer, rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Moves that turn the request in ``table`` into one in ``after``: checked, then timed.

    A commit leaves the table as it is; its rows are compared one by one.
    """
    rows = rows_of(pool)
    page_size = pool.shape[2]
    before = rows.clone()
    move_rows(pool, moves)
    if what == "commit":
        check_rows(rows, before, moves.targets, moves.sources)
    else:
        row = np.arange(page_size)
        check_rows(
            rows, before, *((t.astype(np.int64)[:, None] * page_size + row).reshape(-1)
                            for t in (after, table)),
        )  # fmt: skip
    del before
    device, whole = [], []
    launch = launch_alone(rows, moves)
    for round_number in range(WARM_UP + rounds):
        elapsed = timer(launch)
        start = time.perf_counter()
        move_rows(pool, moves)
        if pool.is_cuda:
            torch.cuda.synchronize()
        if round_number >= WARM_UP:
            device.append(elapsed)
            whole.append((time.perf_counter() - start) * 1e3)
    moved = 2 * len(moves) * pool.shape[0] * pool.shape[3] * pool.element_size()
    found, wall = interval(device), interval(whole)
    print(
        f"{what:>10} page {page_size:>2} {layout:>10} {runs(table):>6} runs, {len(moves):>6} rows: "
        f"{found.median:9.4f} ms on the GPU, {wall.median:9.4f} ms in all, "
        f"{moved / found.median / 1e6:.0f} GB/s",
        flush=True,
    )
    return {
        "id": f"{what}/{layout}/{page_size}",
        "parameters": {"move": what, "layout": layout, "page_size": page_size,
                       "layers": pool.shape[0], "pool_bytes": pool.nbytes},
        "status": "pass", "reason": None,
        "metrics": {"runs": runs(table), "rows": len(moves), "bytes_read_and_written": moved,
                    "rounds": rounds, "gb_per_s": moved / found.median / 1e6,
                    **found.metrics("ms"), **wall.metrics("ms_with_host")},
    }  # fmt: skip


def launch_alone(rows: torch.Tensor, moves: Moves) -> Callable[[], None]:
    """The launch, its index on the GPU already; on a CPU there is none: the plain moves."""
    if not rows.is_cuda:
        return lambda: move_plainly(rows, moves)
    from verify_attn.engine.rows_triton import launch_lists, upload

    index, lists = upload(moves, rows.device)
    return lambda: launch_lists(rows, index, lists, len(moves))


def check_rows(
    rows: torch.Tensor, before: torch.Tensor, now_at: np.ndarray, was_at: np.ndarray
) -> None:
    """Bit for bit, in every layer; raises ``AssertionError`` naming layer and slot."""
    now, was = (torch.from_numpy(slots).to(rows.device) for slots in (now_at, was_at))
    for layer in range(rows.shape[0]):
        wrong = (rows[layer, now] != before[layer, was]).any(dim=1).nonzero()
        if len(wrong):
            slot = int(now[wrong[0, 0]])
            raise AssertionError(
                f"layer {layer}: {len(wrong)} of {len(now)} rows are wrong, slot {slot} the first"
            )


if __name__ == "__main__":
    sys.exit(main())
