"""The error texts of OpenAI-compatible servers, which agree on nothing."""

from __future__ import annotations

import json
import re
from typing import Any

from verify_attn.live.acceptance.figures import count, member
from verify_attn.live.server.secrets import redact_text

# Too long for a report, and bodies may be whole pages.
_LONGEST = 500

# What each engine says of a request that does not fit its context.
_OVERFLOW = re.compile(
    "|".join(
        (
            # SGLang, vLLM, OpenAI
            r"maximum context length",
            r"longer than the model'?s context length",
            r"max_model_len",
            # SGLang, where prompt and answer do not fit the KV pool
            r"exceeds the maximum allowed length",
            # llama.cpp
            r"exceeds? the available context size",
            r"context size has been exceeded",
            # LM Studio
            r"context (?:the )?overflow",
            r"context length of only",
            # TGI
            r"`?inputs`? (?:tokens \+ `?max_new_tokens`? must be|must have less than)",
            # TensorRT-LLM
            r"(?:exceed|larger|greater|should be).{0,80}max_(?:seq|input)_len",
            r"(?:exceed|larger|greater|should be).{0,80}max_num_tokens",
            r"prompt is too long",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)
_OVERFLOW_TYPES = {"exceed_context_size_error", "context_length_exceeded"}

# A refused key or a full queue speaks of limits too.
_NEVER = (401, 403, 404, 429)


def error_message(obj: Any) -> str | None:
    """The server's own words in a decoded body or event; None where it is no error.

    Looked for in this order: ``error.message`` (OpenAI, vLLM, llama.cpp), ``message`` (SGLang),
    ``detail`` (FastAPI: text, or a list with a ``msg`` each), ``error`` as a text (TGI).
    """
    if not isinstance(obj, dict):
        return None
    for value in (
        member(obj, "error", "message"),
        obj.get("message"),
        obj.get("detail"),
        obj.get("error"),
    ):
        text = _words(value)
        if text:
            return text
    error = obj.get("error")
    if isinstance(error, (dict, list)) and error:
        try:
            return f"an error without a message: {_cut(json.dumps(error, default=str))}"
        except (ValueError, RecursionError):
            return "an error without a message"
    return None


def error_status(status: int, obj: Any) -> int:
    """The status that counts: HTTP's unless it is 2xx, then ``error.code``, then ``code``."""
    if not 200 <= status < 300:
        return status
    for value in (member(obj, "error", "code"), member(obj, "code")):
        known = count(value)
        if known is not None and 400 <= known < 600:
            return known
    return status


def context_overflow(status: int, body: Any) -> str | None:
    """The server's words if it refused a request as too long for its context, else None.

    ``body`` is a decoded body or event, or its text or bytes; an event of a 200 stream may hold
    the refusal (SGLang's /generate, older llama.cpp).  The numbers in the words are never used:
    vLLM counts "at least", and a build printed a difference as the maximum (vllm#33418).  A
    refusal without words cannot be seen here: LM Studio's stream of no events
    (lmstudio-bug-tracker#2339).
    """
    obj = _decoded(body)
    words = error_message(obj)
    if words is None or error_status(status, obj) in _NEVER:
        return None
    kinds = [
        kind
        for holder in (member(obj, "error"), obj)
        for name in ("type", "code")
        if isinstance(kind := member(holder, name), str)
    ]
    if _OVERFLOW_TYPES.intersection(kinds) or _OVERFLOW.search(words):
        return words
    return None


def _decoded(body: Any) -> Any:
    if isinstance(body, (bytes, bytearray)):
        body = bytes(body).decode("utf-8", "replace")
    if not isinstance(body, str):
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return {"error": body} if body.strip() and not body.lstrip().startswith("<") else None


def _words(value: Any) -> str | None:
    if isinstance(value, str):
        return _cut(value) if value.strip() else None
    if isinstance(value, list):
        found = [text for item in value if isinstance(text := member(item, "msg"), str)]
        return _cut("; ".join(found)) if found else None
    return None


def _cut(text: str) -> str:
    size = len(text)
    # A gateway may repeat the key that it refuses.
    text = redact_text(" ".join(text[: 2 * _LONGEST].split())[:_LONGEST])
    return text if size <= _LONGEST else f"{text}... ({size} characters)"
