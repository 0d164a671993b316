"""The endpoints beside generation: health, models, counters, configuration."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.live.truth.log import RequestLog
from tests.live.truth.refuse import Answer, nested, of

if TYPE_CHECKING:
    from tests.live.truth.server import Server

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Counters:
    """What the engine has done so far; speculation's are zero without drafts."""

    requests: int = 0
    running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    steps: int = 0  # decode steps, each of which verifies one draft
    accepted: int = 0  # drafts, so the bonus tokens are left out
    per_position: tuple[int, ...] = ()


def counters(server: Server) -> Counters:
    """From the steps that have ended by now, and somebody else's."""
    now = time.monotonic_ns()
    drafts = server.scenario.decode.drafts
    found = Counters(running=len([p for p in server.playing if p.record.steps]))
    positions = [0] * drafts
    for record, _ in server.answers:
        done = [s.committed for s in record.steps if s.end_ns <= now]
        if not done:
            continue
        found.requests += 1
        found.prompt_tokens += record.prompt_tokens
        found.cached_tokens += record.cached_tokens
        found.generated += sum(done)
        found.steps += len(done) - 1
        found.accepted += sum(done[1:]) - len(done[1:])
        for n in done[1:]:
            for position in range(min(n - 1, drafts)):
                positions[position] += 1
    side = server.scenario.side
    if side.foreign_tok_per_s:
        tokens = int(side.foreign_tok_per_s * (now - server.started_ns) / 1e9)
        steps = int(tokens / side.foreign_committed)
        found.generated += tokens
        found.steps += steps
        found.accepted += tokens - steps
        found.running += 1
        found.requests += 1
    found.per_position = tuple(positions)
    return found


def side_answer(server: Server, record: RequestLog) -> Answer:
    """Any path that is no generation."""
    scenario, path = server.scenario, record.path.partition("?")[0]
    side, engine = scenario.side, scenario.engine
    if path == "/health":
        return of(side.health, {"status": "ok"} if side.health == 200 else {"status": "bad"})
    if path == "/v1/models":
        return of(200, _models(server))
    if path == "/metrics" and side.metrics and engine != "plain":
        write = {"vllm": _vllm, "sglang": _sglang, "llamacpp": _llamacpp}[engine]
        return Answer(200, write(server).encode(), _TEXT)
    if path in ("/server_info", "/get_server_info") and engine == "sglang":
        return of(200, _server_info(server))
    if path == "/props" and engine == "llamacpp":
        context = scenario.tokenizer.context_limit
        return of(200, {"default_generation_settings": {"n_ctx": context}, "total_slots": 1})
    if path == "/flush_cache" and side.flush:
        status = side.flush[min(server.flushes, len(side.flush) - 1)]
        server.flushes += 1
        if status == 200:
            server.prompts.clear()
            server.flushed_ns = time.monotonic_ns()
        said = "Cache flushed." if status == 200 else "Flush cache failed: requests are running."
        return Answer(status, f"{said}\n".encode(), "text/plain; charset=utf-8")
    return nested(404, "Not Found", "NotFoundError")


def _models(server: Server) -> dict[str, Any]:
    scenario = server.scenario
    model: dict[str, Any] = {"id": scenario.model, "object": "model", "created": 1790000000}
    if scenario.engine == "llamacpp":
        # The context of training, which is not the one served.
        model["meta"] = {"n_ctx_train": 4 * scenario.tokenizer.context_limit}
    elif scenario.side.max_model_len:
        model["max_model_len"] = scenario.tokenizer.context_limit
    return {"object": "list", "data": [model]}


def _lines(name: str, kind: str, value: float, labels: str = "") -> list[str]:
    return [f"# HELP {name} .", f"# TYPE {name} {kind}", f"{name}{labels} {value}"]


def _vllm(server: Server) -> str:
    found, drafts = counters(server), server.scenario.decode.drafts
    names = f'engine="0",model_name="{server.scenario.model}"'
    labels = f"{{{names}}}"
    lines = _lines("vllm:num_requests_running", "gauge", float(found.running), labels)
    lines += _lines("vllm:num_requests_waiting", "gauge", 0.0, labels)
    totals = {
        "vllm:prompt_tokens": found.prompt_tokens,
        "vllm:generation_tokens": found.generated,
        "vllm:prefix_cache_queries": found.prompt_tokens,
        "vllm:prefix_cache_hits": found.cached_tokens,
    }
    if drafts:
        totals["vllm:spec_decode_num_drafts"] = found.steps
        totals["vllm:spec_decode_num_draft_tokens"] = found.steps * drafts
        totals["vllm:spec_decode_num_accepted_tokens"] = found.accepted
    for name, value in totals.items():
        lines += _lines(f"{name}_total", "counter", float(value), labels)
        lines += _lines(f"{name}_created", "gauge", 1.7960305026302e09, labels)
    if drafts:
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f"# TYPE {name} counter")
        pairs = enumerate(found.per_position)
        lines += [f'{name}{{{names},position="{i}"}} {float(n)}' for i, n in pairs]
    return "\n".join(lines) + "\n"


def _sglang(server: Server) -> str:
    found, scenario = counters(server), server.scenario
    labels = f'{{engine_type="unified",model_name="{scenario.model}",pp_rank="0",tp_rank="0"}}'
    lines = _lines("sglang:num_running_reqs", "gauge", float(found.running), labels)
    lines += _lines("sglang:num_queue_reqs", "gauge", 0.0, labels)
    lines += _lines("sglang:prompt_tokens_total", "counter", float(found.prompt_tokens), labels)
    lines += _lines("sglang:generation_tokens_total", "counter", float(found.generated), labels)
    lines += _lines("sglang:cached_tokens_total", "counter", float(found.cached_tokens), labels)
    lines += _lines("sglang:num_requests_total", "counter", float(found.requests), labels)
    lines += _lines("sglang:context_len", "gauge", float(scenario.tokenizer.context_limit), labels)
    length, rate = _last_interval(server)
    lines += _lines("sglang:spec_accept_length", "gauge", length, labels)
    lines += _lines("sglang:spec_accept_rate", "gauge", rate, labels)
    return "\n".join(lines) + "\n"


def _finished_steps(server: Server) -> list[int]:
    """Committed tokens of each decode step since the last flush, which resets SGLang's means."""
    since, now = server.flushed_ns, time.monotonic_ns()
    ended = [(s.end_ns, s.committed) for r, _ in server.answers for s in r.steps[1:]]
    return [committed for end, committed in sorted(ended) if since <= end <= now]


def _last_interval(server: Server, interval: int = 40) -> tuple[float, float]:
    """SGLang's gauges: of the last 40 whole steps that it logged, 0 before or without drafts."""
    steps, drafts = _finished_steps(server), server.scenario.decode.drafts
    last = steps[: len(steps) // interval * interval][-interval:]
    if not last or not drafts:
        return 0.0, 0.0
    return sum(last) / len(last), (sum(last) - len(last)) / (len(last) * drafts)


def _server_info(server: Server) -> dict[str, Any]:
    scenario = server.scenario
    steps = _finished_steps(server)
    steps = steps[: len(steps) // 40 * 40]
    state: dict[str, Any] = {"last_gen_throughput": 1 / scenario.decode.step_s}
    if steps and scenario.decode.drafts:
        state["avg_spec_accept_length"] = sum(steps) / len(steps)
    return {
        "model_path": scenario.model,
        "page_size": 1,
        "attention_backend": "triton",
        "mem_fraction_static": 0.93,
        "chunked_prefill_size": 4096,
        "context_length": scenario.tokenizer.context_limit,
        "max_total_num_tokens": scenario.tokenizer.context_limit,
        "speculative_num_draft_tokens": scenario.decode.drafts + 1,
        "internal_states": [state],
    }


def _llamacpp(server: Server) -> str:
    found, drafts = counters(server), server.scenario.decode.drafts
    new = found.prompt_tokens - found.cached_tokens
    totals = {
        "prompt_tokens_total": new,
        "prompt_tokens_cached_total": found.cached_tokens,
        "tokens_predicted_total": found.generated,
        "spec_decode_num_drafts_total": found.steps if drafts else 0,
        "spec_decode_num_draft_tokens_total": found.steps * drafts,
        "spec_decode_num_accepted_tokens_total": found.accepted,
    }
    lines = []
    for name, value in totals.items():
        lines += _lines(f"llamacpp:{name}", "counter", value)
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f"# TYPE {name} counter"] if drafts else []
    lines += [f'{name}{{position="{i}"}} {n}' for i, n in enumerate(found.per_position)]
    lines += _lines("llamacpp:requests_processing", "gauge", found.running)
    lines += _lines("llamacpp:requests_deferred", "gauge", 0)
    return "\n".join(lines) + "\n"
