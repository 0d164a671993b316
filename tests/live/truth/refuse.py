"""Answers that are no stream: refusals, each engine's way, and whole completions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.live.truth.engine import Generation
from tests.live.truth.http import JSON, STREAM
from tests.live.truth.log import RequestLog
from tests.live.truth.scenario import Scenario
from tests.live.truth.wire import usage
from tests.live.truth.words import text_of

_HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>It works.</body></html>"
_STANDARD = (
    "model messages prompt stream stream_options max_tokens max_completion_tokens temperature "
    "top_p n seed stop user presence_penalty frequency_penalty logit_bias logprobs top_logprobs "
    "tools tool_choice response_format reasoning_effort suffix echo best_of"
)


@dataclass(frozen=True)
class Answer:
    """One whole answer."""

    status: int
    body: bytes
    content_type: str = JSON


def of(status: int, value: Any) -> Answer:
    """As JSON."""
    return Answer(status, json.dumps(value).encode())


def nested(status: int, message: str, kind: str, **more: Any) -> Answer:
    """OpenAI's form of an error."""
    return of(status, {"error": {"message": message, "type": kind, **more, "code": status}})


def prompt_of(body: Any, *, chat: bool) -> str:
    """The text of a request's prompt."""
    if not chat:
        prompt = body.get("prompt", "")
        return prompt if isinstance(prompt, str) else json.dumps(prompt)
    parts = []
    for message in body.get("messages") or []:
        content = message.get("content") or ""
        texts = [content] if isinstance(content, str) else [p.get("text", "") for p in content]
        parts += texts
    return "\n".join(parts)


def asked_tokens(scenario: Scenario, record: RequestLog) -> int:
    """Tokens to generate: what is asked for, or what the context leaves."""
    for key in ("max_completion_tokens", "max_tokens"):
        if record.body.get(key) is not None:
            return max(1, int(record.body[key]))
    return max(1, min(4096, scenario.tokenizer.context_limit - record.prompt_tokens))


def refusal(scenario: Scenario, record: RequestLog, *, generates: bool) -> Answer | None:
    """The answer to a request that gets no further, or None."""
    fault, body = scenario.fault, record.body
    if fault.html:
        return Answer(200, _HTML, "text/html")
    if fault.unavailable:
        return nested(503, "Loading model", "unavailable_error")
    key = record.headers.get("authorization")
    if fault.api_key is not None and key != f"Bearer {fault.api_key}" and record.path != "/health":
        return nested(401, "Incorrect API key provided.", "invalid_request_error")
    if not generates:
        return None
    if record.method != "POST":
        return of(405, {"detail": "Method Not Allowed"})
    if not isinstance(body, dict):
        return nested(400, "The request body is no JSON object.", "BadRequestError")
    if fault.check_model and body.get("model") != scenario.model:
        return nested(404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
    return _unknown_fields(scenario, body) or _overflow(scenario, record)


def _unknown_fields(scenario: Scenario, body: dict[str, Any]) -> Answer | None:
    wire = scenario.wire
    granted = {"return_token_ids"} if wire.token_ids else set()
    unknown = sorted(set(body) - set(_STANDARD.split()) - granted)
    options = body.get("stream_options") or {}
    if "continuous_usage_stats" in options and not wire.continuous_usage:
        unknown.append("continuous_usage_stats")
    if not unknown or wire.unknown_fields == "ignore":
        return None
    if wire.unknown_fields == "422":
        listed = "{" + ", ".join(repr(name) for name in unknown) + "}"
        return of(422, {"detail": f"Unexpected fields in the request: {listed}"})
    message = f"Unrecognized request argument supplied: {unknown[0]}"
    return nested(400, message, "invalid_request_error", param=None)


def _overflow(scenario: Scenario, record: RequestLog) -> Answer | None:
    limit, form = scenario.tokenizer.context_limit, scenario.tokenizer.overflow
    prompt, asked = record.prompt_tokens, asked_tokens(scenario, record)
    if form == "none" or prompt + asked <= limit:
        return None
    flat = {"object": "error", "type": "BadRequestError", "param": None}
    maximum = f"This model's maximum context length is {limit} tokens. However, "
    if prompt >= limit:
        sglang = f"The input ({prompt} tokens) is longer than the model's context length"
        sglang += f" ({limit} tokens)."
        vllm = f"{maximum}your prompt contains at least {limit + 1} input tokens."
    else:
        sglang = f"Requested token count exceeds the model's maximum context length of {limit}"
        sglang += f" tokens. You requested a total of {prompt + asked} tokens: {prompt} tokens"
        sglang += f" from the input messages and {asked} tokens for the completion."
        vllm = f"{maximum}your request has {prompt} input tokens plus {asked} 'max_tokens'."
    stream = b"data: " + json.dumps({"error": {"message": sglang}}).encode() + b"\n\n"
    llama = {
        "code": 400,
        "message": f"request ({prompt} tokens) exceeds the available context size ({limit} tokens),"
        " try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": prompt,
        "n_ctx": limit,
    }
    match form:
        case "sglang":
            return of(400, {**flat, "message": sglang, "code": 400})
        case "sglang-generate":
            return Answer(200, stream + b"data: [DONE]\n\n", STREAM)
        case "vllm":
            return nested(400, vllm, "BadRequestError", param="input_tokens")
        case "vllm-old":
            return of(400, {**flat, "message": vllm})
        case "llamacpp":
            return of(400, {"error": llama})
        case "llamacpp-old":
            return of(200, {"error": llama})
        case "detail":
            return of(400, {"detail": sglang})
        case "tgi":
            sums = f"{prompt} `inputs` tokens and {asked} `max_new_tokens`"
            message = f"`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {sums}"
            body = {"error": f"Input validation error: {message}", "error_type": "validation"}
            return of(422, body)
        case "lmstudio":
            return Answer(200, b"", STREAM)


def finished(scenario: Scenario, answer: Generation, *, chat: bool) -> Answer:
    """A completion that was not streamed."""
    text = text_of([t for s in answer.steps for t in s.tokens])
    shown = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    choice = {"index": 0, **shown, "logprobs": None, "finish_reason": answer.finish}
    body: dict[str, Any] = {
        "id": "cmpl-truth",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1790000000,
        "model": scenario.model,
        "choices": [choice],
    }
    if scenario.wire.usage != "never":
        body["usage"] = usage(answer, answer.tokens, scenario, chat=chat)
    return of(200, body)
