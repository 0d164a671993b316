"""Which server, and the secret that goes with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class TargetError(ValueError):
    """A URL that no server can have; the message says what was given and the rule."""


@dataclass(frozen=True)
class Target:
    """``root`` is what ``/v1/...`` and ``/metrics`` are appended to; ``api_key`` is never shown."""

    root: str
    api_key: str | None = field(default=None, repr=False)

    @staticmethod
    def parse(url: str, api_key: str | None = None) -> Target:
        """Take ``http://host:port``, with or without a prefix, ``/v1`` or a whole endpoint."""
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise TargetError(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(
                f"{_shown(url)} is no server's URL; give http://HOST:PORT or https://HOST"
            )
        if parts.username is not None or parts.password is not None:
            raise TargetError(
                "the URL has a user name or password in it; put the key into the environment "
                "variable VERIFY_ATTN_API_KEY, where no record and no process list shows it"
            )
        if parts.query or parts.fragment:
            raise TargetError(
                f"{_shown(url)} has a query or fragment; give the server's root alone"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        root = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
        path = parts.path.rstrip("/")
        for ending in (*ENDPOINTS.values(), "/v1"):
            path = path.removesuffix(ending)
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise TargetError("the API key has characters that no HTTP header may carry")
        return Target(root + path, api_key or None)

    def scrub(self, text: str) -> str:
        """The text without the API key: a server may quote it back in an error."""
        if not self.api_key:
            return text
        for key in dict.fromkeys((self.api_key, repr(self.api_key)[1:-1], _in_json(self.api_key))):
            text = _hidden(text, key)
        return text


def _in_json(key: str) -> str:
    return json.dumps(key)[1:-1]


def _hidden(text: str, key: str) -> str:
    """Without the key, or its first half and more: words are cut short in the middle of it."""
    start = key[: max(8, len(key) // 2)]
    kept, at = [], 0
    while (found := text.find(start, at)) >= 0:
        kept += [text[at:found], "[API key]"]
        same = (i for i, c in enumerate(key) if text[found + i : found + i + 1] != c)
        at = found + next(same, len(key))
    return "".join((*kept, text[at:]))


def _shown(url: str) -> str:
    # Without anything that could be a secret.
    return repr(url.split("?")[0].split("@")[-1])
