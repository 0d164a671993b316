"""The command line: a thin front over the parts."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from verify_attn import __version__
from verify_attn.record import BAD_USAGE, INTERRUPTED


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Is tree-verify attention right, does a live server hold its speed, and if not, why not?

    Exit codes: 0 passed, 1 something failed, 2 bad usage, 3 inconclusive or nothing executed,
    4 the server died or cannot be reached, 130 interrupted.
    """


@main.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--url", help="Your server's [the package's own, started beside].")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="The folder of the run [verify-attn-runs/<UTC time>].")  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with an interrupted run [the latest].")
@click.option("--quick", is_flag=True, help="Fewer cases and lengths: a first look.")
@click.option("--examples", type=click.IntRange(1, 1_000_000), help="As of check.")
@click.option("--contexts", metavar="SIZES", help="As of sweep.")
@click.option("--max-tokens", type=int, help="As of sweep.")
@click.option("--floors", metavar="FILE", help="As of sweep.")
@click.option("--against", metavar="FILE", help="As of sweep.")
@click.option("--sweep", metavar="OPTIONS", help="More of sweep's: '--geometry NAME --gpu NAME'.")
def run(out: Path | None, resume: bool, **options: Any) -> None:
    """Everything in one command: doctor, check, bench, sweep; one verdict, one folder.

    KERNEL is a built-in's name (all of them by default) or your own, package.module:name.  Without
    a GPU it takes minutes and says what was not tested.
    """
    from verify_attn.run_command import run_run
    from verify_attn.run_plan import Asked

    sys.exit(run_run(Asked(**options), out, resume))


@main.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option(
    "--examples", type=click.IntRange(1, 1_000_000), help="Cases a kernel [1000; 24 without a GPU]."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check (repeat, or a,b).")
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
@click.option("--case", metavar="JSON", help="Run this one case, as a failure printed it.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=120.0,
              show_default=True, metavar="SECONDS", help="Of one check on one case.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Processes [a core each].")
@click.option("--resume", is_flag=True, help="Go on where the record of --json stopped.")
def check(
    kernels: tuple[str, ...],
    examples: int | None,
    seed: int,
    only: tuple[str, ...],
    record: Path | None,
    case: str | None,
    time_limit: float,
    workers: int | None,
    resume: bool,
) -> None:
    """Fuzz verify kernels and say exactly what is wrong.

    KERNEL is a built-in's name (torch, triton-unsplit, triton-split; all of them by default) or
    your own, package.module:name.
    """
    from verify_attn.commands import run_check

    sys.exit(
        run_check(
            kernels, examples=examples, seed=seed, only=only, record=record, case=case,
            time_limit_s=time_limit, workers=workers, resume=resume,
        )
    )  # fmt: skip


def _axes(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the axes, the same for bench and roofline."""
    for name, shown in (
        ("kv-dtypes", ""), ("dtypes", "[bfloat16]"), ("trees", "tree, chain"),
        ("layouts", "shuffled, contiguous, churned ..."), ("page-sizes", ""), ("heads", ""),
        ("requests", "of unequal lengths"), ("nodes", "the root counts: budget + 1"),
        ("contexts", "prefix tokens, k is 1,024"),
    ):  # fmt: skip
        command = click.option(f"--{name}", metavar="LIST", help=shown)(command)
    command = click.option("--grid", is_flag=True, help="All combinations of the axes.")(command)
    return click.option("--quick", is_flag=True, help="Three contexts alone.")(command)


@main.command()
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@_axes
@click.option("--peers", is_flag=True, help="Other people's kernels too, where installed.")
@click.option("--baseline", default="triton-unsplit", show_default=True, metavar="KERNEL",
              help="What speedups are against.")  # fmt: skip
@click.option("--timers", default="events,graph", show_default=True, help="And cupti.")
@click.option("--gpu", metavar="NAME", help="Without a GPU: whose roofline (h200 ...).")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=300.0,
              show_default=True, metavar="SECONDS", help="Of a step with a kernel.")  # fmt: skip
@click.option("--json", "record", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the run record here, after each cell.")  # fmt: skip
@click.option("--csv", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Show the cells and the plan; time nothing.")
def bench(kernels: tuple[str, ...], gpu: str | None, dry_run: bool, **options: Any) -> None:
    """Time verify kernels against the hardware's limit and against a baseline.

    One axis at a time around 1 request, 31,952 tokens, 32 nodes, 8 heads and page 1; axes that are
    given replace all others.  A wrong kernel gets no time.  Without a GPU nothing is timed (3).
    """
    from verify_attn.bench_command import ask, run_bench
    from verify_attn.terminal import error

    try:
        asked = ask(kernels, options)
    except ValueError as wrong:
        sys.exit(error(str(wrong)))
    sys.exit(run_bench(asked, gpu, dry_run))


@main.command()
@click.option("--gpu", default="h200", show_default=True, help="rtx-pro-6000, h100, b200 ...")
@_axes
def roofline(gpu: str, **options: Any) -> None:
    """What no kernel can go below, by a GPU's data sheet; needs no GPU."""
    from verify_attn.bench_command import asked_cells, run_roofline
    from verify_attn.terminal import error

    try:
        chosen = asked_cells(options)
    except ValueError as wrong:
        sys.exit(error(str(wrong)))
    sys.exit(run_roofline(gpu, chosen))


@main.command()
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


@main.command()
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


@main.command(name="compare")
@click.argument("baseline", metavar="A", type=click.Path(path_type=Path))
@click.argument("candidate", metavar="B", type=click.Path(path_type=Path))
@click.option("--threshold", type=float, metavar="SHARE",
              help="How much worse is allowed [pyproject.toml's, or 0.05: 5 %].")  # fmt: skip
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE",
              help="Write a JUnit report here.")  # fmt: skip
@click.option("--json", "record", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
def compare_command(baseline: Path, candidate: Path, **options: Any) -> None:
    """Did B get worse than A?  Case by case; records of bench, or of pytest --benchmark-json.

    Exit codes: 0 nothing got worse, 1 a case is worse, missing, renamed or failed, 2 a file that
    is no such record, 3 unclear, or nothing was compared.
    """
    from verify_attn.compare_command import run_compare

    sys.exit(run_compare(baseline, candidate, **options))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--branch", metavar="NAME", help="Of the repository FOLDER, read without a checkout.")
@click.option("--case", "cases", multiple=True, metavar="PATTERN", help="An id or a glob; repeat.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME",
              help="[bench run_ms and limit_share; sweep decode_tok_s, step_ms and first_token_s; "
              "check worst_over_bound; compare run_ratio]")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the charts here.")  # fmt: skip
@click.option("--json", "record", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the run record here.")  # fmt: skip
def history(folder: Path, **options: Any) -> None:
    """When did it get worse?  Records kept in FOLDER, at any depth, over their commits.

    Exit codes: 0 nothing got worse and stayed so, 1 something did, 2 no folder, no record, nothing
    that matches, 3 too few records to say.
    """
    from verify_attn.history_command import run_history

    sys.exit(run_history(folder, **options))


@main.command()
@click.argument("records", metavar="FOLDER_OR_RECORD...", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="[report.html in the folder, or beside the record]")  # fmt: skip
@click.option("--against", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="A saved sweep's record, drawn behind this one's.")  # fmt: skip
def report(records: tuple[Path, ...], out: Path | None, against: Path | None) -> None:
    """Make the HTML page of a run's folder, or of single records, from the records alone.

    Ends in 0 where the page was written, whatever its verdict; 2 for what is no record.
    """
    from verify_attn.report_command import run_report

    sys.exit(run_report(records, out=out, against=against))


@main.command()
def doctor() -> None:
    """Say what this machine has and what can run on it."""
    from verify_attn.commands import run_doctor

    run_doctor()


@main.command(name="compile")
@click.option("--arch", "archs", multiple=True, default=("sm_90",), show_default=True,
              help="sm_80, sm_86, sm_90, sm_100 or sm_120; repeat for several.")  # fmt: skip
def compile_command(archs: tuple[str, ...]) -> None:
    """Compile every Triton configuration, with no GPU, and print what it takes."""
    from verify_attn.commands import run_compile

    sys.exit(run_compile(archs))


def entry() -> None:
    """The console script: Ctrl-C ends with 130 whatever runs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a kernel may say what it likes
    try:
        main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_USAGE)


if __name__ == "__main__":
    entry()
