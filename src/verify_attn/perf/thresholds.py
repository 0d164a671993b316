"""How much worse a case may get: the table ``[tool.verify-attn.compare]`` of a pyproject.toml.

::

    [tool.verify-attn.compare]
    threshold = 0.05                 # 5 %, the default

    [tool.verify-attn.compare.cases] # glob over the case's id -> threshold; the last match counts
    "triton-split | * n256 *" = 0.08
"""

from __future__ import annotations

import difflib
import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verify_attn.file_errors import why

DEFAULT = 0.05
TABLE = "tool.verify-attn.compare"


class ThresholdError(ValueError):
    """A threshold, or a table of them, that cannot be meant; the message says where."""


@dataclass(frozen=True)
class Thresholds:
    """``cases``   glob over ids -> threshold
    ``source``     where they are from, for messages"""

    default: float = DEFAULT
    cases: Mapping[str, float] = field(default_factory=dict)
    source: str = "built in"

    def of(self, case_id: str) -> float:
        """The threshold of a case; 0.05 is 5 %."""
        found = [t for pattern, t in self.cases.items() if _matches(case_id, pattern)]
        return found[-1] if found else self.default

    def unmatched(self, case_ids: Iterable[str]) -> list[str]:
        """The patterns that no case has."""
        ids = list(case_ids)
        return [p for p in self.cases if not any(_matches(i, p) for i in ids)]


def read_thresholds(pyproject: Path | None, default: float | None = None) -> Thresholds:
    """Out of a pyproject.toml (None: there is none); ``default`` stands above its default.

    Raises `ThresholdError` for a file that is no TOML, unknown keys and impossible thresholds.
    """
    source, table = "built in", {}
    if pyproject is not None:
        table = _table(pyproject)
        source = str(pyproject) if table else source
    where = f"{pyproject}: [{TABLE}]"
    _known(where, table, ("threshold", "cases"))
    cases = table.get("cases", {})
    if not isinstance(cases, dict):
        raise ThresholdError(f"{where} cases is {cases!r}; it must be a table of glob = threshold")
    checked = {p: _threshold(t, f"{where} cases, {p!r}") for p, t in cases.items()}
    usual = _threshold(table.get("threshold", DEFAULT), f"{where} threshold")
    if default is not None:
        usual = _threshold(default, "--threshold")
    return Thresholds(usual, checked, source)


def find_pyproject(start: Path) -> Path | None:
    """The nearest pyproject.toml, in ``start`` or above."""
    for folder in (start, *start.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / "pyproject.toml"
    return None


def _table(pyproject: Path) -> dict[str, Any]:
    try:
        data: Any = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # of any kind: tomllib has several
        raise ThresholdError(f"{pyproject}: {why(error)}") from None
    tools = data.get("tool", {})
    if (
        isinstance(tools, dict) and "verify_attn" in tools
    ):  # another spelling, which would be passed over
        raise ThresholdError(f"{pyproject}: [tool.verify_attn] is read by nobody; write [{TABLE}]")
    so_far = ""
    for key in TABLE.split("."):
        data = data.get(key, {})
        so_far = f"{so_far}.{key}".lstrip(".")
        if not isinstance(data, dict):
            raise ThresholdError(f"{pyproject}: {so_far} is {data!r}; it must be a table")
        if key == "verify-attn":  # else a table named ``comapre`` would be passed over
            _known(f"{pyproject}: [{so_far}]", data, ("compare",))
    return dict(data)


def _known(where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ThresholdError(
                f"{where} has the unknown key {key!r}{hint}; allowed are {', '.join(keys)}"
            )


def _threshold(value: Any, where: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= 1  # NaN neither
    ):
        raise ThresholdError(
            f"{where} is {value!r}; it must be a number above 0 and at most 1 (0.05 is 5 %)"
        )
    return float(value)


def _matches(case_id: str, pattern: str) -> bool:
    """As a glob or letter by letter: the brackets of a pytest id are no character class."""
    return case_id == pattern or fnmatch.fnmatchcase(case_id, pattern)
