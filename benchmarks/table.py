"""The times of bench records as tables of Markdown, one for each page size and layout.

    python benchmarks/table.py results/h200/bench_page1.json results/h200/bench_page64.json \
        --contexts 1427,31952,184728 --into README.md
    python benchmarks/table.py results/h200/bench_page1.json --speedup      # printed

A row a context and number of nodes, a column a kernel: milliseconds of ``run``, the share of what
the hardware allows, with ``--speedup`` how many times the baseline's speed.  Kernels without a tree
mask, which were timed on a chain, say so.  ``--into`` puts the tables between the page's marks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from verify_attn.record import RecordError, read_record
from verify_attn.whole_file import write_whole

START, END = "<!-- table -->", "<!-- end of table -->"
Case = dict[str, Any]


def main() -> int:
    """Print the tables or put them into a page; 2 where that cannot be."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("records", type=Path, nargs="+", metavar="RECORD")
    arguments.add_argument("--contexts", help="only these, with commas between them")
    arguments.add_argument("--speedup", action="store_true", help="over the baseline, too")
    arguments.add_argument("--into", type=Path, metavar="PAGE", help="with the marks in it")
    asked = arguments.parse_args()
    try:
        cases = [case for path in asked.records for case in read_record(path)["cases"]]
        contexts = {int(c) for c in asked.contexts.split(",")} if asked.contexts else set()
        text = tables(cases, contexts, speedup=asked.speedup)
        if asked.into:
            write_whole(asked.into, inserted(asked.into.read_text(), text).encode())
        else:
            print(text)
    except (RecordError, ValueError, OSError) as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


def inserted(page: str, text: str) -> str:
    """The page with the tables between its marks.  Raises ValueError unless it has them once."""
    if (page.count(START), page.count(END)) != (1, 1):
        raise ValueError(f"the page must have {START} and {END} once, with the tables between them")
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{text}\n{END}{rest.partition(END)[2]}"


def tables(cases: Sequence[Case], contexts: Collection[int] = (), *, speedup: bool = False) -> str:
    """All tables, in the records' order.  Raises ValueError for a context that no case has, and for
    a cell that is there twice."""
    if not all({"context", "page_size", "layout"} <= set(case["parameters"]) for case in cases):
        raise ValueError("a case has no context, page size or layout; give records of bench")
    has = {case["parameters"]["context"] for case in cases}
    if unknown := sorted(set(contexts) - has):
        raise ValueError(
            f"no case has the context {unknown[0]}; the records have {', '.join(map(str, has))}"
        )
    groups: dict[tuple[int, str], list[Case]] = {}
    for case in cases:
        p = case["parameters"]
        if not contexts or p["context"] in contexts:
            groups.setdefault((p["page_size"], p["layout"]), []).append(case)
    return "\n\n".join(
        f"Page size {page}, {layout} pages:\n\n{_table(group, speedup)}"
        for (page, layout), group in groups.items()
    )


def _table(cases: Sequence[Case], speedup: bool) -> str:
    """One table, and below it what is not in it, with the reason."""
    timed: dict[tuple[str, int, int], Case] = {}
    for case in cases:
        p = case["parameters"]
        key = p["kernel"], p["context"], p["nodes"]
        if key in timed:
            raise ValueError(f"{case['id']} is there twice")
        if case["status"] == "pass":
            timed[key] = case
    kernels = list(dict.fromkeys(kernel for kernel, _, _ in timed))
    chains = {k for (k, _, _), case in timed.items() if case["parameters"]["tree"] == "chain"}
    heads = [f"{kernel} (chain)" if kernel in chains else kernel for kernel in kernels]
    lines = ["| tokens | nodes | " + " | ".join(heads) + " |"]
    lines.append("| ---: " * (2 + len(kernels)) + "|")
    for context, nodes in sorted({(context, nodes) for _, context, nodes in timed}):
        row = (_cell(timed.get((kernel, context, nodes)), speedup) for kernel in kernels)
        lines.append(f"| {context:,} | {nodes} | " + " | ".join(row) + " |")
    absent = [case for case in cases if case["status"] != "pass"]
    for kernel in dict.fromkeys(case["parameters"]["kernel"] for case in absent):
        reasons = [c["reason"] for c in absent if c["parameters"]["kernel"] == kernel]
        some = f"{len(reasons)} cells, such as" if len(reasons) > 1 else "1 cell"
        lines += ["", f"Not timed: `{kernel}`, {some}: {' '.join(reasons[0].split())}."]
    return "\n".join(lines)


def _cell(case: Case | None, speedup: bool) -> str:
    if case is None:
        return "-"
    m = case["metrics"]
    share = 100 * m["limit_share"]
    told = f"{share:.0f} %" if share >= 1 else f"{share:.1f} %"
    if speedup and "speedup" in m:
        told += f", {m['speedup']:#.3g}x".replace(".x", "x")
    return f"{m['run_ms']:#.3g} ({told})"


if __name__ == "__main__":
    sys.exit(main())
