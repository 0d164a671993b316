"""Bench records beside earlier measurements of the same kernels on the same cells.

    python benchmarks/anchors.py results/h200/bench_page1.json results/h200/bench_page64.json \
        results/h200/bench_contiguous.json results/h200/bench_contiguous_short.json

The earlier ones are in results/h200/anchors.json: events around one call, cold L2, one request.
Their cells may be spread over several records; of a cell that is in two, the last given counts.
Ends with 1 where a kernel is more than 10 % off, or a cell of the anchors was not measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from verify_attn.record import RecordError, read_record

ANCHORS = Path(__file__).resolve().parents[1] / "results/h200/anchors.json"
WITHIN = 0.10
# Their kernels' names, and ours with the layout and the tree that they were measured with.
NAMES = {
    "sglang-triton-extend-scat": ("sglang-extend", "shuffled", "tree"),
    "sglang-triton-extend-contig": ("sglang-extend", "contiguous", "tree"),
    "flashinfer-0.5.3-fa3": ("flashinfer-fa3", "shuffled", "chain"),
    "flashinfer-0.5.3-fa2": ("flashinfer-fa2", "shuffled", "chain"),
    "flashmla-sm90": ("flashmla", "shuffled", "chain"),
}
KEY = ("kernel", "context", "nodes", "page_size", "layout", "tree", "requests", "heads", "dtype")


def main(paths: Sequence[Path]) -> int:
    """Print a line for each anchor, and how many are within, off and missing; 2 for a file that is
    no record."""
    try:
        cases = [case for path in paths for case in read_record(path)["cases"]]
    except RecordError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    found = {
        tuple(case["parameters"][name] for name in KEY): case["metrics"]["run_ms"]
        for case in cases
        if "run_ms" in case["metrics"]
    }
    within = off = missing = 0
    for row in json.loads(ANCHORS.read_text())["rows"]:
        kernel, layout, tree = NAMES[row["kernel"]]
        cell = (row["context"], row["nodes"], row["page_size"], layout, tree, 1, 8, "bfloat16")
        ours = found.get((kernel, *cell))
        line = (
            f"{kernel:15} {row['context']:>7} {row['nodes']:>3} page {row['page_size']:>2} "
            f"{layout}: {row['ms']:.4f} ms there, "
        )
        if ours is None:
            missing += 1
            print(f"{line}not measured here")
            continue
        by = ours / row["ms"] - 1
        far = abs(by) > WITHIN
        off, within = off + far, within + (not far)
        mark = f"  more than {WITHIN:.0%} off" if far else ""
        print(f"{line}{ours:.4f} here, {(ours - row['ms']) * 1e3:+.1f} us, {by:+.1%}{mark}")
    print(f"{within} anchors within {WITHIN:.0%}, {off} off, {missing} not measured")
    return 1 if off or missing else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} RECORD ...", file=sys.stderr)
        sys.exit(2)
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
