"""Tensor parallel: heads and feed-forward width split over ranks, the latent KV on every rank.

Rank 0 has the host (scheduler, drafters, HTTP) and tells the others each call; all of them do it on
their share, and two sums a layer bring the shares together::

    rank 0      runner = ParallelRunner(local, group)
    the others  serve_rank(local, group)

``torchrun`` starts the ranks; `join` reads what it sets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from verify_attn.engine.config import ConfigError, ModelConfig
from verify_attn.engine.runner import LocalRunner
from verify_attn.engine.step import Moves, Output, Part
from verify_attn.tree import DraftTree

TIMEOUT_S = 120.0
# A server may be idle for long; a rank that ends closes its connection, which the others see.
_IDLE = timedelta(days=365)


class ParallelError(RuntimeError):
    """A rank that ended, stalled or is not like the others; the message says when."""


@dataclass(frozen=True)
class Group:
    """The ranks of one model, and which one this is.

    ``work`` sums activations and gives up after ``timeout_s``; ``control`` carries calls and waits.
    """

    rank: int
    world: int
    timeout_s: float
    work: Any
    control: Any

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, in place."""
        try:
            dist.all_reduce(x, group=self.work)
        except RuntimeError as error:
            raise self.lost("a sum", error) from error
        return x

    def send(self, value: object) -> None:
        """Rank 0's part of one message to all others."""
        self._broadcast([value], "sending a call")

    def receive(self) -> Any:
        """The others' part."""
        box: list[Any] = [None]
        self._broadcast(box, "waiting for a call")
        return box[0]

    def gather(self, value: object) -> list[Any]:
        """Every rank's value, on every rank."""
        values: list[Any] = [None] * self.world
        try:
            dist.all_gather_object(values, value, group=self.control)
        except RuntimeError as error:
            raise self.lost("meeting the others", error) from error
        return values

    def close(self) -> None:
        """Leave."""
        dist.destroy_process_group()

    def lost(self, doing: str, error: Exception) -> ParallelError:
        """What to raise when a collective failed."""
        return ParallelError(
            f"rank {self.rank} of {self.world}, {doing}: another rank ended, or did not answer for "
            f"{self.timeout_s:g} s; see its own output, and start all ranks again ({error})"
        )

    def _broadcast(self, box: list[Any], doing: str) -> None:
        try:
            dist.broadcast_object_list(box, src=0, group=self.control)
        except RuntimeError as error:
            raise self.lost(doing, error) from error


def join(device_type: str, timeout_s: float = TIMEOUT_S) -> Group | None:
    """The group that torchrun's variables speak of, or None outside torchrun and for one rank.

    NCCL on ``cuda``, where each rank takes the GPU of its LOCAL_RANK; gloo on ``cpu``.
    """
    world = _variable("WORLD_SIZE", 1)
    if world == 1:
        return None
    rank = _variable("RANK", None)
    if device_type == "cuda":
        local, there = _variable("LOCAL_RANK", rank), torch.cuda.device_count()
        if local >= there:
            raise ParallelError(
                f"rank {rank} is to take GPU {local}, there are {there}: start at most that many"
            )
        torch.cuda.set_device(local)
    backend = "nccl" if device_type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        control = dist.new_group(backend="gloo", timeout=_IDLE)
    except (RuntimeError, ValueError) as error:
        raise ParallelError(
            f"rank {rank} of {world} cannot meet the others ({error}); start all of them with "
            "torchrun"
        ) from error
    return Group(rank, world, timeout_s, dist.group.WORLD, control)


def _variable(name: str, otherwise: int | None) -> int:
    """What torchrun set; other launchers set some of it too."""
    given = os.environ.get(name)
    if given is None and otherwise is not None:
        return otherwise
    if given is None or not (given.isascii() and given.isdigit()):
        raise ParallelError(
            f"the environment has {name}={given}, which torchrun sets to a number for each of "
            "several ranks: start with torchrun, or unset WORLD_SIZE for one rank"
        )
    return int(given)


class ParallelRunner:
    """Rank 0's `Runner` (`verify_attn.engine.step`): the others do what it does."""

    def __init__(self, local: LocalRunner, group: Group) -> None:
        """Waits for the others; raises `ParallelError` if a pool differs from this rank's."""
        self.local = local
        self.group = group
        self.config = local.config
        self.pages, self.page_size = local.pages, local.page_size
        self.mode = f"{local.mode}; {group.world} ranks"
        _meet(local, group)

    @property
    def device(self) -> torch.device:
        """Rank 0's."""
        return self.local.device

    def forward(self, parts: Sequence[Part], *, every: bool) -> Output:
        """See `Runner`; bad parts raise before any other rank hears of them."""
        self.local.check(parts)
        plain = [(list(p.tokens), p.tree.parents, p.table, p.prefix_len) for p in parts]
        self.group.send(("forward", plain, every))
        return self.local.forward(parts, every=every)

    def move(self, moves: Moves) -> None:
        """See `Runner`."""
        if len(moves):
            self.local.move(moves)  # first: what it refuses, the others never hear of
            self.group.send(("move", moves.sources, moves.targets))

    def fill(self, table: npt.NDArray[np.int32], tokens: int, seed: int) -> None:
        """See `Runner`."""
        self.local.check_fill(table, tokens)
        self.group.send(("fill", table, tokens, seed))
        self.local.fill(table, tokens, seed)

    def warm(self) -> None:
        """Nothing is captured with several ranks."""

    def close(self) -> None:
        """Let the others end, then leave the group; those that ended already need no word."""
        with contextlib.suppress(ParallelError):
            self.group.send(("close",))
            self.group.gather("closed")
        self.local.close()
        self.group.close()


def serve_rank(local: LocalRunner, group: Group) -> None:
    """What every rank but 0 does: rank 0's calls, until it closes.

    Raises `ParallelError` when rank 0, or another, ends without a word.
    """
    _meet(local, group)
    while True:
        call, *values = group.receive()
        if call == "forward":
            plain, every = values
            parts = [Part(t, DraftTree(parents), table, n) for t, parents, table, n in plain]
            local.forward(parts, every=every)
        elif call == "move":
            local.move(Moves(*values))
        elif call == "fill":
            local.fill(*values)
        else:
            break
    group.gather("closed")
    local.close()
    group.close()


def _meet(local: LocalRunner, group: Group) -> None:
    pools = group.gather((local.pages, local.page_size, local.config))
    for rank, pool in enumerate(pools):
        if pool != pools[0]:
            raise ParallelError(
                f"rank {rank} has pages, page_size, config {pool}, rank 0 has {pools[0]}; "
                "all ranks need the same: give the pool's size instead of letting it be found"
            )


# -- weights ---------------------------------------------------------------------------------------

_ROWS = ("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
_COLUMNS = ("o_proj", "down_proj")


def shard(
    config: ModelConfig, weights: dict[str, torch.Tensor], rank: int, world: int
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """One rank's config and weights; what is not split is shared with ``weights``, not copied.

    Split: heads, and the width of the MLP, of each expert and of the shared ones.  Whole on every
    rank: the latent projection, router, norms, embedding and head.  Raises `ConfigError` where
    something does not divide.
    """
    moe = config.experts
    widths = {"heads": config.heads}
    if moe is None or config.dense_layers:
        widths["intermediate"] = config.intermediate
    if moe is not None:
        widths["experts.intermediate"] = moe.intermediate
    for name, width in widths.items():
        if width % world:
            raise ConfigError(
                f"{name} of {config.name} is {width}, which {world} ranks cannot share evenly; "
                f"take a number of ranks that divides {name}"
            )
    own = replace(
        config,
        heads=config.heads // world,
        intermediate=max(config.intermediate // world, 1),
        experts=None if moe is None else replace(moe, intermediate=moe.intermediate // world),
    )
    return own, {name: _share(name, weight, rank, world) for name, weight in weights.items()}


def _share(name: str, weight: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if kind == "gate_up_proj":  # packed experts: [E, gate and up, hidden]
        return torch.cat([_cut(half, 1, rank, world) for half in weight.chunk(2, 1)], 1)
    if kind in _ROWS:
        return _cut(weight, 0, rank, world).clone()
    if kind in _COLUMNS:
        return _cut(weight, -1, rank, world).contiguous()
    return weight


def _cut(weight: torch.Tensor, dim: int, rank: int, world: int) -> torch.Tensor:
    return weight.chunk(world, dim)[rank]
