"""Asks a server every question that some engine answers, once, and keeps the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import member
from verify_attn.live.acceptance.prometheus import Samples, parse_metrics
from verify_attn.live.reply import Fetch, Reply, Unreachable
from verify_attn.live.server.facts import Fact

# In the order asked.  Nothing here starts work on the GPU.
_FIRST = ("/v1/models", "/server_info", "/props", "/version", "/info", "/metrics")


@dataclass
class Answers:
    """Replies by path; `Absent` where none came."""

    replies: dict[str, Reply | Absent] = field(default_factory=dict)

    async def ask(self, fetch: Fetch, path: str, timeout_s: float) -> None:
        """GET a path and keep what comes."""
        try:
            self.replies[path] = await fetch("GET", path, timeout_s=timeout_s)
        except Unreachable as error:
            self.replies[path] = Absent(f"no answer: {error}")

    def json(self, path: str) -> Any:
        """The JSON of a 2xx answer, or None."""
        reply = self.replies.get(path)
        return reply.json() if isinstance(reply, Reply) and reply.ok else None

    def metrics(self) -> Samples | Absent:
        """The scrape."""
        reply = self.replies.get("/metrics", Absent("not asked"))
        return parse_metrics(reply) if isinstance(reply, Reply) else reply

    def models(self) -> list[dict[str, Any]]:
        """The entries of ``/v1/models`` that are objects."""
        listed = member(self.json("/v1/models"), "data")
        return [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []

    def why_not(self, path: str) -> str:
        """Why a path gave nothing, in a few words."""
        reply = self.replies.get(path)
        if reply is None:
            return f"{path} was not asked"
        if isinstance(reply, Absent):
            return f"{path}: {reply.reason}"
        return f"{path}: HTTP {_status(reply)}" if not reply.ok else f"{path} does not say"

    def summary(self) -> dict[str, str]:
        """Path -> status, for the record."""
        return {
            path: _status(reply) if isinstance(reply, Reply) else reply.reason
            for path, reply in self.replies.items()
        }

    def fact(self, path: str, *names: str) -> Fact | Absent:
        """A value inside a JSON answer, null and missing being the same."""
        value = member(self.json(path), *names)
        return Absent(self.why_not(path)) if value is None else Fact(value, _at(path, names))

    def model_ids(self) -> Fact | Absent:
        """The names ``/v1/models`` lists."""
        names = [m["id"] for m in self.models() if isinstance(m.get("id"), str)]
        return Fact(names, "/v1/models data[].id") if names else Absent(self.why_not("/v1/models"))


def _status(reply: Reply) -> str:
    return f"{reply.status} to {reply.location}" if reply.location else str(reply.status)


def _at(path: str, names: tuple[str, ...]) -> str:
    return f"{path} {'.'.join(names)}"


async def gather(fetch: Fetch, *, timeout_s: float = 10.0) -> Answers:
    """Every answer there is.

    Raises `Unreachable` where no path at all gave one.
    """
    answers = Answers()
    for path in _FIRST:
        await answers.ask(fetch, path, timeout_s)
        if path == _FIRST[1] and all(isinstance(r, Absent) for r in answers.replies.values()):
            # Two refusals: the others would only wait for as many timeouts.
            first = next(iter(answers.replies.values()))
            raise Unreachable(first.reason if isinstance(first, Absent) else "")
    if not isinstance(answers.json("/server_info"), dict):
        # SGLang's name for it before 2026.
        await answers.ask(fetch, "/get_server_info", timeout_s)
    if isinstance(member(answers.json("/props"), "default_generation_settings"), dict):
        await answers.ask(fetch, "/slots", timeout_s)
    if isinstance(answers.metrics(), Absent):
        # Servers without counters: LM Studio lists its loaded models, transformers its routes.
        await answers.ask(fetch, "/api/v0/models", timeout_s)
        await answers.ask(fetch, "/openapi.json", timeout_s)
    return answers
