"""Everything that is made of the H200's times by projection, made again from its record.

    python benchmarks/project_floors.py results/h200/bench_page1.json

writes the table of docs/projection.md, the floors of Kimi K2.6 on eight RTX PRO 6000 under `ci/`,
and the times that `verify-attn bench` projects from when it meets such a card.  All of it is marked
as projected.  The floors take the slow end of the projection:

    tok/s = committed tokens a step / (step outside attention + layers x attention)
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verify_attn.file_errors import file_error
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection import MARK, Projected, Projection, ProjectionError
from verify_attn.perf.projection_show import BUILT_IN, TARGET
from verify_attn.record import RecordError, read_record
from verify_attn.whole_file import write_whole

ROOT = Path(__file__).resolve().parents[1]
KERNEL = "sm120"
CONTEXTS = (1_427, 11_402, 31_952, 63_903, 127_802, 184_728)  # the deployment's
NODES = (8, 32, 64)
LAYERS = 61
# By the operators: a step took about 32 ms at short context, all of it counted as outside attention
# though attention was in it; on reasoning text it committed about 2.9 tokens.
STEP_S = 0.032
COMMITTED = 2.9
KEPT = ("run_ms", "run_low_ms", "run_high_ms", "sm_clock_mhz_least", "sm_clock_mhz_most")


def main() -> int:
    """Write all three; 2 where the record is of no use."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("record", type=Path, help="bench's, of the H200")
    arguments.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    arguments.add_argument("--nodes", type=int, default=32, help="of the floors' tree")
    arguments.add_argument("--committed", type=float, default=COMMITTED, help="tokens a step")
    arguments.add_argument("--step-ms", type=float, default=STEP_S * 1e3, help="outside attention")
    asked = arguments.parse_args()
    for name, value in (("--committed", asked.committed), ("--step-ms", asked.step_ms)):
        if not 0 < value < math.inf:
            print(f"error: {name} is {value:g}; give a number above 0", file=sys.stderr)
            return 2
    if asked.nodes < 1:
        print(f"error: --nodes is {asked.nodes}; a tree has its root at least", file=sys.stderr)
        return 2
    try:
        record = read_record(asked.record)
        projection = Projection.from_record(record, TARGET)
        told = floors(projection, asked.nodes, asked.committed, asked.step_ms / 1e3)
        page = asked.root / "docs/projection.md"
        data = asked.root / "src/verify_attn" / BUILT_IN
        data.parent.mkdir(exist_ok=True)
        files = {  # all are made before one is written: they belong together
            page: between(page.read_text(), table(projection)),
            asked.root / "ci/floors-kimi-k2.6-8x-rtx-pro-6000.toml": told,
            data: json.dumps(reduced(record), indent=1) + "\n",
        }
        for path, text in files.items():
            write_whole(path, text.encode())
    except (RecordError, ProjectionError) as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    except OSError as wrong:
        print(f"error: {file_error(wrong)}", file=sys.stderr)
        return 2
    print(*(path.relative_to(asked.root) for path in files), sep="\n")
    return 0


def found(projection: Projection, context: int, nodes: int) -> Projected:
    """One request of the deployment; raises `ProjectionError` where it was not measured."""
    cell = Cell(context=context, nodes=nodes)
    projected = projection.project(KERNEL, cell)
    if isinstance(projected, str):
        raise ProjectionError(f"{KERNEL} | {cell.id}: {projected}; measure it with verify-attn "
                              f"bench {KERNEL} --grid --contexts {','.join(map(str, CONTEXTS))} "
                              f"--nodes {','.join(map(str, NODES))}")  # fmt: skip
    return projected


def floors(projection: Projection, nodes: int, committed: float, step_s: float) -> str:
    """A floors file (docs/floors.md) from the slow end, rounded down."""
    points = []
    for context in CONTEXTS:
        attention_s = LAYERS * found(projection, context, nodes).high_ms / 1e3
        rate = committed / (step_s + attention_s)
        points.append(f"    [{context}, {math.floor(rate * 10) / 10:.1f}],")
    return "\n".join((
        "# PROJECTED, not measured: from one H200's times of the kernel sm120 at the slow end of",
        "# docs/projection.md, by benchmarks/project_floors.py.  Nobody has seen these rates.",
        f"# {committed:g} committed tokens a step; {step_s * 1e3:g} ms a step outside attention;",
        f"# {LAYERS} layers; {nodes} nodes a step; one stream; page size 1; bf16 KV.",
        "schema_version = 1", "", "[[floor]]",
        f'name = "Kimi K2.6 on 8 x RTX PRO 6000 with {KERNEL} ({MARK})"',
        'model = "*kimi-k2*"', 'unit = "tok/s"', "points = [", *points, "]", "",
    ))  # fmt: skip


def table(projection: Projection) -> list[str]:
    """Lines of Markdown: the deployment's contexts by nodes."""
    source, target = projection.source_sheet.name, projection.target_sheet.name
    lines = [
        f"One `run` on one {target} in ms, {MARK}; the {source}'s are measured.", "",
        f"| tokens | nodes | {source} | projected | range | binds | blocks |",
        "| ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]  # fmt: skip
    for context in CONTEXTS:
        for nodes in NODES:
            p = found(projection, context, nodes)
            lines.append(
                f"| {context:,} | {nodes} | {p.source_ms:.3f} | {p.ms:.3f} | {p.low_ms:.3f} to "
                f"{p.high_ms:.3f} | {p.binds} | {p.blocks} |"
            )
    return lines


def between(text: str, lines: Sequence[str]) -> str:
    """The page with these lines between its marks."""
    new = "\n".join(("<!-- projected -->", *lines, "<!-- end of projected -->"))
    return re.sub(
        "<!-- projected -->.*?<!-- end of projected -->", lambda _: new, text, flags=re.DOTALL
    )


def reduced(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a projection needs of a record, still one."""
    bench = record["environment"]["bench"]
    return {
        "schema_version": record["schema_version"], "command": record["command"],
        "started": record.get("started"), "commit": record.get("commit"),
        "environment": {"bench": {n: bench[n] for n in ("identity", "ceilings")}},
        "cases": [
            {
                "id": case["id"], "parameters": case["parameters"], "status": case["status"],
                "reason": case["reason"],
                "metrics": {n: v for n, v in case["metrics"].items() if n in KEPT},
            }
            for case in record["cases"]
            if case["parameters"].get("kernel") == KERNEL and case["status"] == "pass"
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
