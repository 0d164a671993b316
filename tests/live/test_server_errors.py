"""Error texts and too-long prompts in each engine's own form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.metrics_text import RECORDINGS
from verify_attn.live.server import context_overflow, error_message, error_status

OVERFLOWS: list[tuple[str, int, Any]] = [
    ("sglang-prompt", 400, {
        "object": "error", "type": "BadRequestError", "code": 400,
        "message": "The input (9000 tokens) is longer than the model's context length (8192 "
        "tokens)."}),
    ("sglang-prompt-and-answer", 400, {
        "object": "error", "code": 400,
        "message": "Requested token count exceeds the model's maximum context length of 8192 "
        "tokens. You requested a total of 9000 tokens"}),
    ("sglang-generate-stream", 200, {
        "error": {"message": "The input (9000 tokens) is longer than the model's context length"}}),
    ("sglang-kv-pool", 400, {
        "message": "Input length (9000 tokens) exceeds the maximum allowed length (8000 tokens)."}),
    ("vllm", 400, {"error": {
        "message": "This model's maximum context length is 2048 tokens. However, your request has "
        "8 input tokens plus 2045 'max_tokens'", "type": "BadRequestError", "code": 400}}),
    ("vllm-4667-flat", 400, {
        "object": "error", "message": "This model's maximum context length is 2048 tokens.",
        "code": 400}),
    ("vllm-33418-difference", 400, {
        "error": {"message": "This model's maximum context length is 3 tokens."}}),
    ("llamacpp", 400, {"error": {
        "code": 400, "message": "request (4390 tokens) exceeds the available context size (4096 "
        "tokens), try increasing it", "type": "exceed_context_size_error"}}),
    ("llamacpp-16486-stream", 200, {"error": {
        "code": 400, "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error"}}),
    ("llamacpp-19774-500", 500, {"error": {
        "code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}),
    ("tgi", 422, {
        "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. "
        "Given: 9000", "error_type": "validation"}),
    ("fastapi-detail", 400, {"detail": "prompt exceeds the maximum context length of 2048"}),
    ("trtllm", 400, {
        "object": "error", "message": "The sum of prompt length (9000) should not exceed "
        "max_seq_len (8192)"}),
    ("openai", 400, {"error": {"message": "too many", "code": "context_length_exceeded"}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body"), [o[1:] for o in OVERFLOWS], ids=[o[0] for o in OVERFLOWS]
)
def test_overflow_of_each_engine(status: int, body: Any) -> None:
    assert context_overflow(status, body)


@pytest.mark.parametrize(
    "name", ["vllm_llama_err_toolong.txt", "vllm_llama_err_maxtokens.txt",
             "llamacpp_llama_err_toolong.txt"],
)  # fmt: skip
def test_recorded_refusals(name: str) -> None:
    body = (RECORDINGS / name).read_bytes()
    assert context_overflow(400, body)
    assert context_overflow(400, body.decode()) == context_overflow(400, body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"choices": [{"delta": {"content": "the maximum context length is exceeded"}}]}),
        (404, (RECORDINGS / "vllm_llama_err_badmodel.txt").read_bytes()),
        (400, (RECORDINGS / "hfserve_llama_err_badmodel.txt").read_bytes()),
        (429, {"error": {"message": "rate limit for the maximum context length tier"}}),
        (500, {"error": {"message": "EngineCore encountered an issue."}}),
        (500, {"error": {"message": "CUDA out of memory"}}),
        (502, "<html>maximum context length</html>"),
        (400, ""),
        (400, None),
        (200, {"error": None}),
        # lmstudio#2339: nothing at all; the stream's emptiness is the only sign.
        (200, b""),
    ],
)
def test_what_is_no_overflow(status: int, body: Any) -> None:
    assert context_overflow(status, body) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "a"}, "message": "b", "detail": "c"}, "a"),
        ({"error": {"message": None}, "message": "b", "detail": "c"}, "b"),
        ({"message": "", "detail": "c", "error": "d"}, "c"),
        ({"error": "d", "error_type": "generation"}, "d"),
        ({"detail": [{"loc": ["body"], "msg": "one"}, {"msg": "two"}]}, "one; two"),
        ({"error": {"code": 500}}, 'an error without a message: {"code": 500}'),
        ({"error": None}, None),
        ({"error": {}}, None),
        ({"choices": []}, None),
        ([1], None),
        ("text", None),
        (None, None),
    ],
)
def test_where_the_words_are(body: Any, words: str | None) -> None:
    assert error_message(body) == words


def test_words_are_short_and_hold_no_key() -> None:
    long = error_message({"message": "x" * 100_000})
    assert long is not None
    assert len(long) < 600
    assert "100000 characters" in long
    assert error_message({"error": {"message": "Incorrect API key: sk-abcdefghijkl"}}) == (
        "Incorrect API key: <redacted>"
    )


@pytest.mark.parametrize(
    ("status", "body", "counts"),
    [
        (400, {"error": {"code": 500}}, 400),
        (200, {"error": {"code": 500}}, 500),
        (200, {"error": {"code": "x"}, "code": 400}, 400),
        (200, {"error": {"message": "m"}}, 200),
        (200, None, 200),
        (200, {"code": 10**400}, 200),
    ],
)
def test_the_status_that_counts(status: int, body: Any, counts: int) -> None:
    assert error_status(status, body) == counts
