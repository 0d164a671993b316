"""What the commands print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from verify_attn.conformance import CHECK_NAMES
from verify_attn.conformance.pool import Pool, worker_count
from verify_attn.conformance.session import Session, UnusableKernel
from verify_attn.environment import gpus, summary
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.record import RecordError, check_writable, exit_code
from verify_attn.terminal import STATUS_STYLE, error, output, printable, show_table

EXAMPLES_GPU, EXAMPLES_CPU = 1000, 24


def chosen_checks(only: Sequence[str]) -> list[str]:
    """The checks that ``--only`` names; ValueError for an unknown one."""
    names = [name.strip() for part in only for name in part.split(",")]
    unknown = [name for name in names if name not in CHECK_NAMES]
    if unknown:
        raise ValueError(f"no check {unknown[0]!r}; there are: {', '.join(CHECK_NAMES)}")
    return list(dict.fromkeys(names)) or list(CHECK_NAMES)


def run_check(
    kernels: Sequence[str],
    *,
    examples: int | None,
    seed: int,
    only: Sequence[str],
    record: Path | None,
    case: str | None,
    time_limit_s: float,
    workers: int | None,
    resume: bool,
) -> int:
    """`verify-attn check`; returns the exit code."""
    found = gpus()
    if resume and record is None:
        return error("--resume needs --json FILE, the record to go on with")
    if resume and case is not None:
        return error("--resume goes on with drawn cases; --case gives one: leave one of them out")
    if case is not None:
        from verify_attn.generate import Case

        try:
            _ = Case.from_json(case).attention_geometry
        except (ValueError, ArithmeticError, AttributeError) as wrong:
            return error(f"--case: {wrong}")
    try:
        if record is not None:
            check_writable(record)
        session = Session(
            kernels or list(BUILTIN),
            chosen_checks(only),
            examples=examples or (EXAMPLES_GPU if found else EXAMPLES_CPU),
            seed=seed,
            case=case,
            command=["verify-attn", *sys.argv[1:]],
            record=record,
            resume=resume,
        )
    except (ValueError, RecordError, UnusableKernel) as wrong:
        return error(str(wrong))
    console = output()
    console.print(summary(found), style="dim", soft_wrap=True)
    interrupted = False
    try:
        with closing(Pool(workers or worker_count(bool(found)), time_limit_s)) as pool:
            _show_progress(session, pool)
    except (UnusableKernel, RecordError) as wrong:
        if session.started:
            _print_result(console, session)
        return error(str(wrong))
    except KeyboardInterrupt:
        interrupted = True
    _print_result(console, session)
    if found and session.device == "cpu":
        console.print("torch reaches no GPU here (see verify-attn doctor): all ran on the CPU")
    if interrupted:
        where = f"; what ran is in {record}, go on with --resume" if record else ""
        where = where if session.started else " before anything was run: nothing is written"
        console.print(f"interrupted{escape(where)}", soft_wrap=True)
    return exit_code(session.cases, interrupted)


def _show_progress(session: Session, pool: Pool) -> None:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[failed]}", style="bold red"),
    )  # fmt: skip
    console = Console(stderr=True, emoji=False)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        total = 1 if session.case_json else session.examples
        ids = {
            k: bars.add_task(escape(k), total=total, completed=session.ran[k].examples, failed="")
            for k in session.kernels
        }
        for kernel in session.run(pool):
            failed = [c for c, t in session.ran[kernel].tallies.items() if t.failures]
            bars.update(
                ids[kernel],
                completed=session.ran[kernel].examples,
                failed=", ".join(failed) + " failed" if failed else "",
            )


def _print_result(console: Console, session: Session) -> None:
    cases = {c["id"]: c for c in session.cases}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for kernel in session.kernels:
        table.add_column(escape(kernel), justify="right", overflow="fold")
    for check in session.checks:
        row = [_cell(cases[f"{kernel}/{check}"]) for kernel in session.kernels]
        table.add_row(check, *row)
    show_table(console, table)
    notes: dict[str, list[str]] = {}
    for case in cases.values():
        if case["status"] == "skipped":
            notes.setdefault(case["reason"], []).append(case["id"])
    for reason, ids in notes.items():
        line = f"skipped {escape(', '.join(ids))}: {printable(reason)}"
        console.print(line, style="dim", soft_wrap=True)
    for case in cases.values():
        if failures := case.get("failures"):  # workers may have found one each
            _print_failure(console, case, failures[0])


def _cell(case: dict[str, Any]) -> str:
    style = STATUS_STYLE[case["status"]]
    count = case["metrics"]["executed"]
    text = case["status"] if case["status"] != "pass" else f"pass {count:,}"
    return f"[{style}]{text}[/{style}]"


def _print_failure(console: Console, case: dict[str, Any], failure: dict[str, Any]) -> None:
    import json

    from verify_attn.conformance.reproduce import reproduce

    kernel, check = case["parameters"]["kernel"], case["parameters"]["check"]
    console.print(f"\n[bold red]FAIL[/bold red] {escape(kernel)}")
    for line in failure["text"].split("\n"):
        console.print(f"  {printable(line)}", soft_wrap=True)
    line = reproduce(kernel, check, json.dumps(failure["case"], separators=(",", ":")))
    console.print(f"  reproduce: {escape(line)}", soft_wrap=True)


def run_doctor() -> None:
    """`verify-attn doctor`."""
    from verify_attn.doctor import findings

    console = output()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in findings():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(value))
    show_table(console, table)
