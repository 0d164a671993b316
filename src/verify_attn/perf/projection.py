"""A kernel's time on a GPU that is not here, projected from its time on one that was.

What is carried over, and how, is told in docs/projection.md; every assumption is in
`Projection.assumptions`.  A projection is no measurement: it stands beside metrics, not in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from verify_attn.hardware import GPUS, GpuModel
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection_chips import (
    CHIPS,
    SHARED_BYTES_PER_CLOCK,
    Assumption,
    Chip,
    Three,
)
from verify_attn.perf.projection_record import (
    CLOCK,
    TIME,
    read_source,
)
from verify_attn.perf.projection_record import ProjectionError as ProjectionError
from verify_attn.perf.projection_work import DESIGNS, Speed, needed_s, spread
from verify_attn.perf.roofline import work_of

End = Literal["slow", "central", "fast"]
ENDS: tuple[End, ...] = ("slow", "central", "fast")
LEAST_CONTEXTS = 3  # for the cost that does not grow with the context
HELD = 0.5  # a resource that needs less than this of the longest cannot have held the kernel up
MEMORY_SLOW, MEMORY_FAST = 0.8, 0.93  # of the sheet's rate
FIXED_SLOW = 1.5
MARK = "projected, not measured"


@dataclass(frozen=True)
class Projected:
    """Of one cell; times of one ``run`` in milliseconds.

    ``low_ms``, ``ms``, ``high_ms``  the shortest and the longest time that the assumptions allow,
                                     and the central one
    ``binds``        the resource that needs longest there, at the central assumptions
    ``needs_ms``     what each resource needs there, at the central assumptions
    ``source_ms``    the measured time that this is from, ``source_binds`` what needs longest there
    ``efficiency``   that resource's share of the source's time; 1 at most
    ``fixed_ms``     of the source's time does not grow with the context
    ``blocks``, ``waves``, ``longest``  on the target; the longest block's tiles
    """

    low_ms: float
    ms: float
    high_ms: float
    binds: str
    needs_ms: dict[str, float]
    source_ms: float
    source_binds: str
    efficiency: float
    fixed_ms: float
    blocks: int
    waves: int
    longest: int

    def as_record(self) -> dict[str, Any]:
        """For a run record."""
        return {"mark": MARK, **asdict(self)}


@dataclass(frozen=True)
class Projection:
    """From a bench record to a GPU; make it with `from_record`."""

    source: Chip
    target: Chip
    source_sheet: GpuModel
    target_sheet: GpuModel
    rates: Mapping[str, float]
    cases: Mapping[tuple[str, Cell], Mapping[str, float]]
    command: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any], gpu: str) -> Projection:
        """``record`` of bench; ``gpu``: a name out of `CHIPS`.  Raises `ProjectionError`."""
        if gpu not in CHIPS or CHIPS[gpu].sustained is None:
            able = ", ".join(name for name, chip in CHIPS.items() if chip.sustained)
            raise ProjectionError(f"nothing can be projected to {gpu}; to these it can: {able}")
        read = read_source(record, CHIPS[gpu].arch)
        return cls(
            CHIPS[read.sheet.name], CHIPS[gpu], read.sheet, GPUS[gpu], read.rates, read.cases,
            read.command,
        )  # fmt: skip

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Everything that is taken for true, with its source."""
        s, t, design = self.source, self.target, next(iter(DESIGNS.values()))
        share = self._memory_share
        three: list[tuple[str, str, Three]] = [
            ("source-mma", f"operations a clock and multiprocessor of mma.sync on {s.gpu}",
             s.mma_flops),
            ("target-mma", f"the same on {t.gpu}", t.mma_flops),
            ("target-sustained", f"share of {self.target_sheet.tflops:g} TFLOP/s and of "
             f"{t.boost_mhz:,.0f} MHz that {t.gpu} keeps; between: {s.gpu}'s measured share of its "
             "sheet, within what is public", self._sustained),
            ("target-memory", f"share of {self.target_sheet.gb_per_s:,.0f} GB/s that {t.gpu} "
             f"reaches; between: {s.gpu}'s measured share of its sheet",
             Three(min(MEMORY_SLOW, share), share, max(MEMORY_FAST, share),
                   "measured in the record; the ends are assumed")),
            ("source-l2", f"GB/s out of the L2 of {s.gpu}", s.l2_gb_per_s),
            ("target-l2", f"GB/s out of the L2 of {t.gpu}", t.l2_gb_per_s),
            ("fixed", "times the fixed cost (launch, first and last tiles, merge) of the source, "
             "in seconds; more ranges to merge at the slow end",
             Three(FIXED_SLOW, 1, 1, "assumed")),
            ("held", "share of the longest need on the source from which a resource may have held "
             "the kernel up; the slow end scales with the worst of those", one(HELD, "assumed")),
            ("rereads", "row tiles that walk the KV out of step read it again from memory where "
             "half of the L2 does not hold what lies between them (1: yes)",
             Three(1, 0, 0, "assumed")),
            ("lost", "what the source's time is beyond its longest need (1: is lost here too: the "
             "same share of the time at the slow end, the same clocks a tile between; 0: is hidden "
             "behind a need that is longer here)", Three(1, 1, 0, "assumed")),
            ("shared-clock", "bytes a clock of shared memory, of a multiprocessor of either GPU",
             one(SHARED_BYTES_PER_CLOCK, "32 banks of 4 bytes: CUDA Programming Guide, compute "
                 "capabilities 9.0 and 12.0")),
            ("key-reads", "times a block reads a KV tile in shared memory for its scores",
             one(design.key_reads, "the kernel's design")),
            ("value-reads", "times a block reads its latent part for its values",
             one(design.value_reads, "the kernel's design")),
            ("weight-reads", "times it reads its tile of weights",
             one(design.weight_reads, "the kernel's design")),
            ("query-pieces", "pieces of q, 16 x 16, that it reads in shared memory for each tile",
             one(design.query_pieces, "the kernel's design")),
            ("sum-moves", "writes and reads of a tile's float32 scores, from warp to warp",
             one(design.sum_moves, "the kernel's design")),
            ("blocks", f"blocks on a multiprocessor of {t.gpu}: {design.resources.warps} warps, "
             f"{design.resources.registers} registers a thread, {design.resources.shared:,} bytes",
             one(design.occupancy(t.arch).blocks, "kernels/resources.py, static occupancy")),
            ("multiprocessors", f"of {t.gpu}", one(t.sms, t.source)),
        ]  # fmt: skip
        return tuple(
            Assumption(i, text, v.slow, v.central, v.fast, v.source) for i, text, v in three
        )

    def project(self, kernel: str, cell: Cell) -> Projected | str:
        """The cell's time on the target, or why there is none."""
        case = self.cases.get((kernel, cell))
        if kernel not in DESIGNS:
            return f"{kernel} does not do the same on both architectures"
        if case is None:
            return f"not measured on {self.source_sheet.name}"
        design, work = DESIGNS[kernel], work_of(cell.case())
        measured = case[TIME] / 1e3
        fixed = min(measured, self._fixed_s(kernel, cell))
        rest, times, needs = measured - fixed, {}, {}
        before, over = spread(design, cell, self.source), spread(design, cell, self.target)
        efficiency, source_binds = 0.0, ""
        for end in ENDS:
            old, new = self._source_speed(end, case), self._target_speed(end)
            here = needed_s(design, cell, work, self.source, old)
            there = needed_s(design, cell, work, self.target, new)
            longest = max(here.values())
            share = min(1.0, longest / rest) if rest > 0 else 1.0
            grown = max(there.values())
            if end == "slow":
                worst = max(there[n] / here[n] for n in here if here[n] >= HELD * longest)
                grown = max(grown / share, rest * worst)
            if end == "central":
                lost_clocks = rest * (1 - share) * old.clock_hz / before.longest
                grown += lost_clocks * over.longest / new.clock_hz
                needs, efficiency = there, share
                source_binds = max(here, key=lambda n: here[n])
            times[end] = fixed * (FIXED_SLOW if end == "slow" else 1) + grown
        return Projected(
            low_ms=min(times.values()) * 1e3, ms=times["central"] * 1e3,
            high_ms=max(times.values()) * 1e3, binds=max(needs, key=lambda n: needs[n]),
            needs_ms={n: s * 1e3 for n, s in needs.items()}, source_ms=measured * 1e3,
            source_binds=source_binds, efficiency=efficiency, fixed_ms=fixed * 1e3,
            blocks=over.blocks, waves=over.waves, longest=over.longest,
        )  # fmt: skip

    def as_record(self) -> dict[str, Any]:
        """For a run record: from what, to what, and every assumption."""
        return {
            "mark": MARK, "source": self.source_sheet.name, "target": self.target_sheet.name,
            "command": self.command,
            "assumptions": [a.as_record() for a in self.assumptions],
        }  # fmt: skip

    @property
    def _memory_share(self) -> float:
        return self.rates["gb_per_s"] / self.source_sheet.gb_per_s

    @property
    def _sustained(self) -> Three:
        public = self.target.sustained
        assert public is not None
        share = self.rates["tflops"] / self.source_sheet.tflops
        return replace(public, central=max(public.slow, min(share, public.central)))

    def _source_speed(self, end: End, case: Mapping[str, float]) -> Speed:
        clock = case.get(CLOCK) or self.source.boost_mhz
        return Speed(
            self.rates["gb_per_s"], clock * 1e6, getattr(self.source.mma_flops, end),
            getattr(self.source.l2_gb_per_s, end),
        )  # fmt: skip

    def _target_speed(self, end: End) -> Speed:
        by = {a.id: getattr(a, end) for a in self.assumptions}
        return Speed(
            by["target-memory"] * self.target_sheet.gb_per_s,
            by["target-sustained"] * self.target.boost_mhz * 1e6,
            by["target-mma"], by["target-l2"], bool(by["rereads"]),
        )  # fmt: skip

    def _fixed_s(self, kernel: str, cell: Cell) -> float:
        """Where a line through the times of several contexts meets none: of cells like this one,
        else of those with most contexts."""
        families: dict[Cell, list[tuple[int, float]]] = {}
        for (name, other), case in self.cases.items():
            if name == kernel:
                same = other.changed(context=0)
                families.setdefault(same, []).append((other.context, case[TIME] / 1e3))
        own = families.get(cell.changed(context=0), [])
        points = own if len(own) >= LEAST_CONTEXTS else max(families.values(), key=len)
        return _intercept(points) if len(points) >= LEAST_CONTEXTS else 0.0


def one(value: float, source: str) -> Three:
    """The same at either end."""
    return Three(value, value, value, source)


def _intercept(points: Sequence[tuple[int, float]]) -> float:
    """Of the straight line through (context, seconds) with the least relative errors; within 0 and
    the shortest time."""
    n, seconds = np.array(sorted(points), dtype=float).T
    line = np.stack([np.ones_like(n), n / max(n.max(), 1)], axis=1) / seconds[:, None]
    solution = np.linalg.lstsq(line, np.ones_like(seconds), rcond=None)[0]
    return float(min(max(solution[0], 0.0), seconds.min()))
