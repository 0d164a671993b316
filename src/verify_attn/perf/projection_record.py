"""What a projection takes from a record of bench; each field is checked here, and only here."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from verify_attn.hardware import GpuModel, sheet_of
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection_chips import CHIPS
from verify_attn.perf.projection_work import DESIGNS
from verify_attn.perf.roofline import work_of

PART = "run"  # of the record: CUDA events around one run
TIME = f"{PART}_ms"
CLOCK = "sm_clock_mhz_most"
# A call takes a nanosecond to an hour; a clock ticks at 100 MHz to 10 GHz.
LIMITS = {TIME: (1e-6, 3.6e6), CLOCK: (100.0, 10_000.0)}
# Measured ceilings of the data sheet's: a sheet is not reached but for the error of the clocks.
LEAST_SHARE, MOST_SHARE = 0.01, 1.05


class ProjectionError(ValueError):
    """A record or a GPU that nothing can be projected from or to; the message says which."""


@dataclass(frozen=True)
class Source:
    """What was measured.

    ``rates``    ``gb_per_s`` and ``tflops``
    ``cases``    (kernel, cell) -> metrics: `TIME` in milliseconds, and `CLOCK` if it was read
    ``command``  that measured it
    """

    sheet: GpuModel
    rates: Mapping[str, float]
    cases: Mapping[tuple[str, Cell], Mapping[str, float]]
    command: str


def read_source(record: Mapping[str, Any], arch: str) -> Source:
    """Of a record of a GPU of another architecture than ``arch``; raises `ProjectionError`."""
    bench = _object(_object(record, "environment"), "bench", "environment.")
    identity = _object(bench, "identity", "environment.bench.")
    name = identity.get("name", "")
    if not isinstance(name, str):
        raise _wrong("environment.bench.identity.name", name, "a name")
    sheet = sheet_of(name)
    if sheet is None or sheet.name not in CHIPS or CHIPS[sheet.name].arch == arch:
        able = ", ".join(n for n, chip in CHIPS.items() if chip.arch != arch)
        raise ProjectionError(
            f"the record is of {name or 'no GPU'}; it must be bench's, of one of these: {able}"
        )
    where = "environment.bench.ceilings."
    measured = _object(_object(bench, "ceilings", "environment.bench."), "rates", where)
    rates = {}
    for field, most in (("gb_per_s", sheet.gb_per_s), ("tflops", sheet.tflops)):
        if field not in measured:
            raise ProjectionError(f"the record of {name} has no measured {field}")
        rates[field] = _number(
            f"{where}rates.{field}", measured[field], LEAST_SHARE * most, MOST_SHARE * most,
            f", as {name} has {most:g} by its data sheet",
        )  # fmt: skip
    cases = record.get("cases", [])
    if not isinstance(cases, list):
        raise _wrong("cases", cases, "a list")
    found = _measured(cases)
    if not found:
        raise ProjectionError(
            f"the record of {name} has no time of {', '.join(DESIGNS)}: only kernels that do "
            "the same on both architectures can be projected"
        )
    return Source(sheet, rates, found, str(record.get("command", "")))


def cell_of(parameters: Mapping[str, Any]) -> Cell:
    """The cell of a case's parameters."""
    return Cell(**{f.name: parameters[f.name] for f in fields(Cell)})


def _measured(cases: Sequence[Any]) -> dict[tuple[str, Cell], dict[str, float]]:
    """Of the cases that have a time, of kernels with a design; the last of those of one cell."""
    found = {}
    for at, case in enumerate(cases):
        where = f"cases[{at}]"
        if not isinstance(case, Mapping):
            raise _wrong(where, case, "an object")
        parameters = _object(case, "parameters", f"{where}.")
        metrics = _object(case, "metrics", f"{where}.")
        kernel = parameters.get("kernel", "")
        if not isinstance(kernel, str):
            raise _wrong(f"{where}.parameters.kernel", kernel, "a name")
        if kernel in DESIGNS and case.get("status") == "pass" and metrics.get(TIME) is not None:
            cell = _cell(parameters, f"{where}.parameters")
            numbers = {
                field: _number(f"{where}.metrics.{field}", metrics[field], *limits)
                for field, limits in LIMITS.items() if metrics.get(field) is not None
            }  # fmt: skip
            if cell.dtype in ("bfloat16", "float16") and not cell.kv_dtype:
                found[kernel, cell] = numbers
    return found


def _cell(parameters: Mapping[str, Any], where: str) -> Cell:
    """One that bench could have measured."""
    for field in fields(Cell):
        if field.name not in parameters:
            raise ProjectionError(f"the record has no {where}.{field.name}")
        if type(value := parameters[field.name]) is not type(field.default):
            kind = "a whole number" if isinstance(field.default, int) else "a word"
            raise _wrong(f"{where}.{field.name}", value, kind)
    try:
        cell = cell_of(parameters)
        work_of(cell.case())
    except (ValueError, ArithmeticError) as wrong:  # they name the field
        raise ProjectionError(f"the record's {where}: {wrong}") from None
    return cell


def _object(of: Mapping[str, Any], field: str, where: str = "") -> Mapping[str, Any]:
    value = of.get(field, {})
    if not isinstance(value, Mapping):
        raise _wrong(where + field, value, "an object")
    return value


def _number(where: str, value: Any, least: float, most: float, why: str = "") -> float:
    if type(value) not in (int, float) or not least <= value <= most:  # NaN is in no range
        raise _wrong(where, value, f"a number within {least:,.6g}..{most:,.6g}{why}")
    return float(value)


def _wrong(where: str, value: Any, rule: str) -> ProjectionError:
    return ProjectionError(f"the record's {where} is {reprlib.repr(value)}; it must be {rule}")
