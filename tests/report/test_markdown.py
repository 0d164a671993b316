"""The job summary: everything said, nothing obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.folders import RESULTS, folder, run_record, swept
from verify_attn.report.folder import read_folder
from verify_attn.report.markdown import LONGEST, escaped, summary
from verify_attn.report.verdict import judge

HOSTILE = (
    "a|b\n\n# big\r\n<script>alert(1)</script> `code` **bold** _it_ [x](http://evil) ![i](y) &lt; "
    "~~gone~~ @someone https://evil.example www.evil.example \x1b[31m \u202e \\"
)


def written(path: Path, **records: Any) -> str:
    found = read_folder(folder(path, run_record(), **records))
    return summary(found, judge(found))


def test_all_that_is_measured(tmp_path: Path) -> None:
    text = written(tmp_path, check=RESULTS / "cpu/check.json", sweep=swept("healthy"))
    lines = text.splitlines()
    assert lines[0].startswith("## ✅ verify-attn: PASS: torch, triton-unsplit, triton-split right")
    assert "| torch | 16 | 0 | 0 | 2 |" in lines
    assert "| ctx=512 | pass | 512 | 129.6 | 4.00 | 30.9 | 0.04 |" in lines
    assert "| check | pass | 2 | verify-attn check |" in lines
    assert "- sweep: no floor was given: decode rates were held to no limit" in lines


def test_kernel_times(tmp_path: Path) -> None:
    case = {
        "id": "triton-split | tiny r1", "parameters": {"kernel": "triton-split"}, "status": "pass",
        "reason": None,
        "metrics": {"run_ms": 0.1234567, "limit_share": 0.831, "speedup": 41.25},
    }  # fmt: skip
    text = written(tmp_path, bench={"schema_version": 1, "cases": [case]})
    assert "| triton-split &#124; tiny r1 | pass | 0.1235 | 83% | 41.25 |" in text


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    record = json.loads(swept("stall").read_text())
    record["cases"][0] |= {"id": HOSTILE, "reason": HOSTILE, "status": "error"}
    record["findings"][0]["points"] = [HOSTILE]
    text = written(tmp_path, sweep=record)
    rows = [line for line in text.splitlines() if line.startswith("|") and "script" in line]
    assert len(rows) == 1
    assert rows[0].count("|") == 8  # of the table's seven columns, none of the text's
    assert "<" not in text
    assert "`" not in text
    assert not re.search(r"https?://|\[|!\[|\*\*bold|~~|@|www\.", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "&#60;script&#62;alert(1)&#60;/script&#62;" in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a\nb\t c", "a b c"), ("\x1b[1m\ud800", "&#92;x1b&#91;1m&#92;ud800"), ("3 < 4", "3 &#60; 4"),
     ("süß 零", "süß 零"), ("sibling_leak", "sibling&#95;leak"),
     ("$x^2$", "&#36;x^2&#36;")],
)  # fmt: skip
def test_escaped(given: str, shown: str) -> None:
    assert escaped(given) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    shown = escaped("x" * (LONGEST + 1234))
    assert shown == "x" * LONGEST + " … (1,234 characters more in the record)"


def test_however_much_failed_it_stays_below_what_github_takes(tmp_path: Path) -> None:
    swept_record = json.loads(swept("step-time-floors").read_text())
    point = swept_record["cases"][1]
    swept_record["cases"] = [point | {"id": f"ctx={i}|" * 99} for i in range(700)]
    check = json.loads((RESULTS / "cpu/check.json").read_text())
    check["cases"] = [
        {"id": f"k{i}/oracle", "parameters": {"kernel": "<" * 900 + str(i), "check": "oracle"},
         "status": "fail", "reason": "<" * 900, "metrics": {}} for i in range(700)
    ]  # fmt: skip
    run = run_record({"doctor": 0, "check": 1, "bench": None, "sweep": 1})
    found = read_folder(folder(tmp_path, run, check=check, sweep=swept_record))
    verdict = judge(found)
    text = summary(found, verdict)
    assert len(text.encode()) < 1 << 20
    assert len(verdict.reasons) >= 1400
    assert f"- and {len(verdict.reasons) - 100:,} more in the records" in text
    assert text.count("and 600 more in the record") == 2
