"""What one rank of the tensor-parallel tests does, and what all ranks together should give."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

from tests.engine.runners import CPU, DENSE, MIXED, TAPS, Texts
from verify_attn.engine.model import Model
from verify_attn.engine.parallel import Group, ParallelError, ParallelRunner, join, serve_rank
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.step import Moves, Runner
from verify_attn.engine.weights import build, random_weights
from verify_attn.kernels.registry import load
from verify_attn.tree import DraftTree, accept_walk

CONFIGS = {"dense": DENSE, "experts": MIXED}
PAGE_SIZE, PAGES = 4, 150
STEPS = 30


def over(model: Model) -> LocalRunner:
    """A runner on one rank."""
    return LocalRunner(
        model, pages=PAGES, page_size=PAGE_SIZE, kernel=load("torch"), taps=TAPS, graphs=False
    )


def decode(run: Runner) -> tuple[list[torch.Tensor], dict[int, list[int]]]:
    """Logits and features of all passes, and two requests' greedy tokens.

    Prefill in chunks, one prefix filled; then trees whose first path is often right, since it is
    what the model said a step before, and the accepted path moved to the front.
    """
    texts = Texts(PAGES, PAGE_SIZE, seed=3)
    outputs = []
    texts.add(0, 61)
    texts.add(1, 20)
    for start in range(0, 60, 20):
        output = run.forward([texts.chunk(0, start, start + 20)], every=False)
        outputs += [output.logits.clone(), output.features.clone()]
    texts.part(1, 19, DraftTree.chain(1), [0])  # takes the pages
    run.fill(np.array(texts.tables[1], dtype=np.int32), 19, seed=4)
    guess = {0: 0, 1: 0}
    tree = DraftTree((-1, 0, 0, 1, 2, 3))
    for _ in range(STEPS):
        parts = []
        for name in (0, 1):
            root, wild = texts.tokens[name][-1], texts.draw(5)
            # Node 2 is a good guess, so an accepted path leaves out node 1 and must be moved.
            tokens = [root, wild[0], guess[name], *wild[2:]]
            parts.append(texts.part(name, len(texts.tokens[name]) - 1, tree, tokens))
        output = run.forward(parts, every=True)
        outputs += [output.logits.clone(), output.features.clone()]
        said = output.logits.argmax(-1).tolist()
        sources, targets = [], []
        for i, part in enumerate(parts):
            own = said[i * len(tree) : (i + 1) * len(tree)]
            accepted, bonus = accept_walk(part.tree, part.tokens, own)
            for to, node in enumerate(accepted):
                for slots, at in ((sources, node), (targets, to)):
                    position = part.prefix_len + at
                    page = int(part.table[position // PAGE_SIZE])
                    slots.append(page * PAGE_SIZE + position % PAGE_SIZE)
            texts.tokens[i] += [part.tokens[n] for n in accepted[1:]] + [bonus]
            # What follows the bonus token is not known; that it repeats is a guess.
            guess[i] = texts.tokens[i][-2] if len(texts.tokens[i]) % 2 else bonus
        keep = [(s, t) for s, t in zip(sources, targets, strict=True) if s != t]
        run.move(Moves(np.array([s for s, _ in keep], dtype=np.int64),
                       np.array([t for _, t in keep], dtype=np.int64)))  # fmt: skip
    return outputs, texts.tokens


def play(rank: int, port: int, kind: str, directory: Path, scenario: str) -> None:
    """One rank of two, with torchrun's variables.

    The scenario is ``decode`` (rank 0 writes what `decode` returns), ``host-dies``, ``worker-dies``
    or ``stall``; a `ParallelError` is written to ``error-RANK``.
    """
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2",
        "RANK": str(rank), "LOCAL_RANK": str(rank),
    }  # fmt: skip
    group = join("cpu", timeout_s=1.0 if scenario == "stall" else 60.0)
    assert group is not None
    try:
        _play(group, kind, directory, scenario)
    except ParallelError as error:
        (directory / f"error-{group.rank}").write_text(str(error))


def _play(group: Group, kind: str, directory: Path, scenario: str) -> None:
    config = CONFIGS[kind]
    own = build(config, random_weights(config, 5, CPU, torch.float32), CPU, torch.float32, group)
    local = over(own)
    if group.rank > 0:
        if scenario in ("worker-dies", "stall"):
            calls = 0

            def reduce(x: torch.Tensor) -> torch.Tensor:
                nonlocal calls
                calls += 1
                if calls == 30:
                    if scenario == "worker-dies":
                        os._exit(1)
                    time.sleep(4)
                return group.reduce(x)

            own.reduce = reduce
        serve_rank(local, group)
        return
    run = ParallelRunner(local, group)
    found = decode(run)
    if scenario == "host-dies":
        os._exit(1)
    run.close()
    torch.save(found, directory / "found.pt")
