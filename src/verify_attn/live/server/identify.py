"""Which engine answers: by what only it says, and by what only it is named."""

from __future__ import annotations

from verify_attn.live.acceptance.figures import member
from verify_attn.live.acceptance.prometheus import Samples
from verify_attn.live.server.answers import Answers
from verify_attn.live.server.facts import Engine

_METRICS: dict[str, Engine] = {
    "sglang:": "SGLang",
    "vllm:": "vLLM",
    "llamacpp:": "llama.cpp",
    "trtllm_": "TensorRT-LLM",
    "tgi_": "TGI",
    "verify_attn:": "verify-attn",
}

_OWNERS: dict[str, Engine] = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "TensorRT-LLM",
    "organization_owner": "LM Studio",
    "verify-attn": "verify-attn",
}

# Only transformers serve has these two (transformers/cli/serving/server.py, 5.19).
_TRANSFORMERS_ROUTES = {"/load_model", "/reset"}


def identify(answers: Answers) -> tuple[Engine, str]:
    """The engine and what it was told by; ("unknown", ...) rather than a guess."""
    for path in ("/server_info", "/get_server_info"):
        info = answers.json(path)
        if isinstance(info, dict) and "internal_states" in info:
            return "SGLang", f"{path} has internal_states"
    if isinstance(member(answers.json("/props"), "default_generation_settings"), dict):
        return "llama.cpp", "/props has default_generation_settings"
    samples = answers.metrics()
    if isinstance(samples, Samples):
        found = [prefix for prefix in _METRICS if samples.has_prefix(prefix)]
        if len(found) == 1:
            return _METRICS[found[0]], f"/metrics has names that start with {found[0]}"
    for model in answers.models():
        owner = model.get("owned_by")
        if isinstance(owner, str) and owner in _OWNERS:
            return _OWNERS[owner], f"/v1/models says owned_by {owner}"
    info = answers.json("/info")
    if isinstance(info, dict) and "max_total_tokens" in info and "model_id" in info:
        return "TGI", "/info has model_id and max_total_tokens"
    routes = member(answers.json("/openapi.json"), "paths")
    if isinstance(routes, dict) and routes.keys() >= _TRANSFORMERS_ROUTES:
        return "transformers serve", "/openapi.json lists /load_model and /reset"
    listed = member(answers.json("/api/v0/models"), "data")
    if isinstance(listed, list) and any(member(m, "compatibility_type") for m in listed):
        return "LM Studio", "/api/v0/models lists compatibility_type"
    return "unknown", "no answer that only one engine gives"
