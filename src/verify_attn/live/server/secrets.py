"""Takes keys and passwords out of a server's answers before anything is stored.

SGLang's ``/server_info`` repeats its arguments, ``api_key`` and ``admin_api_key`` among them.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "<redacted>"

# Longer texts (chat templates, whole configurations printed as text) are no settings.
LONGEST_TEXT = 500

_ALWAYS = ("key", "secret", "passw", "authorization", "credential", "bearer")
# A count of heads is no key: num_key_value_heads.
_COUNTS = re.compile(r"^(num|max|min|n)_|_(size|heads|dim)$")

# Secrets inside a text: assignments, command lines, headers, addresses with a user, known forms.
_WORDS = r"api[-_]?key|secret|passw(?:or)?d|authorization|credential"
_VALUE = r"[^\s\"',;)}\]]+"
_IN_TEXT = (
    re.compile(rf"(?i)((?:{_WORDS})[\w-]{{0,40}}[\"']?\s?[=:]\s?[\"']?)(?:bearer\s)?{_VALUE}"),
    # A number after "token" is a count: max_num_tokens=4096.
    re.compile(rf"(?i)(token[\"']?\s?[=:]\s?[\"']?)(?!\d+\b){_VALUE}"),
    re.compile(rf"(?i)(--[\w-]{{0,40}}(?:{_WORDS})[\w-]{{0,40}}\s){_VALUE}"),
    re.compile(rf"(?i)(--[\w-]{{0,40}}-tokens?\s)(?!\d+\b){_VALUE}"),
    re.compile(rf"(?i)(\bbearer\s){_VALUE}"),
    re.compile(r"(://)[^/@\s]+(?=@)"),
    re.compile(r"()\b(?:sk-|hf_|ghp_|xox[bp]-)[\w-]{8,}"),
)


def redact(value: Any, name: str = "") -> Any:
    """A copy without secrets; ``name`` is the key it was found under.

    Counts of tokens (``max_total_num_tokens``) and settings of the tokenizer stay: under a name
    with "token" a number is no secret, and "tokenizer" is not "token".
    """
    return _redact(value, name, 0)


def _redact(value: Any, name: str, depth: int) -> Any:
    if depth > 40:
        return REDACTED  # no configuration nests so deeply, and recursion has an end
    if _is_secret(name, value):
        return REDACTED
    if isinstance(value, dict):
        # A list of settings as pairs: {"name": "api_key", "value": ...}.
        pair = value.get("name", value.get("key"))
        named = pair if isinstance(pair, str) and "value" in value else None
        return {
            str(key): _redact(inner, named if named and key == "value" else str(key), depth + 1)
            for key, inner in value.items()
            if not (named and key == "key")
        }
    if isinstance(value, (list, tuple)):
        return [_redact(inner, "", depth + 1) for inner in value]
    if isinstance(value, str):
        long = len(value) > LONGEST_TEXT
        return f"({len(value)} characters, left out)" if long else redact_text(value)
    return value


def redact_text(text: str) -> str:
    """The text without what looks like a secret; error messages repeat them too."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\g<1>{REDACTED}", text)
    return text


def _is_secret(name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return False
    plain = name.lower().replace("-", "_")
    number = isinstance(value, (int, float))
    if any(word in plain for word in _ALWAYS):
        return not (number and _COUNTS.search(plain))
    return "token" in plain.replace("tokenizer", "") and not number
