"""What a check is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verify_attn.conformance.trial import Trial


@dataclass(frozen=True)
class Check:
    """A named check; ``says`` is the one line that help and reports show."""

    name: str
    says: str
    run: Callable[[Trial], None]


CHECKS: dict[str, Check] = {}


def check(name: str, says: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Decorator: register a function as the check of that name."""

    def register(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CHECKS[name] = Check(name, says, run)
        return run

    return register
