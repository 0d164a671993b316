"""What a simulated server is like: tokenizer, prefill, decode steps, wire format, faults.

A `Scenario` and a request decide every byte and every time of the answer; chance comes from the
scenario's seed and the prompt's text.  A request is *measured* where it streams at least
`Scenario.measured_from` tokens: probes and calibration requests are not, and faults that name
requests count measured ones, from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Overflow = Literal[
    "none",  # no check at all
    "sglang",  # 400, flat
    "sglang-generate",  # 200, a stream with one error event
    "vllm",  # 400, nested
    "vllm-old",  # 400, flat, without the code
    "llamacpp",  # 400, exceed_context_size_error
    "llamacpp-old",  # 200 with that body
    "detail",  # 400, as FastAPI says it
    "tgi",  # 422
    "lmstudio",  # 200, an empty stream
]
Engine = Literal["plain", "vllm", "sglang", "llamacpp"]


@dataclass(frozen=True)
class Tokenizer:
    """How the server counts a prompt; equal text, equal count."""

    chars_per_token: float = 4.0
    inflation: float = 1.0  # 1.39: this many times the tokens that chars_per_token promises
    template_tokens: int = 8  # added by the chat template
    context_limit: int = 131_072  # of prompt and answer together
    overflow: Overflow = "vllm"

    def count(self, text: str, *, chat: bool) -> int:
        """Tokens of a prompt: never less than one."""
        tokens = round(len(text) / self.chars_per_token * self.inflation)
        return max(1, tokens) + (self.template_tokens if chat else 0)


@dataclass(frozen=True)
class Prefill:
    """``base_s + per_token_s * n + per_token2_s * n**2`` for the n tokens that are not cached."""

    base_s: float = 0.020
    per_token_s: float = 2e-6
    per_token2_s: float = 0.0
    cliff_at: int | None = None  # above so many tokens ...
    cliff: float = 1.0  # ... it takes this many times as long
    prefix_cache: bool = False  # prompts that share a beginning with an earlier one are cached
    cached_on: tuple[int, ...] = ()  # measured requests that hit a cache whatever they ask
    cached_between: tuple[int, int] | None = None  # prompts of so many tokens hit it too
    cached_share: float = 0.98  # of the prompt, on those
    report_cached: bool = True  # prompt_tokens_details.cached_tokens in usage

    def seconds(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Time from the request to its first token."""
        n = prompt_tokens - cached_tokens
        slow = self.cliff if self.cliff_at is not None and n > self.cliff_at else 1.0
        return (self.base_s + self.per_token_s * n + self.per_token2_s * n**2) * slow


@dataclass(frozen=True)
class Decode:
    """Step times and committed tokens a step; position counts generated tokens from 0."""

    step_s: float = 0.008
    per_context_token_s: float = 0.0  # added for every token of prompt and answer so far
    growth: float = 1.0  # step time in the last quarter of max_tokens over that in the first
    jump_at: int | None = None  # from this position on ...
    jump: float = 1.0  # ... a step takes this many times as long
    jitter: float = 0.0  # standard deviation, as a share of the step time
    committed: float = 1.0  # mean tokens a step, the bonus token included
    drafts: int = 0  # drafted a step, so that 1 to drafts + 1 are committed; 0: no speculation
    constant: bool = False  # every step commits round(committed)
    pattern: tuple[int, ...] = ()  # committed, in turn, in place of `committed`
    collapse_at: int | None = None  # from this position on ...
    collapse_to: float = 1.0  # ... the mean is this
    first_commit: int = 1  # tokens that come with the prefill's own step
    stop_at: int | None = None  # the model ends here with `stop`, whatever ignore_eos asks


@dataclass(frozen=True)
class Wire:
    """How the answer looks on the wire."""

    newline: Literal["\n", "\r\n"] = "\n"
    data_prefix: Literal["data: ", "data:"] = "data: "
    headers: Literal["at-once", "first-token"] = "at-once"
    # Role-only chunk of a chat: none, with the headers, 2 ms before or with the first token.
    role: Literal["none", "headers", "before", "with"] = "with"
    role_content: Literal["empty", "null", "missing"] = "empty"
    reasoning_tokens: int = 0  # of a chat, before the answer
    reasoning_key: Literal["reasoning_content", "reasoning", "both"] = "reasoning_content"
    tool_call: bool = False  # a chat's answer comes as tool-call deltas
    per_token: bool = False  # one event a token, those of a step in a burst
    chunk_interval: int = 1  # events wait until they hold so many tokens, the first excepted
    finish_event: bool = False  # finish_reason in an event of its own, without text
    # An event with choices [], the event that carries finish_reason, or nowhere.
    usage: Literal["final", "finish", "never"] = "final"
    usage_always: bool = False  # sent though not asked for
    usage_null: bool = False  # `usage: null` on all other events
    usage_delay_s: float = 0.0  # from the last token to the usage
    continuous_usage: bool = False  # continuous_usage_stats is granted
    token_ids: bool = False  # return_token_ids is granted
    unknown_fields: Literal["ignore", "422", "400"] = "ignore"  # what OpenAI's API does not have
    done: bool = True
    ping_every: int = 0  # a comment before every n-th event
    keep_alive: bool = False  # a comment with the headers


@dataclass(frozen=True)
class Fault:
    """What goes wrong.  Positions are generated tokens: so many arrive, and then ..."""

    on: tuple[int, ...] | None = None  # measured requests with the faults of streams; None: all
    buffer_s: float | None = None  # a proxy releases what it has every so often
    buffer_bytes: int | None = None  # or only when it has so much
    fake_streaming: bool = False  # everything at the end
    stall_at: int | None = None  # the bytes pause here ...
    stall_s: float = 0.0  # ... for so long, while the engine goes on, and then come at once
    error_at: int | None = None
    error_form: Literal["openai", "tgi"] = "openai"
    reset_at: int | None = None  # RST
    cut_at: int | None = None  # FIN in the middle of the chunked body
    close_at: int | None = None  # a well-formed end of the body, without finish or [DONE]
    silence_at: int | None = None  # nothing more, the connection stays; 0: headers at most
    hang: bool = False  # no answer, not even headers; /health goes on
    die_on: int | None = None  # the measured request at which the process dies
    die_above: int | None = None  # or any measured one with more prompt tokens than this
    die_after: int = 0  # and so many tokens of it arrive
    html: bool = False  # a web page in place of every answer
    api_key: str | None = None  # else 401
    unavailable: bool = False  # 503 for everything
    check_model: bool = True  # 404 for any other model
    warm_up_s: float = 0.0  # the first measured request takes so much longer to its first token
    wall_clock_step_s: float = 0.0  # for the test: its time.time jumps; the server's never does

    def applies(self, measured: int | None) -> bool:
        """Do the faults of streams hit this request?"""
        return self.on is None or measured in self.on

    def dies(self, measured: int | None, prompt_tokens: int) -> bool:
        """Does the process end during this request?"""
        long = self.die_above is not None and prompt_tokens > self.die_above
        return measured is not None and (measured == self.die_on or long)


@dataclass(frozen=True)
class Side:
    """The endpoints beside generation."""

    metrics: bool = True  # else 404
    max_model_len: bool = True  # in /v1/models, where the engine says it there
    foreign_tok_per_s: float = 0.0  # somebody else's tokens in the counters
    foreign_committed: float = 1.0  # and their tokens a step
    flush: tuple[int, ...] = ()  # statuses of /flush_cache in turn, the last for ever; (): 404
    health: int = 200


@dataclass(frozen=True)
class Scenario:
    """One simulated server."""

    engine: Engine = "plain"
    seed: int = 0
    model: str = "truth"
    measured_from: int = 32
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    prefill: Prefill = field(default_factory=Prefill)
    decode: Decode = field(default_factory=Decode)
    wire: Wire = field(default_factory=Wire)
    fault: Fault = field(default_factory=Fault)
    side: Side = field(default_factory=Side)
