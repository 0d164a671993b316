"""Put the times of a record into the README, between its table marks.

python benchmarks/table.py results/h200/kernel_times.json README.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from verify_attn.record import read_record

SGLANG = "sglang-extend"
FORMER_NAMES = {"examples.sglang_kernel:extend": SGLANG}  # in records of before
NAMES = {SGLANG: "SGLang 0.5.23 extend"}
KERNELS = (SGLANG, "triton-unsplit", "triton-split")


def main() -> None:
    """Rewrite the README's table."""
    record, readme = read_record(Path(sys.argv[1])), Path(sys.argv[2])
    times = {}
    for case in record["cases"]:
        cell = case["parameters"]
        kernel = FORMER_NAMES.get(cell["kernel"], cell["kernel"])
        times[kernel, cell["context"], cell["nodes"]] = case["metrics"]["median_ms"]
    contexts = sorted({context for _, context, _ in times})
    nodes = sorted({n for _, _, n in times})
    lines = ["| tokens | nodes | " + " | ".join(NAMES.get(k, k) for k in KERNELS) + " |"]
    lines.append("| ---: " * (2 + len(KERNELS)) + "|")
    for context in (contexts[0], *contexts[2:3], contexts[-1]):
        for n in nodes:
            cells = (f"{times[kernel, context, n]:.3f}" for kernel in KERNELS)
            lines.append(f"| {context:,} | {n} | " + " | ".join(cells) + " |")
    table = "<!-- table -->\n" + "\n".join(lines) + "\n<!-- end of table -->"
    text = readme.read_text()
    text = re.sub(r"<!-- table -->(.*?<!-- end of table -->)?", table, text, flags=re.DOTALL)
    readme.write_text(text)


if __name__ == "__main__":
    main()
