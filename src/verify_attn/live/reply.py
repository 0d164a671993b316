"""One whole answer of a server to a small request: health, counters, configuration."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol


class Unreachable(Exception):
    """No answer came: refused, reset, timed out, TLS, no such host.  The message says which."""


@dataclass(frozen=True)
class Reply:
    """Status, content type (lower case, with its parameters) and the whole body.

    ``location`` is where a redirect leads, which is never followed.
    """

    status: int
    content_type: str
    body: bytes
    location: str = ""

    @property
    def ok(self) -> bool:
        """A 2xx status."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever the header says; bad bytes become U+FFFD."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON, or None where it is none (HTML of a proxy, an empty body)."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Fetch(Protocol):
    """How the readers reach a server: ``path`` starts with ``/`` and is taken from its root."""

    def __call__(
        self, method: str, path: str, *, body: Any = None, timeout_s: float = 30.0
    ) -> Awaitable[Reply]:
        """Raises `Unreachable` where there is no answer."""
