"""Where main's times of a GPU are kept on the branch `records`: perf/nvidia-h200.json.

python3 ci/baseline.py FILE, a file of pytest --benchmark-json, prints it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def baseline(path: Path) -> str:
    """The name, by the GPU that the file says it was measured on; ends the program if none."""
    try:
        name = json.loads(path.read_text())["machine_info"]["verify_attn"]["identity"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        sys.exit(f"{path} has no times of verify_benchmark: {type(wrong).__name__}: {wrong}")
    plain = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
    return f"perf/{plain or 'unknown'}.json"


if __name__ == "__main__":
    print(baseline(Path(sys.argv[1])))
