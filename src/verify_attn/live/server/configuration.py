"""The configuration of each engine, out of the answers already gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import count, member
from verify_attn.live.acceptance.prometheus import Samples
from verify_attn.live.reply import Fetch
from verify_attn.live.server.answers import Answers, gather
from verify_attn.live.server.facts import Fact, ServerFacts
from verify_attn.live.server.identify import identify
from verify_attn.live.server.reading import (
    as_count,
    as_text,
    digits,
    gauge,
    listed_limit,
    settings,
    some,
)
from verify_attn.live.server.secrets import redact


async def read_server(fetch: Fetch, *, timeout_s: float = 10.0) -> ServerFacts:
    """Identify a server and read what it says about itself.  No secret is kept.

    Raises `Unreachable` where the server gives no answer at all.
    """
    return facts_of(await gather(fetch, timeout_s=timeout_s))


def facts_of(answers: Answers) -> ServerFacts:
    """The same from answers at hand."""
    engine, evidence = identify(answers)
    silent = Absent(f"{engine} does not say it over HTTP")
    facts = ServerFacts(
        engine,
        evidence,
        version=as_text(answers.fact("/version", "version")),
        model_ids=answers.model_ids(),
        context_limit=silent,
        kv_capacity_tokens=silent,
        page_size=silent,
        attention_backend=silent,
        memory=silent,
        speculative=silent,
        dp_size=silent,
        max_running=silent,
        asked=answers.summary(),
    )
    reader = _READERS.get(engine)
    facts = (
        reader(answers, facts) if reader else replace(facts, context_limit=listed_limit(answers))
    )
    return _with_pool_note(facts)


def _sglang(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """``/server_info``: every argument, the scheduler's figures, one state a data-parallel rank."""
    old = isinstance(answers.json("/get_server_info"), dict)
    path = "/get_server_info" if old else "/server_info"
    info = answers.json(path)
    backends = some(info, "attention_backend", exact=False)
    pool = as_count(answers.fact(path, "max_total_num_tokens"))
    if isinstance(pool, Absent):
        pool = gauge(answers, "sglang:max_total_num_tokens")
    page = as_count(answers.fact(path, "page_size"))
    dp = as_count(answers.fact(path, "dp_size"))
    notes = facts.notes
    if isinstance(dp, Fact) and dp.value > 1:
        notes = (*notes, f"{dp.value} data-parallel ranks: the KV capacity is that of one rank")
    # context_length is null where the model's own limit serves; the list has the resolved one.
    limits = (
        listed_limit(answers),
        gauge(answers, "sglang:context_len"),
        as_count(answers.fact(path, "context_length")),
    )
    return replace(
        facts,
        version=as_text(answers.fact(path, "version")),
        context_limit=next((limit for limit in limits if isinstance(limit, Fact)), limits[-1]),
        kv_capacity_tokens=pool,
        page_size=page if isinstance(page, Fact) else gauge(answers, "sglang:page_size"),
        attention_backend=settings(backends, path, answers),
        memory=settings(
            some(
                info,
                "mem_fraction_static",
                "kv_cache_dtype",
                "chunked_prefill_size",
                "max_prefill_tokens",
                "max_req_input_len",
                "disable_radix_cache",
                "enable_hierarchical_cache",
                "cuda_graph_max_bs",
                "disable_cuda_graph",
                "tp_size",
            ),
            path,
            answers,
        ),
        speculative=settings(some(info, "speculative_", exact=False), path, answers),
        dp_size=dp,
        max_running=as_count(answers.fact(path, "max_running_requests")),
        notes=notes,
    )


def _vllm(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """``max_model_len`` of the list, and the labels of ``vllm:cache_config_info``."""
    samples = answers.metrics()
    name = "vllm:cache_config_info"
    series = samples.series(name) if isinstance(samples, Samples) else {}
    engines = sorted(dict(labels).get("engine", "0") for labels in series)
    cache = dict(next(iter(series))) if series else {}
    why = Absent(samples.reason if isinstance(samples, Absent) else f"/metrics has no {name}")
    path = f"/metrics {name}"
    block, blocks = digits(cache.get("block_size")), digits(cache.get("num_gpu_blocks"))
    pool = digits(cache.get("kv_cache_size_tokens"))
    capacity: Fact | Absent = why
    if pool:
        capacity = Fact(pool, f"{path}{{kv_cache_size_tokens}}")
    elif block and blocks:
        capacity = Fact(block * blocks, f"{path}{{num_gpu_blocks}} x {{block_size}}")
    wanted = (
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "cache_dtype",
        "enable_prefix_caching",
        "num_gpu_blocks",
        "kv_cache_max_concurrency",
        "sliding_window",
    )
    memory = {key: cache[key] for key in wanted if key in cache}
    drafts = isinstance(samples, Samples) and bool(samples.series("vllm:spec_decode_num_drafts"))
    speculative: Fact | Absent = facts.speculative
    if isinstance(samples, Samples):
        # The method itself is in vLLM's log only.
        speculative = Fact({"counts_drafts": drafts}, "/metrics vllm:spec_decode_num_drafts")
    notes = facts.notes
    if len(engines) > 1:
        notes = (*notes, f"{len(engines)} engines: the KV capacity is that of one of them")
    return replace(
        facts,
        context_limit=listed_limit(answers),
        kv_capacity_tokens=capacity,
        page_size=Fact(block, f"{path}{{block_size}}") if block else why,
        memory=Fact(redact(memory), path) if memory else why,
        speculative=speculative,
        dp_size=Fact(len(engines), f"{path}{{engine}}") if engines else why,
        notes=notes,
    )


def _llamacpp(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """``/props`` and ``/slots``; the context there is that of one slot."""
    listed = answers.json("/slots")
    slots = [s for s in listed if isinstance(s, dict)] if isinstance(listed, list) else []
    context = as_count(answers.fact("/props", "default_generation_settings", "n_ctx"))
    smallest = min((n for slot in slots if (n := count(slot.get("n_ctx")))), default=None)
    notes = facts.notes
    if smallest and (isinstance(context, Absent) or smallest < context.value):
        context = Fact(smallest, "/slots [].n_ctx")
    trained = next((n for m in answers.models() if (n := count(_trained(m)))), None)
    if trained and isinstance(context, Fact) and trained != context.value:
        notes = (
            *notes,
            f"n_ctx_train {trained} is what the model was trained for; a request gets "
            f"{context.value}",
        )
    speculative: Fact | Absent = Absent(answers.why_not("/slots"))
    if any("speculative" in slot for slot in slots):
        # /props says "none" while a draft model runs; the slots know.
        drafting: dict[str, Any] = {"speculative": any(s.get("speculative") is True for s in slots)}
        # A slot shows its settings once it has had a request.
        types = {str(t) for s in slots if (t := member(s, "params", "speculative.types"))}
        if types:
            drafting["types"] = sorted(types)
        speculative = Fact(drafting, "/slots [].speculative")
    return replace(
        facts,
        version=as_text(answers.fact("/props", "build_info")),
        context_limit=context,
        kv_capacity_tokens=Absent(
            "llama.cpp shows the context of a slot; whether slots share one pool it does not say"
        ),
        speculative=speculative,
        max_running=as_count(answers.fact("/props", "total_slots")),
        notes=notes,
    )


def _trained(model: dict[str, Any]) -> Any:
    return member(model, "meta", "n_ctx_train")


def _tensorrt_llm(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """The labels of the ``trtllm_*_config_info`` gauges, where the counters are on."""

    def info(kind: str) -> Fact | Absent:
        name = f"trtllm_{kind}_config_info"
        samples = answers.metrics()
        if isinstance(samples, Absent):
            return samples
        series = samples.series(name)
        if not series:
            return Absent(f"/metrics has no {name}")
        return Fact(redact(dict(next(iter(series)))), f"/metrics {name}")

    return replace(
        facts,
        context_limit=listed_limit(answers),
        memory=info("kv_cache"),
        speculative=info("speculative"),
    )


def _tgi(answers: Answers, facts: ServerFacts) -> ServerFacts:
    names = answers.model_ids()
    return replace(
        facts,
        version=as_text(answers.fact("/info", "version")),
        model_ids=names if isinstance(names, Fact) else answers.fact("/info", "model_id"),
        context_limit=as_count(answers.fact("/info", "max_total_tokens")),
        max_running=as_count(answers.fact("/info", "max_concurrent_requests")),
    )


def _lm_studio(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """``/api/v0/models``: ``max_context_length`` is the model's, not what was loaded."""
    listed = member(answers.json("/api/v0/models"), "data")
    loaded = [
        (m.get("id"), n)
        for m in (listed if isinstance(listed, list) else ())
        if member(m, "state") == "loaded" and (n := count(m.get("loaded_context_length")))
    ]
    if len({n for _, n in loaded}) == 1:
        return replace(
            facts, context_limit=Fact(loaded[0][1], "/api/v0/models data[].loaded_context_length")
        )
    why = "several loaded models differ" if loaded else answers.why_not("/api/v0/models")
    return replace(facts, context_limit=Absent(f"no loaded_context_length: {why}"))


def _own(answers: Answers, facts: ServerFacts) -> ServerFacts:
    """``/server_info`` of this project's own server, `verify-attn serve`."""
    path = "/server_info"
    info = answers.json(path)
    said = member(info, "notes")
    notes = [note for note in said if isinstance(note, str)] if isinstance(said, list) else []
    named = {"engine", "version", "model", "notes", "kv_tokens", "page_size", *_OWN_SPECULATION}
    rest = info.keys() - named if isinstance(info, dict) else ()
    return replace(
        facts,
        context_limit=listed_limit(answers),
        kv_capacity_tokens=as_count(answers.fact(path, "kv_tokens")),
        page_size=as_count(answers.fact(path, "page_size")),
        attention_backend=as_text(answers.fact(path, "kernel")),
        memory=settings(some(info, *rest), path, answers),
        speculative=settings(some(info, *_OWN_SPECULATION), path, answers),
        max_running=as_count(answers.fact(path, "max_running")),
        notes=(*facts.notes, *redact(notes)),
    )


_OWN_SPECULATION = ("drafter", "budget", "lossless")

_READERS = {
    "SGLang": _sglang,
    "vLLM": _vllm,
    "llama.cpp": _llamacpp,
    "TensorRT-LLM": _tensorrt_llm,
    "TGI": _tgi,
    "LM Studio": _lm_studio,
    "verify-attn": _own,
}


def _with_pool_note(facts: ServerFacts) -> ServerFacts:
    context, pool = facts.context_limit, facts.kv_capacity_tokens
    if isinstance(context, Fact) and isinstance(pool, Fact) and context.value > pool.value:
        note = (
            f"the context limit {context.value} exceeds the KV pool of {pool.value} tokens: a "
            "legal prompt may not fit"
        )
        return replace(facts, notes=(*facts.notes, note))
    return facts
