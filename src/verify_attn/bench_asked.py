"""What the command line of `verify-attn bench` and `roofline` asks for, understood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verify_attn.kernels.base import KernelError
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.kernels.peers import PEERS, available
from verify_attn.kernels.registry import lacking, load
from verify_attn.live.settings import parse_sizes
from verify_attn.perf.axes import AXES, QUICK, AxisError, Cell, cells
from verify_attn.perf.subject import TIMERS


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    kernels: tuple[str, ...]
    cells: tuple[Cell, ...]
    timers: tuple[str, ...]
    baseline: str
    time_limit_s: float
    left_out: dict[str, str]  # kernels that cannot be used here, and why
    record: Path | None = None
    csv: Path | None = None
    project: Path | None = None  # a record of another GPU, to project from


AXIS_OF = {
    "contexts": "context", "nodes": "nodes", "requests": "requests", "heads": "heads",
    "page_sizes": "page_size", "layouts": "layout", "trees": "tree", "dtypes": "dtype",
    "kv_dtypes": "kv_dtype",
}  # fmt: skip
IN_WORDS = ("layout", "tree", "dtype", "kv_dtype")
TRITON = ("triton-unsplit", "triton-split")  # and sm120, where there is a GPU that it is for


def asked_cells(options: dict[str, Any]) -> tuple[Cell, ...]:
    """The axes that were given, else all (``quick``: three contexts); raises ValueError."""
    axes: dict[str, Sequence[Any]] = {}
    for option, axis in AXIS_OF.items():
        text = options[option]
        if text is None:
            continue
        words = [word.strip() for word in text.split(",")]
        axes[axis] = words if axis in IN_WORDS else parse_sizes(text)
    if options["quick"] and (axes or options["grid"]):
        raise AxisError("--quick has its own cells: leave out --grid and the axes")
    return tuple(cells(axes or (QUICK if options["quick"] else AXES), options["grid"]))


def ask(kernels: Sequence[str], options: dict[str, Any]) -> Asked:
    """The command line's words, understood; raises ValueError."""
    timers = tuple(dict.fromkeys(t.strip() for t in options["timers"].split(",")))
    unknown = [t for t in timers if t not in TIMERS]
    if unknown:
        raise ValueError(f"no timer {unknown[0]!r}; there are: {', '.join(TIMERS)}")
    names = list(kernels or TRITON)
    left_out: dict[str, str] = {}
    if not kernels:
        lack = lacking(load("sm120"))
        if lack is None:
            names.append("sm120")
        elif torch.cuda.is_available():
            left_out["sm120"] = lack
    if options["peers"]:
        for name, reason in available().items():
            if reason is None:
                names.append(name)
            else:
                left_out[name] = reason
    if options["baseline"] not in names:
        names.append(options["baseline"])
    for name in names:  # said before anything is planned; what has a colon only loading tells
        if ":" not in name and name not in (*BUILTIN, *PEERS):
            try:
                load(name)
            except KernelError as wrong:  # it has the names that there are
                raise ValueError(str(wrong)) from None
    if math.isnan(options["time_limit"]):
        raise ValueError("--time-limit is nan; give seconds, or inf for no limit")
    record, table = options["record"], options["csv"]
    if record and table and record.resolve() == table.resolve():
        raise ValueError(f"--json and --csv are both {record}; give each its own path")
    return Asked(
        tuple(dict.fromkeys(names)), asked_cells(options), timers, options["baseline"],
        options["time_limit"], left_out, record, table, options["project"],
    )  # fmt: skip
