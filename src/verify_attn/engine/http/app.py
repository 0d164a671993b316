"""The application of ``verify-attn serve``: OpenAI's routes and those that operators need."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from verify_attn import __version__
from verify_attn.engine.http import errors
from verify_attn.engine.http.answers import Answer, ChatAnswer, CompletionAnswer
from verify_attn.engine.http.errors import ApiError, Json
from verify_attn.engine.http.guard import MAX_BODY_BYTES, ApiKey, BodyLimit
from verify_attn.engine.http.handle import Handle
from verify_attn.engine.http.schemas import (
    COMPLETION_TOKENS,
    Chat,
    Completion,
    Generate,
    Message,
    Tokenize,
)
from verify_attn.engine.http.stream import Deltas, Generation
from verify_attn.engine.http.unsupported import refuse_unsupported
from verify_attn.engine.job import Job, RefusedError
from verify_attn.engine.tokenizer import RoleError, encode, encode_chat, encode_prompt

OWNER = "verify-attn"
HEALTH_LIMIT_S = 20.0
_PROBE = "health"


def create_app(
    handle: Handle,
    *,
    api_key: str | None = None,
    most_body_bytes: int = MAX_BODY_BYTES,
    health_limit_s: float = HEALTH_LIMIT_S,
) -> FastAPI:
    """The routes over one engine.

    ``api_key``         asked of every request but ``/health``; None: nobody is asked
    ``health_limit_s``  how long ``/health_generate`` waits for its token
    """
    app = FastAPI(title="verify-attn serve", version=__version__, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False  # a wrong path is told so, in the one form
    errors.install(app)
    app.add_middleware(BodyLimit, most_bytes=most_body_bytes)
    if api_key is not None:
        app.add_middleware(ApiKey, key=api_key)  # the outermost: no body is read without a key
    _generation(app, handle)
    _models(app, handle)
    _operation(app, handle, health_limit_s)
    return app


def _generation(app: FastAPI, handle: Handle) -> None:
    @app.post("/v1/completions")
    async def completions(request: Completion) -> Response:
        _check(handle, request)
        prompt = request.prompt
        tokens = tuple(encode_prompt(prompt) if isinstance(prompt, str) else prompt)
        answer = CompletionAnswer(
            _name("cmpl"), handle.model_name, tokens, request, handle.lossless
        )
        return _submit(handle, answer, min(COMPLETION_TOKENS, _left(handle, tokens)))

    @app.post("/v1/chat/completions")
    async def chat(request: Chat) -> Response:
        _check(handle, request)
        tokens = _chat_tokens(request.messages)
        answer = ChatAnswer(_name("chatcmpl"), handle.model_name, tokens, request, handle.lossless)
        return _submit(handle, answer, _left(handle, tokens))

    @app.post("/tokenize")
    async def tokenize(request: Tokenize) -> Response:
        """Token ids of a prompt or of messages, as a request would have them."""
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if request.messages is not None:
            tokens = list(_chat_tokens(request.messages))
        else:
            make = encode_prompt if request.add_special_tokens else encode
            tokens = make(request.prompt or "")
        return Json({"count": len(tokens), "max_model_len": handle.max_context, "tokens": tokens})


def _models(app: FastAPI, handle: Handle) -> None:
    started = int(time.time())

    def card() -> dict[str, Any]:
        return {
            "id": handle.model_name,
            "object": "model",
            "created": started,
            "owned_by": OWNER,
            "max_model_len": handle.max_context,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [card()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        _check_model(handle, name)
        return Json(card())


def _operation(app: FastAPI, handle: Handle, health_limit_s: float) -> None:
    @app.get("/health")
    async def health() -> Response:
        _check_alive(handle)
        return Json({"status": "ok"})

    @app.get("/health_generate")
    async def health_generate() -> Response:
        """200 if one token comes out of the engine in time."""
        _check_alive(handle)
        started = time.monotonic()
        why = await _probe(handle, health_limit_s)
        if why is not None:
            raise ApiError(503, why, code="unhealthy")
        return Json({"status": "ok", "seconds": time.monotonic() - started})

    @app.get("/flush_cache")
    @app.post("/flush_cache")
    def flush_cache() -> Response:
        """Empties the prefix cache; in a thread, since the engine may have to end a step first."""
        _check_alive(handle)
        try:
            return Json({"freed_pages": handle.flush()})
        except RefusedError as error:
            raise ApiError(503, str(error)) from None

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(handle.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def version() -> Response:
        return Json({"version": __version__})

    @app.get("/server_info")
    async def server_info() -> Response:
        """What runs here, for the record of a measurement."""
        return Json(
            {
                **handle.about,
                "engine": OWNER,
                "version": __version__,
                "model": handle.model_name,
                "max_context": handle.max_context,
                "drafter": handle.drafter,
                "budget": handle.budget,
                "lossless": handle.lossless,
            }
        )


def _check(handle: Handle, request: Generate) -> None:
    refuse_unsupported(request.model_extra or {})
    if request.model is not None:
        _check_model(handle, request.model)
    _check_alive(handle)


def _check_model(handle: Handle, name: str) -> None:
    if name != handle.model_name:
        raise ApiError(
            404, f"there is no model {name[:200]!r}; there is: {handle.model_name}",
            param="model", code="model_not_found",
        )  # fmt: skip


def _check_alive(handle: Handle) -> None:
    dead = handle.alive()
    if dead is not None:
        raise ApiError(503, f"the engine is dead: {dead}", code="engine_dead")


def _chat_tokens(messages: list[Message]) -> tuple[int, ...]:
    # OpenAI's newer name for the same turn.
    turns = [("system" if m.role == "developer" else m.role, m.content) for m in messages]
    try:
        return tuple(encode_chat(turns))
    except RoleError as error:
        raise ApiError(400, str(error), param="messages") from None


def _left(handle: Handle, tokens: tuple[int, ...]) -> int:
    """How many tokens may follow; 1 where none may, which the engine refuses in its words."""
    return max(1, handle.max_context - len(tokens))


def _name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _submit(handle: Handle, answer: Answer, otherwise: int) -> Response:
    """Hand the job to the engine; ``otherwise`` is the length where the request names none."""
    request, deltas = answer.request, Deltas(handle)
    job = Job(
        answer.name,
        answer.prompt,
        request.most_tokens or otherwise,
        deltas.emit,
        temperature=request.temperature,
        top_p=request.top_p,
        # Generators want one that is not negative.
        seed=None if request.seed is None else request.seed % 2**63,
        stop=tuple(request.stop),
        ignore_eos=request.ignore_eos,
    )
    try:
        handle.submit(job)
    except RefusedError as error:
        _check_alive(handle)  # it may have died just now
        errors.refuse(error)
    return Generation(handle, deltas, answer)


async def _probe(handle: Handle, limit_s: float) -> str | None:
    """None, or why no token came."""
    deltas = Deltas(handle)
    job = Job(_name("health"), tuple(encode_prompt(_PROBE)), 1, deltas.emit)
    try:
        handle.submit(job)
    except RefusedError as error:
        return str(error)
    failure = None
    try:
        async with asyncio.timeout(limit_s):
            async for delta in deltas:
                failure = delta.error
    except TimeoutError:
        return f"the engine generated nothing within {limit_s:g} s"
    finally:
        if not deltas.ended:
            handle.cancel(job.name)  # probes of a busy server must not pile up
    return failure
