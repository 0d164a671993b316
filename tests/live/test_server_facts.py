"""What a server is and says about itself, over recorded and documented answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.live.metrics_text import DATA, RECORDINGS
from verify_attn.live.absent import Absent
from verify_attn.live.reply import Reply, Unreachable
from verify_attn.live.server import Fact, ServerFacts, flush_cache, read_server, redact

LLAMACPP = DATA / "llamacpp"


class Server:
    """Answers from a table: "METHOD /path" -> (status, body), or a list of them in turn."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = dict(table)
        self.asked: list[str] = []

    async def __call__(
        self, method: str, path: str, *, body: Any = None, timeout_s: float = 30.0
    ) -> Reply:
        self.asked.append(f"{method} {path}")
        found = self.table.get(f"{method} {path}", self.table.get(f"{method} {path.split('?')[0]}"))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        status, content = found or (404, {"detail": "Not Found"})
        raw = content if isinstance(content, (bytes, str)) else json.dumps(content)
        kind = "application/json" if not isinstance(content, (bytes, str)) else "text/plain"
        return Reply(status, kind, raw if isinstance(raw, bytes) else raw.encode())


def read(table: Mapping[str, Any]) -> ServerFacts:
    facts = asyncio.run(read_server(Server(table)))
    json.dumps(facts.as_record(), allow_nan=False)
    return facts


def value(fact: Fact | Absent) -> Any:
    assert isinstance(fact, Fact), fact
    assert fact.path.startswith("/")
    return fact.value


def models(owner: str, **more: Any) -> tuple[int, Any]:
    return 200, {"object": "list", "data": [{"id": "m", "owned_by": owner, **more}]}


SGLANG_INFO = {
    "version": "0.5.23",
    "model_path": "org/model",
    "tokenizer_path": "org/model",
    "api_key": "sk-very-secret-value",
    "admin_api_key": "another-secret",
    "context_length": None,
    "max_total_num_tokens": 163840,
    "max_req_input_len": 262138,
    "page_size": 1,
    "attention_backend": "triton",
    "decode_attention_backend": "triton",
    "mem_fraction_static": 0.85,
    "kv_cache_dtype": "auto",
    "dp_size": 2,
    "speculative_algorithm": "DFLASH",
    "speculative_num_draft_tokens": 16,
    "speculative_draft_model_path": None,
    "max_running_requests": 48,
    "internal_states": [{"avg_spec_accept_length": 2.9}, {}],
}


def test_sglang_server_info() -> None:
    facts = read(
        {
            "GET /v1/models": models("sglang", max_model_len=262144),
            "GET /server_info": (200, SGLANG_INFO),
        }
    )
    assert facts.engine == "SGLang"
    assert value(facts.version) == "0.5.23"
    assert value(facts.context_limit) == 262144
    assert value(facts.kv_capacity_tokens) == 163840
    assert facts.usable_tokens == 163840
    assert value(facts.page_size) == 1
    assert value(facts.attention_backend) == {
        "attention_backend": "triton",
        "decode_attention_backend": "triton",
    }
    assert value(facts.memory)["mem_fraction_static"] == 0.85
    assert value(facts.speculative) == {
        "speculative_algorithm": "DFLASH",
        "speculative_num_draft_tokens": 16,
    }
    assert value(facts.dp_size) == 2
    assert any("exceeds the KV pool" in note for note in facts.notes)
    assert any("2 data-parallel ranks" in note for note in facts.notes)
    assert "secret" not in json.dumps(facts.as_record())


def test_sglang_by_its_older_path() -> None:
    facts = read({"GET /get_server_info": (200, {**SGLANG_INFO, "context_length": 8192})})
    assert facts.engine == "SGLang"
    assert facts.context_limit == Fact(8192, "/get_server_info context_length")
    assert isinstance(facts.model_ids, Absent)


def test_sglang_whose_server_info_wants_an_admin_key() -> None:
    text = "sglang:context_len 4096\nsglang:max_total_num_tokens 9000\nsglang:page_size 64\n"
    facts = read({"GET /server_info": (401, {"error": "no"}), "GET /metrics": (200, text)})
    assert facts.engine == "SGLang"
    assert value(facts.context_limit) == 4096
    assert value(facts.kv_capacity_tokens) == 9000
    assert value(facts.page_size) == 64
    assert facts.attention_backend == Absent("/server_info: HTTP 401")


def test_vllm_recorded_metrics() -> None:
    facts = read(
        {
            "GET /v1/models": models("vllm", max_model_len=2048),
            "GET /version": (200, {"version": "0.32.0"}),
            "GET /metrics": (200, (RECORDINGS / "vllm_llama_ngram_metrics.txt").read_bytes()),
        }
    )
    assert facts.engine == "vLLM"
    assert value(facts.version) == "0.32.0"
    assert value(facts.model_ids) == ["m"]
    assert value(facts.context_limit) == 2048
    assert value(facts.kv_capacity_tokens) == 2097152
    assert value(facts.page_size) == 128
    assert value(facts.dp_size) == 1
    assert value(facts.memory)["gpu_memory_utilization"] == "0.92"
    assert value(facts.speculative) == {"counts_drafts": True}
    assert facts.notes == ()


def test_vllm_capacity_from_blocks_and_several_engines() -> None:
    text = "".join(
        f'vllm:cache_config_info{{engine="{k}",block_size="16",num_gpu_blocks="100"}} 1\n'
        for k in range(2)
    )
    facts = read({"GET /metrics": (200, text)})
    assert value(facts.kv_capacity_tokens) == 1600
    assert value(facts.dp_size) == 2
    assert isinstance(facts.context_limit, Absent)
    assert any("2 engines" in note for note in facts.notes)


def test_vllm_without_metrics() -> None:
    facts = read({"GET /v1/models": models("vllm", max_model_len=2048)})
    assert facts.engine == "vLLM"
    assert isinstance(facts.kv_capacity_tokens, Absent)
    assert facts.kv_capacity_tokens.reason.startswith("metrics unavailable")
    assert facts.usable_tokens == 2048


def llamacpp(**replaced: Any) -> dict[str, Any]:
    return {
        "GET /v1/models": (200, json.loads((LLAMACPP / "models.json").read_text())),
        "GET /props": (200, json.loads((LLAMACPP / "props.json").read_text())),
        "GET /slots": (200, json.loads((LLAMACPP / "slots.json").read_text())),
        "GET /metrics": (200, (LLAMACPP / "after.metrics.txt").read_bytes()),
        **replaced,
    }


def test_llamacpp_recorded() -> None:
    facts = read(llamacpp())
    assert facts.engine == "llama.cpp"
    assert value(facts.model_ids) == ["tiny"]
    assert value(facts.max_running) == 2
    # /props says that nothing is drafted; the slots and the counters know better.
    assert value(facts.speculative) == {"speculative": True, "types": ["draft-simple"]}
    assert isinstance(facts.kv_capacity_tokens, Absent)


def test_llamacpp_n_ctx_train_is_not_the_served_context() -> None:
    facts = read(llamacpp())
    assert value(facts.context_limit) == 2048
    assert any("16384" in note and "2048" in note for note in facts.notes)


def test_llamacpp_context_is_that_of_the_smallest_slot() -> None:
    facts = read(llamacpp(**{"GET /slots": (200, [{"id": 0, "n_ctx": 512}, {"id": 1}])}))
    assert facts.context_limit == Fact(512, "/slots [].n_ctx")


def test_tgi_info() -> None:
    info = {"model_id": "org/m", "max_total_tokens": 4096, "version": "3.3", "max_input_tokens": 1}
    facts = read({"GET /info": (200, info)})
    assert facts.engine == "TGI"
    assert value(facts.context_limit) == 4096
    assert value(facts.model_ids) == "org/m"


def test_lm_studio_loaded_context_is_not_the_models_own() -> None:
    listed = {
        "data": [
            {"id": "a", "state": "loaded", "max_context_length": 40960,
             "loaded_context_length": 4096, "compatibility_type": "gguf"},
            {"id": "b", "state": "not-loaded", "max_context_length": 8192},
        ]
    }  # fmt: skip
    facts = read(
        {"GET /v1/models": models("organization_owner"), "GET /api/v0/models": (200, listed)}
    )
    assert facts.engine == "LM Studio"
    assert value(facts.context_limit) == 4096
    facts = read({"GET /v1/models": models("organization_owner")})
    assert isinstance(facts.context_limit, Absent)


def test_tensorrt_llm() -> None:
    text = 'trtllm_speculative_config_info{method="MTP",api_key="k"} 1\n'
    facts = read({"GET /v1/models": models("tensorrt_llm"), "GET /metrics": (200, text)})
    assert facts.engine == "TensorRT-LLM"
    assert value(facts.speculative) == {"method": "MTP", "api_key": "<redacted>"}
    assert isinstance(facts.context_limit, Absent)


def test_transformers_serve_by_its_routes() -> None:
    routes = {"paths": {"/load_model": {}, "/reset": {}, "/v1/models": {}}}
    facts = read({"GET /openapi.json": (200, routes), "GET /v1/models": (500, "offline")})
    assert facts.engine == "transformers serve"
    assert isinstance(facts.model_ids, Absent)


def test_an_unknown_server_is_not_guessed() -> None:
    facts = read({"GET /v1/models": models("me", max_model_len=2048)})
    assert facts.engine == "unknown"
    assert value(facts.context_limit) == 2048
    assert facts.asked["/metrics"] == "404"
    assert read({}).engine == "unknown"


def test_freetoken_172_models_may_answer_where_nothing_else_does() -> None:
    gone = Unreachable("timed out after 10 s")
    table = {"GET /v1/models": models("vllm")}
    table |= {f"GET {p}": gone for p in ("/server_info", "/props", "/metrics")}
    facts = read(table)
    assert facts.engine == "vLLM"
    assert "timed out" in facts.asked["/metrics"]


def test_no_answer_at_all_is_raised_after_two_tries() -> None:
    class Dead(Server):
        async def __call__(
            self, method: str, path: str, *, body: Any = None, timeout_s: float = 30.0
        ) -> Reply:
            self.asked.append(path)
            raise Unreachable("connection refused")

    dead = Dead({})
    with pytest.raises(Unreachable, match="connection refused"):
        asyncio.run(read_server(dead))
    assert len(dead.asked) == 2


@pytest.mark.parametrize("junk", [None, 3, "x", [], [[]], {"data": 3}, {"data": [None, {"id": 4}]}])
def test_junk_answers_are_absent(junk: Any) -> None:
    paths = ("/v1/models", "/server_info", "/props", "/version", "/info", "/slots", "/metrics")
    read({f"GET {path}": (200, junk) for path in paths})
    facts = read(
        {
            "GET /server_info": (200, {"internal_states": junk, "max_total_num_tokens": junk,
                                       "page_size": -1, "dp_size": True, "version": junk}),
            "GET /v1/models": (200, junk),
        }
    )  # fmt: skip
    assert facts.engine == "SGLang"
    for fact in (facts.kv_capacity_tokens, facts.page_size, facts.dp_size):
        assert isinstance(fact, Absent) or fact.value == 3


SECRET = "c0ffee-hush"


@pytest.mark.parametrize(
    "holder",
    [
        {"api_key": SECRET},
        {"apiKey": SECRET, "HF_TOKEN": SECRET, "Authorization": f"Bearer {SECRET}"},
        {"server_args": {"admin_api_key": SECRET, "nested": [{"password": SECRET}]}},
        {"token": {"value": SECRET}, "auth_token": [SECRET]},
        {"env": [{"name": "API_KEY", "value": SECRET}]},
        {"env": [{"key": "SECRET", "value": SECRET}]},
        {"cmd": f"serve --port 80 --api-key {SECRET} --hf-token {SECRET}"},
        {"cmd": f"API_KEY={SECRET} serve", "config": f"Config(api_key='{SECRET}', x=1)"},
        {"headers": [f"Authorization: Bearer {SECRET}", f"bearer {SECRET}"]},
        {"url": f"https://user:{SECRET}@example.org/x"},
        {"ssl_keyfile_password": SECRET, "client-secret": SECRET},
        {"text": "x" * 1000 + f"api_key={SECRET}"},
        {"api_key": 12345678901},
    ],
)
def test_secrets_are_redacted(holder: dict[str, Any]) -> None:
    text = json.dumps(redact(holder))
    assert SECRET not in text
    assert "12345678901" not in text


def test_counts_of_tokens_and_tokenizers_stay() -> None:
    kept = {
        "max_total_num_tokens": 4096,
        "speculative_num_draft_tokens": 16,
        "token_capacity": 9,
        "token_usage": 0.5,
        "tokenizer_path": "org/model",
        "tokenizer_mode": "auto",
        "num_key_value_heads": 8,
        "api_key": None,
        "enable_key": False,
        "args": "--max-num-batched-tokens 4096 --tokenizer org/m",
        "text": "max_num_tokens=4096, page_size=1",
    }
    assert redact(kept) == kept


def flush(table: Mapping[str, Any], engine: Any, limit_s: float = 60.0) -> tuple[Any, Server]:
    server, now = Server(table), [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    found = asyncio.run(
        flush_cache(server, engine, limit_s=limit_s, sleep=sleep, clock=lambda: now[0])
    )
    return found, server


def test_sglang_21413_flush_is_retried_while_busy() -> None:
    busy = (400, "Flush cache failed: not idle")
    found, server = flush({"POST /flush_cache": [busy, busy, (200, "Cache flushed.")]}, "SGLang")
    assert (found.outcome, found.attempts) == ("done", 3)
    assert server.asked[0] == "POST /flush_cache?timeout=30"


def test_sglang_33527_flush_that_never_comes_fails() -> None:
    found, _ = flush({"POST /flush_cache": (400, "not idle")}, "SGLang", limit_s=5)
    assert found.outcome == "failed"
    assert "still busy after 6 attempts" in found.why
    assert "not idle" in found.why


def test_sglang_12107_unreachable_flush_is_failed() -> None:
    found, _ = flush({"POST /flush_cache": Unreachable("connection refused")}, "SGLang")
    assert (found.outcome, found.why) == ("failed", "no answer: connection refused")


def test_sglang_flush_refused_for_want_of_a_key() -> None:
    found, _ = flush({"POST /flush_cache": (401, {"error": "Unauthorized"})}, "SGLang")
    assert found.outcome == "failed"
    assert "HTTP 401 (Unauthorized)" in found.why
    assert flush({}, "SGLang")[0].outcome == "not offered"


def test_vllm_success_false_is_no_success() -> None:
    no, yes = (200, {"success": False}), (200, {"success": True})
    found, _ = flush({"POST /reset_prefix_cache": [no, yes]}, "vLLM")
    assert (found.outcome, found.attempts) == ("done", 2)
    found, _ = flush({"POST /reset_prefix_cache": no}, "vLLM", limit_s=2)
    assert found.outcome == "failed"
    assert "success false" in found.why
    assert flush({"POST /reset_prefix_cache": (200, "")}, "vLLM")[0].outcome == "done"
    found, _ = flush({}, "vLLM")
    assert found.outcome == "not offered"
    assert "VLLM_SERVER_DEV_MODE" in found.why


def test_llamacpp_erases_every_slot() -> None:
    slots = (200, [{"id": 0}, {"id": 1}])
    table: dict[str, Any] = {"GET /slots": slots}
    table |= {f"POST /slots/{k}": (200, {"n_erased": 3}) for k in (0, 1)}
    found, server = flush(table, "llama.cpp")
    assert (found.outcome, found.why) == ("done", "2 slots erased")
    assert "POST /slots/1?action=erase" in server.asked
    # As recorded from a server that was started without the switch.
    refusal = (501, {"error": {"code": 501, "message": "This server does not support slots action."
                               " Start it with `--slot-save-path`"}})  # fmt: skip
    found, _ = flush({"GET /slots": slots, "POST /slots/0": refusal}, "llama.cpp")
    assert found.outcome == "not offered"
    assert "--slot-save-path" in found.why
    assert "cache_prompt" in found.why
    assert flush({}, "llama.cpp")[0].outcome == "not offered"


@pytest.mark.parametrize("engine", ["TensorRT-LLM", "TGI", "transformers serve", "unknown"])
def test_engines_without_a_route(engine: str) -> None:
    found, server = flush({}, engine)
    assert found.outcome == "not offered"
    assert server.asked == []
