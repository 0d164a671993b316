"""The command line of servers: sweep and serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--url", required=True, help="The server: http://HOST:PORT, with or without /v1.")
@click.option("--contexts", metavar="SIZES", help="Prompt lengths in tokens, k is 1,024 "
              "[1k,4k,16k,64k,128k].")  # fmt: skip
@click.option("--concurrency", default="1", show_default=True, metavar="SIZES",
              help="Streams side by side, up to 64; several make several sweeps.")  # fmt: skip
@click.option("--max-tokens", type=int, default=1500, show_default=True, help="At each point.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Answers a point.")
@click.option("--floors", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The least decode rates allowed (TOML).")  # fmt: skip
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="A saved run's record to compare with.")  # fmt: skip
@click.option("--request", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Measure this recorded request body instead of a sweep.")  # fmt: skip
@click.option("--model", help="Its name [the first of /v1/models].")
@click.option("--endpoint", type=click.Choice(["chat", "completions"]),
              help="[chat, or completions where there is no chat]")  # fmt: skip
@click.option("--corpus", default="mixed", show_default=True,
              help="Text of the prompts: mixed, prose, code, reasoning or repetitive.")  # fmt: skip
@click.option("--log", metavar="SOURCE", help="The server's log: a file, or journal:UNIT.")
@click.option(
    "--geometry",
    help="With --gpu: judge slopes by the KV to read (kimi-k2.6-tp8 ..., or bytes a token).",
)
@click.option("--gpu", help="h200, rtx-pro-6000 ..., or GB/s with --geometry in bytes.")
@click.option("--kv-dtype", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True)
@click.option("--window", type=int, default=128, show_default=True, metavar="TOKENS",
              help="Length of the windows within an answer.")  # fmt: skip
@click.option("--decode-limit", type=float, default=120.0, show_default=True, metavar="SECONDS",
              help="Ends a point's answer, once it has 16 tokens.")  # fmt: skip
@click.option("--first-token-limit", type=float, metavar="SECONDS",
              help="[1.5 times what the measured points foretell]")  # fmt: skip
@click.option("--stall-limit", type=float, default=60.0, show_default=True, metavar="SECONDS",
              help="Between two chunks.")  # fmt: skip
@click.option("--budget", type=float, default=900.0, show_default=True, metavar="SECONDS",
              help="Repeats undecided points for so long.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--no-flush", is_flag=True, help="Do not empty the server's prefix cache.")
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
@click.option("--reads", is_flag=True, help="Keep every network read's time and size in it.")
@click.option("--dry-run", is_flag=True, help="Show the plan and its duration; send nothing.")
def sweep(url: str, record: Path | None, dry_run: bool, **options: Any) -> None:
    """Measure a live server at every context length, sustained, and say why it is slow.

    Any OpenAI-compatible server.  An API key is read from VERIFY_ATTN_API_KEY.
    """
    from verify_attn.live.settings import DEFAULT_CONTEXTS, Settings, SettingsError, parse_sizes
    from verify_attn.sweep_command import BAD_INPUT, prepare, run_sweep, show_plan
    from verify_attn.terminal import error

    contexts = options["contexts"]
    try:
        if options["request"] is not None and (contexts or options["concurrency"] != "1"):
            raise SettingsError(
                "--request measures the recorded request, one answer at a time: leave out "
                "--contexts and --concurrency"
            )
        settings = Settings(
            contexts=DEFAULT_CONTEXTS if contexts is None else parse_sizes(contexts),
            concurrency=parse_sizes(options["concurrency"]),
            max_tokens=options["max_tokens"], repeats=options["repeats"],
            corpus=options["corpus"], endpoint=options["endpoint"], model=options["model"],
            window_tokens=options["window"], decode_limit_s=options["decode_limit"],
            first_token_s=options["first_token_limit"], stall_s=options["stall_limit"],
            budget_s=options["budget"], seed=options["seed"], flush=not options["no_flush"],
            log=options["log"], keep_reads=options["reads"], floors=options["floors"],
            against=options["against"],
        )  # fmt: skip
        run = prepare(
            url, settings, request=options["request"], geometry=options["geometry"],
            gpu=options["gpu"], kv_dtype=options["kv_dtype"],
        )  # fmt: skip
    except BAD_INPUT as wrong:
        sys.exit(error(str(wrong)))
    sys.exit(show_plan(run) if dry_run else run_sweep(run, record))


@click.command()
@click.argument("model", default="tiny", metavar="[MODEL]")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="0: any that is free; it is printed.")  # fmt: skip
@click.option("--kernel", help="A built-in or package.module:name [triton-split; torch on a CPU].")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[cuda where there is a GPU]")
@click.option("--dtype", help="[bfloat16; float32 on a CPU]")
@click.option("--context", metavar="TOKENS", help="Prompt and answer, k is 1,024 [the model's].")
@click.option("--kv-tokens", metavar="TOKENS", help="Of the KV pool [4 contexts, if they fit].")
@click.option("--page-size", type=int, default=1, show_default=True)
@click.option("--allocator", default="fifo", show_default=True, help="fifo, sorted, contiguous.")
@click.option("--contiguous", is_flag=True, help="Tier 0: a request's KV in one run of pages.")
@click.option("--compact", "compact_pages", type=int, default=0, metavar="PAGES",
              help="Tier 1: move up to so many pages together between steps.")  # fmt: skip
@click.option("--no-prefix-cache", "prefix_cache", flag_value=False, default=True)
@click.option("--drafter", help="block, ngram, replay or none [block for tiny, else ngram].")
@click.option("--budget", type=int, default=31, show_default=True, help="Drafted nodes a step.")
@click.option("--replay", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The text that the drafter replay proposes.")  # fmt: skip
@click.option("--corrupt", type=float, default=0.0, metavar="SHARE", help="Of replay's drafts.")
@click.option("--pin", type=int, metavar="K",
              help="Commit K tokens a step whatever the model says: not lossless.")  # fmt: skip
@click.option("--fill-prompts", "fill_seed", type=int, metavar="SEED",
              help="Do not compute prompts: random KV of this seed.")  # fmt: skip
@click.option("--running", type=int, default=16, show_default=True, help="Requests side by side.")
@click.option("--waiting", type=int, default=64, show_default=True, help="Then 503.")
@click.option("--chunk", type=int, default=512, show_default=True, help="Prefill tokens a pass.")
@click.option("--no-graphs", "graphs", flag_value=False, default=True, help="No CUDA graphs.")
@click.option("--inject", multiple=True, metavar="FAULT=VALUE",
              help="acceptance=TOKENS, step-time=MS, out-of-memory=TOKENS, die-in-prefill=TOKENS, "
              "stall=TOKENS:SECONDS; repeat for several.")  # fmt: skip
def serve(
    host: str, port: int, context: str | None, kv_tokens: str | None, **options: Any
) -> None:  # fmt: skip
    """A small OpenAI-compatible server: MLA, paged KV and draft trees on any verify kernel.

    MODEL is tiny (trained, runs on a CPU), k2.6-rank (one tensor-parallel rank of Kimi K2.6 with
    random weights) or a folder with config.json and *.safetensors.  VERIFY_ATTN_API_KEY, if set, is
    asked of every client.
    """
    from verify_attn.engine.options import OptionError
    from verify_attn.live.settings import SettingsError
    from verify_attn.serve_command import options_of, run_serve
    from verify_attn.terminal import error

    try:
        asked = options_of(options, context, kv_tokens)
    except (OptionError, SettingsError) as wrong:
        sys.exit(error(str(wrong)))
    sys.exit(run_serve(asked, host, port))
