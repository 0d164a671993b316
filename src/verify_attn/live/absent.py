"""A figure that could not be known, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """Stands where a figure would be; never a zero, never a number taken from the request."""

    reason: str

    def __bool__(self) -> bool:
        return False
