"""Single figures out of the answers, with their types checked and their paths kept."""

from __future__ import annotations

from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import count
from verify_attn.live.server.answers import Answers
from verify_attn.live.server.facts import Fact
from verify_attn.live.server.secrets import redact


def listed_limit(answers: Answers) -> Fact | Absent:
    """``max_model_len`` of the models listed; the smallest where they differ."""
    limits = [n for m in answers.models() if (n := count(m.get("max_model_len")))]
    if not limits:
        return Absent(answers.why_not("/v1/models"))
    return Fact(min(limits), "/v1/models data[].max_model_len")


def gauge(answers: Answers, name: str) -> Fact | Absent:
    """A setting shown as a gauge; the smallest where ranks differ."""
    samples = answers.metrics()
    if isinstance(samples, Absent):
        return samples
    known = [n for value in samples.series(name).values() if (n := count(value))]
    return Fact(min(known), f"/metrics {name}") if known else Absent(f"/metrics has no {name}")


def some(holder: Any, *names: str, exact: bool = True) -> dict[str, Any]:
    """The entries of an object with these names (or names that hold them), nulls left out."""
    if not isinstance(holder, dict):
        return {}
    return {
        key: value
        for key, value in holder.items()
        if value is not None
        and (key in names if exact else any(name in str(key) for name in names))
    }


def settings(found: dict[str, Any], path: str, answers: Answers) -> Fact | Absent:
    """Settings as one fact, without secrets."""
    return Fact(redact(found), path) if found else Absent(answers.why_not(path))


def as_count(fact: Fact | Absent) -> Fact | Absent:
    """Only a positive whole number passes."""
    if isinstance(fact, Absent):
        return fact
    known = count(fact.value)
    return Fact(known, fact.path) if known else Absent(f"{fact.path} is no positive number")


def as_text(fact: Fact | Absent) -> Fact | Absent:
    """Only a text that is not empty passes."""
    if isinstance(fact, Absent):
        return fact
    if not isinstance(fact.value, str) or not fact.value:
        return Absent(f"{fact.path} is no text")
    return Fact(redact(fact.value), fact.path)


def digits(text: str | None) -> int | None:
    """A label that holds a whole number; labels are always text."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return None
    return count(int(text))
