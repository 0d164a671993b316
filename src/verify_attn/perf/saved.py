"""Saved times: the cases of a run record of `bench`, or of a pytest-benchmark file made by the
``verify_benchmark`` fixture, read and checked for the gate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why
from verify_attn.record import STATUSES, RecordError, not_finite, read_record

MAX_BYTES = 256 << 20  # a record of 150 cells with all samples is under 1 MB
# Outside these bounds nothing is a time in ms, a rate in GB/s or a speedup; inside them the
# arithmetic of the gate cannot overflow.
LEAST, MOST = 1e-9, 1e12

TIMES = ("run", "prepare_run", "graph", "cupti")
WHOLE = ("run", "graph", "cupti")  # the first that was taken gives a case's bandwidth
KEY = "verify_attn"  # in extra_info and machine_info of pytest-benchmark's files


@dataclass(frozen=True)
class Span:
    """A median and the interval that it lies in; raises `RecordError` for anything else."""

    low: float
    median: float
    high: float

    def __post_init__(self) -> None:
        for value in (self.low, self.median, self.high):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RecordError(f"{value!r} stands where a number belongs")
            if not LEAST <= value <= MOST:  # false for NaN too
                raise RecordError(f"{value} stands where a number from {LEAST:g} to {MOST:g} "
                                  "belongs")  # fmt: skip
        if not self.low <= self.median <= self.high:
            raise RecordError(
                f"the median {self.median:g} is not inside its interval, "
                f"{self.low:g} to {self.high:g}"
            )


@dataclass(frozen=True)
class SavedCase:
    """A case, measured where ``status`` is pass.

    ``spans``    by quantity: run, prepare_run, graph, cupti in ms; bandwidth in GB/s; speedup
    ``methods``  by quantity: how its times were taken, as far as it makes them comparable
    ``remarks``  what was seen while measuring: two modes, throttled samples
    """

    id: str
    status: str
    reason: str
    parameters: Mapping[str, Any]
    spans: Mapping[str, Span] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Saved:
    """A run's cases by id.

    ``identity``  the GPU's fields that must be equal in both runs; empty: not known
    ``versions``  by package; told where they differ, judged by nobody
    ``baseline``  the kernel that speedups are against; None: not known
    ``notes``     what a reader should know about the file itself
    """

    name: str
    identity: Mapping[str, Any]
    versions: Mapping[str, str]
    cases: Mapping[str, SavedCase]
    baseline: str | None = None
    notes: tuple[str, ...] = ()


def load_cases(path: Path) -> Saved:
    """Read either kind of file; raises `RecordError` for anything else, NaN and infinity too."""
    data = _read(path)
    if isinstance(data, dict) and "benchmarks" in data:
        return from_pytest_benchmark(data, str(path))
    return from_record(read_record(path), str(path))


def from_record(record: Mapping[str, Any], name: str) -> Saved:
    """The cases of a run record of `verify-attn bench`; ``name`` is for messages."""
    _refuse_not_finite(record, name)
    environment = _object(record.get("environment", {}), f"{name}: environment")
    if not _is_bench(record, environment):
        raise RecordError(
            f"{name} is a record of {_command(record)!r}, which has no bench cases; compare reads "
            "what verify-attn bench --json or pytest --benchmark-json wrote"
        )
    bench = _object(environment.get("bench") or {}, f"{name}: environment.bench")
    baseline = bench.get("baseline")
    return Saved(
        name,
        _object(bench.get("identity") or {}, f"{name}: environment.bench.identity"),
        _versions(environment.get("versions"), f"{name}: environment.versions"),
        _by_id([read_case(case, name) for case in record["cases"]], name),
        None if baseline is None else str(baseline),
    )


def from_pytest_benchmark(data: Mapping[str, Any], name: str) -> Saved:
    """The cases of pytest-benchmark's JSON; ``name`` is for messages."""
    benchmarks = data.get("benchmarks")
    if not isinstance(benchmarks, list):
        raise RecordError(f"{name}: benchmarks is no list")
    cases, plain = [], []
    for number, benchmark in enumerate(benchmarks):
        entry = _object(benchmark, f"{name}: benchmarks[{number}]")
        ours = _object(entry.get("extra_info") or {}, f"{name}: extra_info").get(KEY)
        if ours is None:
            plain.append(str(entry.get("fullname")))
            continue
        ours = _object(ours, f"{name}: extra_info.{KEY}")
        _refuse_not_finite(ours, f"{name}: benchmarks[{number}].extra_info.{KEY}")
        cases.append(read_case({"status": "pass", **ours, "id": entry.get("fullname")}, name))
    if plain and not cases:
        raise RecordError(
            f"{name} is a pytest-benchmark file with host times only ({plain[0]} ...): take them "
            "with the verify_benchmark fixture, which adds what the gate judges"
        )
    machine = _object(data.get("machine_info") or {}, f"{name}: machine_info")
    _refuse_not_finite(machine.get(KEY), f"{name}: machine_info.{KEY}")
    about = _object(machine.get(KEY) or {}, f"{name}: machine_info.{KEY}")
    baseline = about.get("baseline")
    left = f"{name}: not compared, since they are without verify_benchmark: {', '.join(plain)}"
    return Saved(
        name,
        _object(about.get("identity") or {}, f"{name}: machine_info.{KEY}.identity"),
        _versions(about.get("versions"), f"{name}: machine_info.{KEY}.versions"),
        _by_id(cases, name),
        None if baseline is None else str(baseline),
        (left,) if plain else (),
    )


def read_case(case: Mapping[str, Any], name: str) -> SavedCase:
    """One case as a run record holds it (id, status, reason, parameters, metrics, methods, notes);
    raises `RecordError` for figures that are none."""
    found, status = case.get("id"), case.get("status")
    if not isinstance(found, str) or not found:
        raise RecordError(f"{name}: a case has the id {found!r}; it must be a text")
    where = f"{name}: case {found!r}"
    if status not in STATUSES:
        raise RecordError(f"{where}: status is {status!r}; it must be one of {', '.join(STATUSES)}")
    metrics = _object(case.get("metrics") or {}, f"{where}: metrics")
    notes = case.get("notes") or []
    if not isinstance(notes, list):
        raise RecordError(f"{where}: notes is {notes!r}; it must be a list")
    remarks = [str(note) for note in notes]
    if not notes and metrics.get("throttled_samples"):
        remarks.append(f"{metrics['throttled_samples']} of {metrics.get('samples')} samples were "
                       "throttled")  # fmt: skip
    spans = _spans(metrics, where) if status == "pass" else {}
    methods = _methods(_object(case.get("methods") or {}, f"{where}: methods"), where)
    whole = next((part for part in WHOLE if part in spans), "run")
    methods |= {"bandwidth": f"{whole}, {methods.get(whole, 'method unknown')}"}
    if "run" in methods:
        methods["speedup"] = methods["run"]
    return SavedCase(
        found,
        status,
        str(case.get("reason") or ""),
        _object(case.get("parameters") or {}, f"{where}: parameters"),
        spans,
        methods,
        tuple(remarks),
    )


def _spans(metrics: Mapping[str, Any], where: str) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for quantity in (*TIMES, "speedup"):
        unit = "" if quantity == "speedup" else "_ms"
        keys = [f"{quantity}{part}{unit}" for part in ("_low", "", "_high")]
        if keys[1] in metrics:
            spans[quantity] = _span([metrics.get(key) for key in keys], where, keys[1])
    whole = [spans[part] for part in WHOLE if part in spans]
    if not whole:
        given = ", ".join(f"{part}_ms" for part in WHOLE)
        raise RecordError(f"{where} passed, but has no time: one of {given} must be there")
    if "gb_per_s" in metrics:
        # The bytes of a case are no measurement: the interval is the time's, turned round.
        run, rate = whole[0], metrics["gb_per_s"]
        middle = _span([rate] * 3, where, "gb_per_s").median
        spans["bandwidth"] = _span(
            [middle * (run.median / run.high), middle, middle * (run.median / run.low)],
            where, "gb_per_s",
        )  # fmt: skip
    return spans


def _span(values: list[Any], where: str, key: str) -> Span:
    try:
        return Span(*values)
    except RecordError as wrong:
        raise RecordError(f"{where}, {key}: {wrong}") from None


def _methods(methods: Mapping[str, Any], where: str) -> dict[str, str]:
    """Timer, what was done about the L2 (its first word: how many bytes is no matter) and whether
    host time is inside."""
    words = {}
    for quantity, method in methods.items():
        method = _object(method, f"{where}: methods.{quantity}")
        l2 = str(method.get("l2", "")).split()
        words[quantity] = f"{method.get('timer')}, L2 {l2[0].rstrip(':') if l2 else 'unknown'}" + (
            ", GPU idle before" if method.get("drained") else ""
        )
    return words


def _by_id(cases: list[SavedCase], name: str) -> dict[str, SavedCase]:
    found: dict[str, SavedCase] = {}
    for case in cases:
        if case.id in found:
            raise RecordError(f"{name}: two cases have the id {case.id!r}; ids must differ")
        found[case.id] = case
    return found


def _read(path: Path) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is no regular file; give the JSON file that a run wrote")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise RecordError(f"{path} has {size:,} bytes; a record has at most {MAX_BYTES:,}")
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise RecordError(f"no record at {path}") from None
    except RecordError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} is no record: {why(error)}") from None


def _refuse_not_finite(data: Any, name: str) -> None:
    if wrong := not_finite(data):
        raise RecordError(f"{name}: {wrong}; no figure of a run is")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"{where} is {str(value)[:80]!r}; it must be an object")
    return value


def _versions(value: Any, where: str) -> dict[str, str]:
    return {str(k): str(v) for k, v in _object(value or {}, where).items()}


def _command(record: Mapping[str, Any]) -> str:
    return str(record.get("command", ""))


def _is_bench(record: Mapping[str, Any], environment: Mapping[str, Any]) -> bool:
    """By what it says of itself; a record without a case, or without a GPU, is one too."""
    try:
        words = shlex.split(_command(record))
    except ValueError:
        words = []
    return "bench" in environment or "bench" in words[1:2]
