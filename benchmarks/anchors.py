"""A bench record beside earlier measurements of the same kernels on the same cells.

    python benchmarks/anchors.py results/h200/bench.json

The earlier ones are in results/h200/anchors.json: events around one call, cold L2, one request.
Ends with 1 where a kernel is more than 10 % off, or a cell of the anchors was not measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from verify_attn.record import read_record

ANCHORS = Path("results/h200/anchors.json")
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


def main(path: Path) -> int:
    """Print a line for each anchor."""
    found = {
        tuple(case["parameters"][name] for name in KEY): case["metrics"]["run_ms"]
        for case in read_record(path)["cases"]
        if "run_ms" in case["metrics"]
    }
    wrong = 0
    for row in json.loads(ANCHORS.read_text())["rows"]:
        kernel, layout, tree = NAMES[row["kernel"]]
        cell = (row["context"], row["nodes"], row["page_size"], layout, tree, 1, 8, "bfloat16")
        ours = found.get((kernel, *cell))
        name = (
            f"{kernel:15} {row['context']:>7} {row['nodes']:>3} page {row['page_size']:>2} {layout}"
        )
        if ours is None:
            print(f"{name}: {row['ms']:.4f} ms there, not measured here")
            wrong += 1
            continue
        off = ours / row["ms"] - 1
        wrong += abs(off) > WITHIN
        mark = "" if abs(off) <= WITHIN else f"  more than {WITHIN:.0%} off"
        print(f"{name}: {row['ms']:.4f} ms there, {ours:.4f} here, {off:+.1%}{mark}")
    print(f"{wrong} anchors are off or missing")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RECORD")
    sys.exit(main(Path(sys.argv[1])))
