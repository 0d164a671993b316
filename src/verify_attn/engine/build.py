"""From what `serve` is asked for to an engine that is ready to run."""

from __future__ import annotations

import random

import torch

from verify_attn.engine import presets, tiny
from verify_attn.engine.block_model import BlockModel
from verify_attn.engine.cache import Cache
from verify_attn.engine.config import ConfigError
from verify_attn.engine.decode import Decoder
from verify_attn.engine.drafters.base import Drafter
from verify_attn.engine.drafters.block import BlockDrafter
from verify_attn.engine.drafters.ngram import NgramDrafter
from verify_attn.engine.drafters.none import NoDrafter
from verify_attn.engine.drafters.replay import ReplayDrafter, ReplayError
from verify_attn.engine.faults import FaultError, Faults, WrongDrafts
from verify_attn.engine.http.metrics import Metrics
from verify_attn.engine.memory import row_bytes, tokens_that_fit
from verify_attn.engine.model import Model, WeightsError
from verify_attn.engine.options import OptionError, Options
from verify_attn.engine.parallel import Group, ParallelError, ParallelRunner
from verify_attn.engine.runner import LocalRunner, RunnerError
from verify_attn.engine.scheduler import (
    Limits,
    Scheduler,
)
from verify_attn.engine.step import Runner
from verify_attn.engine.tokenizer import encode
from verify_attn.file_errors import why
from verify_attn.kernels.base import KernelError
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.registry import load

RANDOM_RECORD = 4096  # tokens of a record that nobody gave
CONTEXTS_HELD = 4  # the pool's default size, where there is memory for it
# What the parts refuse, each with a message for whoever started the server.
REFUSALS = (
    OptionError, presets.PresetError, ConfigError, WeightsError, KernelError, RunnerError,
    ReplayError, FaultError, ParallelError,
)  # fmt: skip


def open_engine(options: Options, metrics: Metrics, group: Group | None = None) -> Scheduler:
    """The engine, not yet started.  ``group``: this is rank 0 of so many.

    Raises `OptionError`, or what presets, kernels, drafters and runners raise.
    """
    faults = Faults.parse(options.inject)  # before anything large is loaded
    local = open_runner(options, group)
    model = local.machine.model
    runner: Runner = local if group is None else ParallelRunner(local, group)
    drafter = _drafter(options, model)
    if faults.acceptance is not None:
        drafter = WrongDrafts(drafter, faults.acceptance, model.config.vocabulary)
    cache = Cache(
        runner.pages, options.page_size, allocator=options.allocator,
        contiguous=options.contiguous, prefix_cache=options.prefix_cache,
    )  # fmt: skip
    limits = Limits(
        _context(options, model), options.running, options.waiting, options.chunk,
        options.compact_pages, options.fill_seed,
    )  # fmt: skip
    decoder = Decoder(runner, cache, drafter, _budget(options))
    return Scheduler(
        decoder, limits, metrics, faults,
        model_name=options.model if options.model in presets.PRESETS else model.config.name,
        lossless=options.pin is None, notes=_notes(options),
        about=_about(options, local, model, group),
    )  # fmt: skip


def device_of(options: Options) -> torch.device:
    """Where the model goes; with several ranks, each has set its own GPU as the current one."""
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        raise OptionError("device is cuda, and torch sees no GPU here; leave it out for the CPU")
    return torch.device(options.device or ("cuda" if there else "cpu"))


def open_runner(options: Options, group: Group | None = None) -> LocalRunner:
    """The model in its pool, on this rank; every rank calls it with the same options."""
    device = device_of(options)
    default = "bfloat16" if device.type == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, options.dtype or default)
    model = presets.open_preset(options.model, device, dtype, group)
    nodes = _budget(options) + 1
    runner = LocalRunner(
        model, pages=_pages(options, model), page_size=options.page_size,
        kernel=load(_kernel_name(options, device)),
        taps=tiny.DRAFTER.taps if _drafter_name(options) == "block" else (),
        graphs=options.graphs, tree_nodes=nodes, max_nodes=max(nodes, options.chunk),
        trees=_drafter_name(options) != "none",
    )  # fmt: skip
    runner.warm()
    return runner


def _kernel_name(options: Options, device: torch.device) -> str:
    if options.kernel is not None:
        return options.kernel
    return "triton-split" if device.type == "cuda" else "torch"


def _drafter_name(options: Options) -> str:
    return options.drafter or ("block" if options.model == "tiny" else "ngram")


def _budget(options: Options) -> int:
    return 0 if _drafter_name(options) == "none" else options.budget


def _context(options: Options, model: Model) -> int:
    """Prompt and answer together; the last step's tree needs positions past them."""
    tree = _budget(options) + 1
    bounds = [(model.config.max_positions, f"{options.model} has", "positions")]
    if options.kv_tokens is not None:
        rows = -(-options.kv_tokens // options.page_size) * options.page_size
        bounds.append((rows, "the KV pool has", "tokens"))
    most, owner, unit = min(bounds)
    if most - tree < (options.context or 2):
        what = "a prompt and an answer take at least 2 tokens"
        remedy = f"ask for at least {tree + 2}"
        if options.context is not None:
            what, remedy = f"context is {options.context}", f"ask for at most {most - tree}"
        raise OptionError(f"{what}; {owner} {most} {unit}, of which a tree needs {tree}: {remedy}")
    return options.context or most - tree


def _pages(options: Options, model: Model) -> int:
    """Pages of the pool: as asked, or for a few whole contexts where there is memory."""
    one = _context(options, model) + _budget(options) + 1
    fit = tokens_that_fit(model.config, model.dtype, model.device, options.page_size)
    if (options.kv_tokens or one) > fit:
        raise OptionError(
            f"{options.kv_tokens or one} tokens of KV do not fit: {model.device} has room for "
            f"{fit} ({row_bytes(model.config, model.dtype)} bytes each); give --kv-tokens or "
            "--context of at most that"
        )
    tokens = options.kv_tokens or min(fit, CONTEXTS_HELD * one)
    return -(-tokens // options.page_size)


def _drafter(options: Options, model: Model) -> Drafter:
    name = _drafter_name(options)
    if name == "none":
        return NoDrafter()
    if name == "ngram":
        return NgramDrafter()
    if name == "replay":
        return ReplayDrafter(
            _record(options, model), model.config.vocabulary,
            corrupt=options.corrupt, pin=options.pin,
        )  # fmt: skip
    return BlockDrafter(BlockModel(tiny.DRAFTER, tiny.block_weights(model.dtype, model.device)))


def _record(options: Options, model: Model) -> list[int]:
    """The file's text as tokens; random tokens where no file is given."""
    if options.replay is not None:
        try:
            return encode(options.replay.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--replay {options.replay}: {why(error)}") from None
    draw = random.Random(0)
    return [draw.randrange(model.config.vocabulary) for _ in range(RANDOM_RECORD)]


def _about(
    options: Options, runner: LocalRunner, model: Model, group: Group | None
) -> dict[str, object]:
    """What an answer to "what are you" holds; nothing here is asked for, all of it is so."""
    config = model.config
    return {
        "model": options.model,
        "preset": presets.PRESETS.get(options.model, ""),
        "layers": config.layers,
        "heads": config.heads,
        "latent_dim": config.latent_dim,
        "rope_dim": config.rope_dim,
        "device": torch.cuda.get_device_name(model.device)
        if model.device.type == "cuda" else "CPU",
        "dtype": str(model.dtype).removeprefix("torch."),
        "kernel": runner.machine.kernel.name,
        "verify": runner.mode,
        "page_size": options.page_size,
        "kv_tokens": runner.pages * options.page_size,
        "kv_bytes_per_token": row_bytes(config, model.dtype),
        "allocator": "contiguous" if options.contiguous else options.allocator,
        "defragmentation": _defragmentation(options),
        "ranks": 1 if group is None else group.world,
    }  # fmt: skip


def _notes(options: Options) -> list[str]:
    """What whoever reads a figure of this server must know."""
    notes = [f"fault on purpose: {text}" for text in options.inject]
    if options.kernel is not None and options.kernel not in BUILTIN:
        notes.append(
            f"kernel {options.kernel} was not checked: `verify-attn check {options.kernel}` says "
            "whether its answers are the model's"
        )
    if _drafter_name(options) == "replay" and options.replay is None:
        notes.append("the record that is replayed is random tokens: no --replay FILE was given")
    if options.pin is not None:
        notes.append(
            f"not lossless: every step commits {options.pin} tokens of a record, whatever the "
            "model says"
        )
    if options.fill_seed is not None:
        notes.append(
            f"prompts are not computed: their KV is random rows of seed {options.fill_seed}"
        )
    return notes


def _defragmentation(options: Options) -> str:
    tiers = []
    if options.contiguous:
        tiers.append("tier 0: KV of a request reserved as one run")
    if options.compact_pages:
        tiers.append(f"tier 1: up to {options.compact_pages} pages copied between steps")
    return "; ".join(tiers) or "none"
