"""Errors in OpenAI's form, whatever went wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from verify_attn.engine.job import ContextOverflowError, QueueFullError, RefusedError

RETRY_AFTER_S = 1
_SHOWN_ERRORS = 3
_SHOWN_CHARS = 80


class ApiError(Exception):
    """An answer that is an error; ``message`` says what was given, the rule and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self.body = error_body(status, message, param=param, code=code)

    def response(self) -> Response:
        """As an answer."""
        return Json(self.body, self.status, self.headers)


class Json(Response):
    """JSON in ASCII: any text, half an emoji too, is then valid UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Values that JSON does not know are shown as text."""
        return json.dumps(content, separators=(",", ":"), default=str).encode()


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(error: RefusedError) -> NoReturn:
    """Raise the `ApiError` of a job that the engine did not take."""
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        raise ApiError(503, str(error), code="queue_full", headers=headers) from None
    if isinstance(error, ContextOverflowError):
        raise ApiError(400, str(error), code="context_length_exceeded") from None
    raise ApiError(400, str(error)) from None


def install(app: FastAPI) -> None:
    """Every error of this app, and of the framework under it, in the one form."""

    @app.exception_handler(ApiError)
    async def api(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "")
        return _invalid(list(error.errors()), kind).response()

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no route {request.url.path[:_SHOWN_CHARS]}; see /openapi.json"
        elif error.status_code == 405:
            message = f"{request.url.path[:_SHOWN_CHARS]} does not take {request.method}"
        elif error.status_code == 400:  # the framework's word for JSON that Python cannot hold
            message = (
                f"{message}: JSON must be UTF-8, its values nested less than about 1,000 deep and "
                "its whole numbers under 4,300 digits"
            )
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return ApiError(500, f"this is a bug of the server: {type(error).__name__}").response()


def _invalid(errors: list[Mapping[str, Any]], content_type: str) -> ApiError:
    """400 of a body that the schema refuses, naming its first fields."""
    first = errors[0]
    if first["type"] == "json_invalid":
        where, why = first["loc"][-1], first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is no JSON: {why} at character {where}")
    if first["loc"] == ("body",):
        given = f" (Content-Type is {content_type!r})" if "json" not in content_type else ""
        return ApiError(
            400, f"the body must be a JSON object, with Content-Type: application/json{given}"
        )
    told = "; ".join(f"{_place(error)}: {_words(error)}" for error in errors[:_SHOWN_ERRORS])
    more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
    return ApiError(400, told + more, param=_place(first))


def _place(error: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in error["loc"][1:]) or "body"


def _words(error: Mapping[str, Any]) -> str:
    """The rule, and what was given where that is short; bodies may be megabytes."""
    rule = str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input")
    if error["type"] in ("missing", "value_error"):
        return rule
    if isinstance(given, str):
        return f"{rule} (got {given[:_SHOWN_CHARS]!r})"
    if isinstance(given, bool | float) or (isinstance(given, int) and abs(given) < 10**20):
        return f"{rule} (got {given!r})"
    return f"{rule} (got {'a huge number' if isinstance(given, int) else type(given).__name__})"
