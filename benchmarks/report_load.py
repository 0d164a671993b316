"""How large a report is, and how long it takes to open in headless Chromium.

    python -m benchmarks.report_load FOLDER_OR_RECORD... [--against SWEEP.json] [--times 10]

Each time in a new browser, so that nothing is cached; from the navigation's start, by the page's
own performance entries: the first text on the screen, the load event, the last chart drawn.  Limits
are 8 MB and 2 s.  Needs the extras ``report`` and ``test``, Chromium and its driver.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from tests.report.browser import browser, missing

from verify_attn.record import read_record
from verify_attn.report.html import write_report
from verify_attn.report.verdict import judge
from verify_attn.report_command import read_inputs

LIMIT_BYTES, LIMIT_MS = 8_000_000, 2000
READ = """
const at = (name) => performance.getEntriesByName(name)[0].startTime;
return [at("first-contentful-paint"), performance.getEntriesByType("navigation")[0].loadEventEnd,
        at("charts-drawn")]
"""
WHAT = ("first text", "load event", "last chart drawn")


def main() -> int:
    """Print the figures; 1 where a limit is passed, 3 where there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    if why := missing():
        print(f"{why}: nothing was measured", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as place:
        page = Path(place, "report.html")
        inputs = read_inputs(given.records)
        saved = None if given.against is None else read_record(given.against)
        write_report(inputs.folder, judge(inputs.folder), page, saved, inputs.others)
        size = page.stat().st_size
        samples = [_load(page) for _ in range(given.times)]
    print(f"size: {size:,} bytes, the limit is {LIMIT_BYTES:,}")
    for name, values in zip(WHAT, zip(*samples, strict=True), strict=True):
        middle = statistics.median(values)
        print(f"{name}: median {middle:,.0f} ms, {min(values):,.0f} to {max(values):,.0f}")
    slow = statistics.median(drawn for _, _, drawn in samples) > LIMIT_MS
    return 1 if slow or size > LIMIT_BYTES else 0


def _load(page: Path) -> tuple[float, float, float]:
    with browser() as one:
        one.open(page)
        paint, loaded, drawn = one.script(READ)
        return paint, loaded, drawn


if __name__ == "__main__":
    sys.exit(main())
