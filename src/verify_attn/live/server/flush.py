"""Empties a server's prefix cache before a cold point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from verify_attn.live.acceptance.figures import count, member
from verify_attn.live.reply import Fetch, Reply, Unreachable
from verify_attn.live.server.errors import error_message
from verify_attn.live.server.facts import Engine

# Between two attempts at a busy server.
PAUSE_S = 1.0


@dataclass(frozen=True)
class Flush:
    """What came of it.

    After "done", read counters anew: SGLang clears its acceptance figures with an idle flush.
    """

    outcome: Literal["done", "not offered", "failed"]
    # What the server answered, and what to do about it.
    why: str
    attempts: int = 0


async def flush_cache(
    fetch: Fetch,
    engine: Engine,
    *,
    limit_s: float = 60.0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Flush:
    """Ask for an empty prefix cache; a busy server is asked again until ``limit_s`` has passed.

    An unreachable server is "failed": the caller's own probe says whether it died.
    """
    once = _ROUTES.get(engine)
    if once is None:
        return Flush("not offered", f"no route of {engine} is known that empties the prefix cache")
    end = clock() + limit_s
    attempts = 0
    while True:
        attempts += 1
        left = max(end - clock(), 0.0)
        try:
            found = await once(fetch, left)
        except Unreachable as error:
            return Flush("failed", f"no answer: {error}", attempts)
        if isinstance(found, Flush):
            return Flush(found.outcome, found.why, attempts)
        if clock() + PAUSE_S > end:
            why = f"still busy after {attempts} attempts in {limit_s:g} s: {found}"
            return Flush("failed", why, attempts)
        await sleep(PAUSE_S)


async def _sglang(fetch: Fetch, left_s: float) -> Flush | str:
    """200 done; 400 while any request runs (sglang#21413).  The server itself waits ``timeout``."""
    wait_s = int(min(left_s, 30))
    path = f"/flush_cache?timeout={wait_s}"
    reply = await fetch("POST", path, timeout_s=wait_s + 10.0)
    if reply.ok:
        return Flush("done", f"/flush_cache: HTTP {reply.status}")
    return _words(reply) if reply.status == 400 else _refused("/flush_cache", reply)


async def _vllm(fetch: Fetch, left_s: float) -> Flush | str:
    """Only with VLLM_SERVER_DEV_MODE=1; a failure is HTTP 200 with ``"success": false``."""
    path = "/reset_prefix_cache"
    reply = await fetch("POST", path, timeout_s=30.0)
    if not reply.ok:
        hint = "; vLLM offers it with VLLM_SERVER_DEV_MODE=1" if reply.status == 404 else ""
        return _refused(path, reply, hint)
    body = reply.json()
    if member(body, "success") is False:
        return f"{path}: HTTP {reply.status} with success false (blocks are in use)"
    return Flush("done", f"{path}: HTTP {reply.status}")


async def _llamacpp(fetch: Fetch, left_s: float) -> Flush | str:
    """Erases every slot (tools/server/README.md); needs --slot-save-path."""
    listed = await fetch("GET", "/slots", timeout_s=10.0)
    slots = listed.json() if listed.ok else None
    if not isinstance(slots, list):
        return _refused("/slots", listed, "; a request may say cache_prompt: false instead")
    ids = [n for slot in slots if (n := count(member(slot, "id"))) is not None]
    for slot in ids:
        path = f"/slots/{slot}?action=erase"
        reply = await fetch("POST", path, body={}, timeout_s=30.0)
        if reply.status in (400, 503):
            return f"{path}: {_words(reply)}"
        if not reply.ok:
            return _refused(path, reply, "; a request may say cache_prompt: false instead")
    if not ids:
        return Flush("failed", "/slots lists no slot")
    return Flush("done", f"{len(ids)} slots erased")


async def _own(fetch: Fetch, left_s: float) -> Flush | str:
    """This project's own server: at any time; pages of running requests stay theirs."""
    reply = await fetch("POST", "/flush_cache", timeout_s=30.0)
    if not reply.ok:
        return _refused("/flush_cache", reply)
    freed = count(member(reply.json(), "freed_pages"))
    return Flush("done", f"/flush_cache: HTTP {reply.status}, {freed} pages freed")


_ROUTES = {"SGLang": _sglang, "vLLM": _vllm, "llama.cpp": _llamacpp, "verify-attn": _own}


def _refused(path: str, reply: Reply, hint: str = "") -> Flush:
    """404, 405 and 501 mean that there is no such route here; the rest is a failure."""
    missing = reply.status in (404, 405, 501)
    return Flush("not offered" if missing else "failed", f"{path}: {_words(reply)}{hint}")


def _words(reply: Reply) -> str:
    words = error_message(reply.json()) or " ".join(reply.text.split())[:200]
    return f"HTTP {reply.status}{f' ({words})' if words else ''}"
