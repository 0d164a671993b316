"""The run that is committed as an example: its records still load, and say what its page says.

That the page opens is in test_browser.py.
"""

import re
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from tests.report.records import RESULTS
from verify_attn.cli import main
from verify_attn.record import read_record
from verify_attn.report.folder import STEPS, read_folder
from verify_attn.report.verdict import judge

RUN = RESULTS / "h200/run"
LIMIT_BYTES = 8_000_000


def test_every_record_of_it_is_whole():
    folder = read_folder(RUN)
    assert folder.run_problem is None
    assert [folder.steps[name].problem for name in STEPS] == [None] * len(STEPS)
    verdict = judge(folder)
    assert (verdict.status, verdict.exit_code) == ("inconclusive", 3)
    assert verdict.headline.startswith("INCONCLUSIVE: decode falls from 237.7 to 108.9 tok/s")


def test_its_page_says_what_its_records_say():
    told = " ".join((RUN / "README.md").read_text().split())
    checks = [case["metrics"] for case in read_record(RUN / "check.json")["cases"]]
    ran = [one["executed"] for one in checks]
    assert f"all {len(ran)} checks, {sum(ran):,} times on 10,000 drawn cases" in told
    assert min(ran) > 460
    reasons: Counter[str] = Counter()
    for one in checks:
        reasons.update(one["skipped"])
    of_q, of_case = (
        sum(count for reason, count in reasons.items() if reason.startswith(first))
        for first in ("rows of q", "the case has")
    )
    widths = reasons.total() - of_q - of_case
    assert f"{of_q + widths:,} times one was not" in told
    assert f"(rows at odd addresses, {of_q:,}) or such widths ({widths:,}); {of_case} times" in told
    timed = [c for c in read_record(RUN / "bench.json")["cases"] if "speedup" in c["metrics"]]
    speedups = [c["metrics"]["speedup"] for c in timed]
    assert (
        f"{len(timed)} cells along every axis, `sm120` {min(speedups):.0f} to {max(speedups):.0f}"
        in told
    )
    rates = [c["metrics"]["decode_tok_s"] for c in read_record(RUN / "sweep.json")["cases"]]
    assert ", ".join(f"{rate:.0f}" for rate in rates) + " tok/s" in told


def test_report_makes_its_page_again(tmp_path: Path):
    page = tmp_path / "r.html"
    done = CliRunner().invoke(main, ["report", str(RUN), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert page.stat().st_size < LIMIT_BYTES
    assert (RUN / "report.html").stat().st_size < LIMIT_BYTES
    headline = re.compile(r'id="headline".*?</', re.DOTALL)
    again, kept = (headline.search(p.read_text()) for p in (page, RUN / "report.html"))
    assert again
    assert kept
    assert again[0] == kept[0]


def test_its_files_name_no_place_of_the_machine_that_it_ran_on():
    for path in RUN.iterdir():
        if path.suffix != ".html":  # plotly's own text is in it
            assert not re.search(r"(?<![\w.])/(home|root|tmp|work)/", path.read_text()), path
