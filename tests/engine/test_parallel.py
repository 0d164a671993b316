"""Two ranks on the loopback give what one gives; ranks that end or stall are told."""

from __future__ import annotations

import multiprocessing
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.parallel_ranks import CONFIGS, STEPS, decode, over, play
from tests.engine.runners import CPU, DENSE, MIXED, close, model
from tests.engine.runners import one_thread as one_thread
from verify_attn.engine.config import ConfigError
from verify_attn.engine.model import Model
from verify_attn.engine.parallel import Group, ParallelError, ParallelRunner, join, shard
from verify_attn.engine.weights import random_weights

# Imports torch once for all ranks, in a process without threads, which may be forked.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.engine.parallel_ranks"])


def start(kind: str, directory: Path, scenario: str) -> list[Any]:
    """Two ranks, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        FORKS.Process(target=play, args=(rank, port, kind, directory, scenario))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def ends(ranks: list[Any]) -> list[int]:
    """Their exit codes; none may hang."""
    for rank in ranks:
        rank.join(60)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    assert None not in codes
    return codes


@pytest.mark.parametrize("kind", CONFIGS)
def test_two_ranks_are_one(kind: str, tmp_path: Path) -> None:
    ranks = start(kind, tmp_path, "decode")
    expected, expected_tokens = decode(over(model(CONFIGS[kind])))
    assert ends(ranks) == [0, 0]
    found, tokens = torch.load(tmp_path / "found.pt")
    assert tokens == expected_tokens
    assert len(tokens[0]) > 61 + STEPS, "no draft was ever accepted, so no row was moved"
    assert len(found) == len(expected) == 2 * (3 + STEPS)
    for one, other in zip(found, expected, strict=True):
        close(one, other)


@pytest.mark.parametrize(
    ("scenario", "rank", "message"),
    [
        ("worker-dies", 0, "rank 0 of 2, a sum: another rank ended, or did not answer for 60 s"),
        ("host-dies", 1, "rank 1 of 2, waiting for a call: another rank ended"),
        ("stall", 0, "rank 0 of 2, a sum: another rank ended, or did not answer for 1 s"),
    ],
)
def test_ranks_that_end_or_stall(scenario: str, rank: int, message: str, tmp_path: Path) -> None:
    ends(start("dense", tmp_path, scenario))
    assert message in (tmp_path / f"error-{rank}").read_text()


class Unlike(Group):
    """A group whose other rank has another pool."""

    def gather(self, value):
        pages, *others = value
        return [value, (pages + 1, *others)]


def test_pools_that_differ() -> None:
    with pytest.raises(ParallelError, match=r"rank 1 has .*\(151, 4, .*rank 0 has \(150, 4, "):
        ParallelRunner(over(model()), Unlike(0, 2, 1.0, None, None))


@pytest.mark.parametrize("config", [DENSE, MIXED], ids=lambda c: c.name)
def test_shares_add_up(config) -> None:
    """Every rank's model takes its weights, and no weight is lost or doubled."""
    weights = random_weights(config, 5, CPU, torch.float32)
    shares = [shard(config, weights, rank, 4) for rank in range(4)]
    for own, share in shares:
        assert own.heads == 1
        Model(own, share)
    for name, weight in weights.items():
        own = [share[name] for _, share in shares]
        split = own[0].shape != weight.shape
        assert split == name.endswith(
            ("q_proj.weight", "q_b_proj.weight", "kv_b_proj.weight", "o_proj.weight",
             "gate_proj.weight", "up_proj.weight", "down_proj.weight")
        )  # fmt: skip
        total = sum(float(part.double().pow(2).sum()) for part in own)
        whole = float(weight.double().pow(2).sum())
        assert total == pytest.approx(whole if split else 4 * whole)


def test_packed_experts_are_shared_as_single_ones() -> None:
    moe = MIXED.experts
    weights = random_weights(MIXED, 5, CPU, torch.float32)
    packed = {name: weight for name, weight in weights.items() if ".experts." not in name}
    for layer in (1, 2):
        at = f"model.layers.{layer}.mlp.experts."
        both = [
            torch.cat([weights[f"{at}{e}.{p}_proj.weight"] for p in ("gate", "up")])
            for e in range(moe.count)
        ]
        packed[at + "gate_up_proj"] = torch.stack(both)
        packed[at + "down_proj"] = torch.stack(
            [weights[f"{at}{e}.down_proj.weight"] for e in range(moe.count)]
        )
    for rank in range(2):
        own, share = shard(MIXED, weights, rank, 2)
        one, other = Model(own, share), Model(*shard(MIXED, packed, rank, 2))
        for layer in (1, 2):
            for a, b in zip(one.layers[layer].mlp.experts, other.layers[layer].mlp.experts,
                            strict=True):  # fmt: skip
                assert torch.equal(a.gate, b.gate)
                assert torch.equal(a.up, b.up)
                assert torch.equal(a.down, b.down)


def test_what_cannot_be_shared() -> None:
    for config, message in (
        (replace(DENSE, heads=6), "heads of small is 6, which 4 ranks"),
        (replace(DENSE, intermediate=50), "intermediate of small is 50"),
        (replace(MIXED, experts=replace(MIXED.experts, intermediate=18)), "experts.intermediate"),
    ):
        with pytest.raises(ConfigError, match=message):
            shard(config, {}, 0, 4)


def test_outside_torchrun_there_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join("cpu") is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1000")
    with pytest.raises(ParallelError, match=r"rank 1 is to take GPU 1000, there are \d+"):
        join("cuda")
