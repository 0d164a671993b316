"""The named scenarios: what is wrong with each, and how to sweep it in a few seconds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from tests.live.truth.scenario import (
    Decode,
    Engine,
    Fault,
    Overflow,
    Prefill,
    Scenario,
    Side,
    Tokenizer,
    Wire,
)

CAUSES = (
    "acceptance-falls",
    "chunk-interval",
    "context-overflow",
    "early-stop",
    "fake-streaming",
    "foreign-traffic",
    "prefill-superlinear",
    "prefix-cache-hit",
    "proxy-buffering",
    "request-failed",
    "server-death",
    "stall",
    "stall-then-burst",
    "step-time-grows",
    "step-time-linear-in-context",
    "stream-truncated",
    "usage-missing",
    "warm-up",
)


@dataclass(frozen=True)
class Settings:
    """How to sweep a scenario."""

    contexts: tuple[int, ...] = (1000, 4000, 16_000)  # prompt tokens
    max_tokens: int = 400
    chat: bool = True
    first_token_s: float = 5.0  # time limits that do not end a healthy answer
    stall_s: float = 2.0


@dataclass(frozen=True)
class Named:
    """A scenario and what must be said about it.

    ``cause``: every one of it must be named, and nothing else but what ``allowed`` has, which is
    also true but need not be said.  None: nothing is wrong.
    """

    name: str
    scenario: Scenario
    cause: str | tuple[str, ...] | None = None
    allowed: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def causes(self) -> tuple[str, ...]:
        """`cause` as a tuple, empty for None."""
        return (self.cause,) if isinstance(self.cause, str) else self.cause or ()


_PLAIN = Decode(step_s=0.005, jitter=0.03)
_SPEC = Decode(step_s=0.010, jitter=0.03, committed=4.0, drafts=7)
_FIVE = Settings(contexts=(1000, 2000, 4000, 8000, 16_000), max_tokens=120)
_QUICK = Settings(contexts=(1000, 4000), max_tokens=300)
_BRIEF = Settings(max_tokens=240)
_TWO = Settings(contexts=(1000, 16_000))


def _of(engine: Engine = "plain", **parts: Any) -> Scenario:
    return Scenario(engine=engine, **{"decode": _PLAIN, **parts})


def _healthy_formats() -> Iterator[Named]:
    yield Named("plain", _of("vllm"), settings=_BRIEF)
    one_to_eight = replace(_SPEC, pattern=(1, 5, 8, 2, 7, 3, 6, 4))
    yield Named("spec-chunks-1-to-8", _of("vllm", decode=one_to_eight))
    yield Named("bundled-first-chunk", _of("sglang", decode=replace(_SPEC, first_commit=6)))
    role = Wire(role="headers", keep_alive=True)
    yield Named("role-only-first-chunk", _of("sglang", wire=role), settings=_BRIEF)
    thinking = Wire(reasoning_tokens=250, reasoning_key="both")
    yield Named("reasoning-first", _of("vllm", decode=_SPEC, wire=thinking))
    tools = Wire(tool_call=True, role_content="null")
    yield Named("tool-call", _of("vllm", decode=_SPEC, wire=tools))
    late = Wire(usage="finish", finish_event=False, usage_always=True)
    yield Named("usage-in-last-choices-chunk", _of(wire=late), settings=_BRIEF)
    delayed = Wire(usage_delay_s=0.2, usage_null=True)
    yield Named("usage-late", _of("vllm", wire=delayed), settings=_BRIEF)
    one_a_token = Wire(per_token=True, finish_event=True, usage="finish", role_content="null")
    speculating = _of("llamacpp", decode=_SPEC, wire=one_a_token)
    yield Named("one-event-a-token", speculating, settings=Settings(chat=False))
    strict = Wire(unknown_fields="422", done=False, finish_event=True, usage="finish")
    strict = replace(strict, usage_always=True, role="before")
    yield Named("strict", _of(wire=strict), settings=_BRIEF)
    crlf = Wire(newline="\r\n", data_prefix="data:", ping_every=7, role_content="missing")
    yield Named("crlf-and-pings", _of(decode=_SPEC, wire=crlf))
    inflated = Tokenizer(inflation=1.39)
    yield Named("inflated-tokens", _of("sglang", decode=_SPEC, tokenizer=inflated))
    caching = Prefill(prefix_cache=True)
    busy = _of("sglang", decode=_SPEC, prefill=caching, side=Side(flush=(400, 400, 200)))
    yield Named("flush-refused-twice", busy)
    yield Named("flush-never", replace(busy, side=Side(flush=(400,))))
    clock = Fault(wall_clock_step_s=3600.0)
    yield Named("clock-step", _of(fault=clock), settings=_QUICK)


def _slow_engines() -> Iterator[Named]:
    falls = replace(_SPEC, committed=5.5, collapse_at=200, collapse_to=1.4)
    grows = replace(_SPEC, growth=2.5)
    both = replace(falls, step_s=0.007, growth=2.5)
    yield Named("acceptance-collapse", _of("vllm", decode=falls), "acceptance-falls")
    unseen = _of(decode=falls)  # without counters
    yield Named("acceptance-collapse-no-counters", unseen, "acceptance-falls")
    bursts = Wire(per_token=True, finish_event=True, usage="finish")
    yield Named(
        "acceptance-collapse-one-event-a-token",
        _of("llamacpp", decode=falls, wire=bursts),
        "acceptance-falls",
    )
    yield Named("step-time-growth", _of("sglang", decode=grows), "step-time-grows")
    jumps = replace(_PLAIN, step_s=0.004, jump_at=200, jump=2.2)
    yield Named("step-time-jump", _of(decode=jumps), "step-time-grows")
    yield Named("both", _of("vllm", decode=both), ("acceptance-falls", "step-time-grows"))
    linear = replace(_SPEC, step_s=0.002, per_context_token_s=1e-6)
    yield Named("linear-in-context", _of("sglang", decode=linear), "step-time-linear-in-context")
    square = Prefill(per_token_s=1e-6, per_token2_s=2.5e-9)
    yield Named(
        "prefill-quadratic",
        _of("vllm", decode=_SPEC, prefill=square),
        "prefill-superlinear",
        settings=_FIVE,
    )
    cliff = Prefill(per_token_s=5e-6, cliff_at=10_000, cliff=8.0)
    yield Named(
        "prefill-cliff",
        _of("vllm", decode=_SPEC, prefill=cliff),
        "prefill-superlinear",
        settings=_FIVE,
    )


def _misleading() -> Iterator[Named]:
    bursts = Fault(buffer_s=0.25)
    yield Named("proxy-bursts", _of("vllm", fault=bursts), "proxy-buffering", settings=_TWO)
    full = Fault(buffer_bytes=16_384)
    yield Named("proxy-16-kb", _of(fault=full), "proxy-buffering", settings=_TWO)
    interval = Wire(chunk_interval=10)
    yield Named("chunk-interval-10", _of("vllm", wire=interval), "chunk-interval", settings=_TWO)
    fake = Fault(fake_streaming=True)
    yield Named("fake-streaming", _of(fault=fake), "fake-streaming", settings=_QUICK)
    stall = Fault(stall_at=150, stall_s=0.7)
    yield Named("stall-then-burst", _of(fault=stall), "stall-then-burst")
    hit = Prefill(per_token_s=2e-5, cached_between=(6000, 10_000))
    cached = _of("vllm", decode=_SPEC, prefill=hit)
    yield Named("cache-hit", cached, "prefix-cache-hit", settings=_FIVE)
    untold = replace(cached, prefill=replace(hit, report_cached=False))
    yield Named("cache-hit-untold", untold, "prefix-cache-hit", settings=_FIVE)
    stops = replace(_PLAIN, stop_at=137)
    yield Named("early-stop", _of(decode=stops), "early-stop")
    yield Named("missing-usage", _of(wire=Wire(usage="never")), "usage-missing", settings=_BRIEF)
    warm = Fault(warm_up_s=1.0)
    yield Named("warm-up", _of("sglang", decode=_SPEC, fault=warm), "warm-up")
    others = Side(foreign_tok_per_s=400.0, foreign_committed=1.6)
    yield Named("foreign-traffic", _of("vllm", decode=_SPEC, side=others), "foreign-traffic")


def _broken() -> Iterator[Named]:
    error = Fault(error_at=100)
    cut, failed = "stream-truncated", "request-failed"
    yield Named("error-mid-stream", _of(fault=error), failed, (cut,), _QUICK)
    tgi = Fault(error_at=100, error_form="tgi")
    yield Named("error-event", _of(fault=tgi, wire=Wire(done=False)), failed, (cut,), _QUICK)
    yield Named("dropped-connection", _of(fault=Fault(reset_at=100)), cut, (failed,), _QUICK)
    yield Named("cut-chunk", _of(fault=Fault(cut_at=100)), cut, (failed,), _QUICK)
    yield Named("clean-close", _of(fault=Fault(close_at=100)), cut, (failed,), _QUICK)
    soon = replace(_QUICK, stall_s=1.0)
    yield Named("silence", _of(fault=Fault(silence_at=100)), "stall", (cut, failed), soon)
    hang = Fault(hang=True, on=(2,))
    impatient = replace(_QUICK, first_token_s=1.5)
    yield Named("silence-before-headers", _of(fault=hang), "stall", (failed,), impatient)
    ping = Fault(silence_at=0, on=(2,))
    alive = _of(fault=ping, wire=Wire(keep_alive=True))
    yield Named("keep-alive-then-silence", alive, "stall", (cut, failed), impatient)
    dies = Fault(die_above=10_000)
    more = Settings(contexts=(1000, 4000, 16_000, 24_000), max_tokens=300)
    told = (cut, failed)
    yield Named("death-at-third", _of("sglang", fault=dies), "server-death", told, more)
    midway = Fault(die_above=10_000, die_after=80)
    yield Named("death-mid-stream", _of("vllm", fault=midway), "server-death", told, more)


def _overflows() -> Iterator[Named]:
    engines: dict[str, Engine] = {
        "sglang": "sglang",
        "sglang-generate": "sglang",
        "vllm": "vllm",
        "vllm-old": "vllm",
        "llamacpp": "llamacpp",
        "llamacpp-old": "llamacpp",
    }
    settings = Settings(contexts=(1000, 16_000), max_tokens=100)
    for form in get_args(Overflow):
        if form == "none":
            continue
        tokenizer = Tokenizer(context_limit=8192, overflow=form)
        scenario = _of(engines.get(form, "plain"), tokenizer=tokenizer)
        scenario = replace(scenario, side=Side(max_model_len=False))
        name = f"overflow-{form}"
        if form == "lmstudio":  # an empty stream says nothing about why
            also = ("context-overflow", "stream-truncated")
            yield Named(name, scenario, "request-failed", also, settings)
        else:
            yield Named(name, scenario, "context-overflow", settings=settings)


def _all() -> Iterator[Named]:
    yield from _healthy_formats()
    yield from _slow_engines()
    yield from _misleading()
    yield from _broken()
    yield from _overflows()


SCENARIOS: dict[str, Named] = {named.name: named for named in _all()}


def healthy(seed: int) -> Scenario:
    """A server with nothing wrong: ordinary jitter, steady acceptance, any sound wire format."""
    rng = random.Random(f"healthy/{seed}")
    engine = rng.choice(get_args(Engine))
    committed = rng.choice([1.0, rng.uniform(1.2, 6.0)])
    step_s = rng.uniform(0.004, 0.006) * (1 if committed == 1 else 1.6)
    decode = Decode(
        step_s=step_s,
        # A split-KV engine's: at most 1.3 times at 16,000 tokens.
        per_context_token_s=step_s * rng.uniform(0, 0.3) / 16_400,
        jitter=rng.uniform(0, 0.15),
        committed=committed,
        drafts=0 if committed == 1 else rng.choice([7, 9, 15]),
        first_commit=1 if committed == 1 else rng.choice([1, 1, 4]),
    )
    prefill = Prefill(
        base_s=rng.uniform(0.01, 0.04),
        per_token_s=rng.uniform(2e-6, 1e-5),
        per_token2_s=rng.uniform(0, 3e-11),
        report_cached=rng.random() < 0.5,
    )
    tokenizer = Tokenizer(
        chars_per_token=rng.uniform(3.0, 4.8), template_tokens=rng.randrange(3, 30)
    )
    return Scenario(
        engine=engine,
        seed=seed,
        tokenizer=tokenizer,
        prefill=prefill,
        decode=decode,
        wire=_healthy_wire(rng, engine),
    )


def _healthy_wire(rng: random.Random, engine: Engine) -> Wire:
    llama = engine == "llamacpp"
    return Wire(
        newline=rng.choice(["\n", "\n", "\r\n"]),
        data_prefix=rng.choice(["data: ", "data: ", "data:"]),
        headers=rng.choice(["at-once", "first-token"]),
        role=rng.choice(["none", "headers", "before", "with"]),
        role_content=rng.choice(["empty", "null", "missing"]),
        reasoning_tokens=rng.choice([0, 0, 100, 1000]),
        reasoning_key=rng.choice(["reasoning_content", "reasoning", "both"]),
        tool_call=rng.random() < 0.1,
        per_token=llama,
        finish_event=llama or rng.random() < 0.3,
        usage=rng.choice(["final", "final", "finish"]),
        usage_always=rng.random() < 0.5,
        usage_null=rng.random() < 0.5,
        usage_delay_s=rng.choice([0.0, 0.0, 0.002]),
        continuous_usage=engine == "vllm" and rng.random() < 0.5,
        token_ids=engine == "vllm" and rng.random() < 0.5,
        unknown_fields=rng.choice(["ignore", "ignore", "422", "400"]),
        done=rng.random() < 0.85,
        ping_every=rng.choice([0, 0, 11]),
        keep_alive=rng.random() < 0.2,
    )
