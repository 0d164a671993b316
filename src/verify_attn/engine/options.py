"""What `serve` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from verify_attn.ddtree import MAX_BUDGET
from verify_attn.paging import ALLOCATORS

MOST_RUNNING = 16  # requests of one verify step
MOST_WAITING = 64
PREFILL_CHUNK = 512
DRAFTERS = ("block", "ngram", "replay", "none")
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_BUDGET = 31  # 32 nodes


class OptionError(ValueError):
    """Options that cannot be; the message says what was given, the rule and what to do."""


@dataclass(frozen=True)
class Options:
    """What `serve` is asked for; None is a default that hangs on the model or the machine.

    ``contiguous``    tier 0: a request's KV in one run of pages, reserved at admission
    ``compact_pages`` tier 1: pages that compaction may copy between two steps; 0 is off
    ``fill_seed``     prompts are not computed: their KV is random rows of that seed
    """

    model: str = "tiny"
    kernel: str | None = None
    device: str | None = None
    dtype: str | None = None
    context: int | None = None
    kv_tokens: int | None = None
    page_size: int = 1
    allocator: str = "fifo"
    contiguous: bool = False
    compact_pages: int = 0
    prefix_cache: bool = True
    drafter: str | None = None
    budget: int = DEFAULT_BUDGET
    replay: Path | None = None
    corrupt: float = 0.0
    pin: int | None = None
    fill_seed: int | None = None
    running: int = MOST_RUNNING
    waiting: int = MOST_WAITING
    chunk: int = PREFILL_CHUNK
    graphs: bool = True
    inject: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises `OptionError` for what no machine could do."""
        replaying = self.drafter == "replay"
        rules = (
            (self.allocator in ALLOCATORS,
             f"no allocator {self.allocator!r}; there are: {', '.join(ALLOCATORS)}"),
            (self.drafter is None or self.drafter in DRAFTERS,
             f"no drafter {self.drafter!r}; there are: {', '.join(DRAFTERS)}"),
            (self.dtype is None or self.dtype in DTYPES,
             f"no dtype {self.dtype!r}; there are: {', '.join(DTYPES)}"),
            (self.drafter != "block" or self.model == "tiny",
             f"the block drafter was trained for tiny, not for {self.model}; take ngram, replay or "
             "none"),
            (0 <= self.budget <= MAX_BUDGET,
             f"budget is {self.budget}; it must lie in 0..{MAX_BUDGET}"),
            (self.page_size >= 1, f"page size is {self.page_size}; it must be at least 1"),
            (self.context is None or self.context >= 2,
             f"context is {self.context}; a prompt and an answer take at least 2 tokens"),
            (self.running >= 1, f"running is {self.running}; at least 1 request must be able to"),
            (self.running <= MOST_RUNNING,
             f"running is {self.running}; a verify step takes at most {MOST_RUNNING} requests"),
            (self.waiting >= 1, f"waiting is {self.waiting}; at least 1 request must be able to"),
            (1 <= self.chunk <= MAX_BUDGET,
             f"chunk is {self.chunk}; it must lie in 1..{MAX_BUDGET}"),
            (replaying or (self.pin is None and self.replay is None and not self.corrupt),
             "pin, replay and corrupt belong to the drafter replay: add --drafter replay"),
            (self.kv_tokens is None or self.kv_tokens >= 1,
             f"kv-tokens is {self.kv_tokens}; a pool holds at least 1"),
            (self.fill_seed is None or 0 <= self.fill_seed < 2**63,
             f"fill-prompts is {self.fill_seed}; a seed lies in 0..2^63 - 1"),
            (self.pin is None or self.pin - 1 <= self.budget,
             f"pin is {self.pin} and the budget {self.budget}; to commit {self.pin} tokens a step "
             "takes as many drafted nodes less one"),
            (self.compact_pages >= 0,
             f"compact is {self.compact_pages}; pages are counted from 0, which is off"),
            (self.pin is None or not any(text.startswith("acceptance") for text in self.inject),
             "acceptance is pinned and injected at once: leave out --pin or --inject acceptance"),
            (self.fill_seed is None or not self.prefix_cache,
             "random prompt KV in a prefix cache would answer for other prompts: add "
             "--no-prefix-cache"),
        )  # fmt: skip
        for holds, rule in rules:
            if not holds:
                raise OptionError(rule)
