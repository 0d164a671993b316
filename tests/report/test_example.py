"""The run that is committed as an example: its records still load, and say what its page says.

That the page opens is in test_browser.py.
"""

import re
from pathlib import Path

from click.testing import CliRunner

from tests.report.records import RESULTS
from verify_attn.cli import main
from verify_attn.report.folder import STEPS, read_folder
from verify_attn.report.verdict import judge

RUN = RESULTS / "h200/run"
LIMIT_BYTES = 8_000_000


def test_every_record_of_it_is_whole():
    folder = read_folder(RUN)
    assert folder.run_problem is None
    assert [folder.steps[name].problem for name in STEPS] == [None] * len(STEPS)
    verdict = judge(folder)
    assert (verdict.status, verdict.exit_code) == ("fail", 1)
    assert verdict.headline.startswith("FAIL: triton-unsplit | kimi-k2.6-tp8 r1 c1427 n32")


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
