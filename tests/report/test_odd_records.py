"""Records that are hostile, broken or huge."""

import copy
import json
import random
import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from tests.report import records
from tests.report.pages import LIMIT_BYTES, VERDICT, Page, by_id, charts, made, whole
from verify_attn.report.html import figure as fig
from verify_attn.report.html import page, write_report
from verify_attn.report.html.values import ROWS, plain, some
from verify_attn.report.verdict import Verdict


@pytest.fixture
def bare(monkeypatch):
    """Pages without plotly.js: a hundredth of the size."""
    monkeypatch.setattr("verify_attn.report.html.page.plotly_js", lambda: "var Plotly;")


def test_text_of_others_stays_text(bare):
    folder = records.folder(Path(f"run{records.HOSTILE[:40]}"), **records.hostile())
    text = made(folder, against=records.hostile()["sweep"])
    found = Page(text)
    assert [a.get("type") for a in found.all("script")] == ["application/json", None, None]
    assert not {"img", "b", "iframe", "object", "link"} & {tag for tag, _ in found.tags}
    for _, attrs in found.tags:
        assert not [name for name in attrs if name.startswith("on")]
        assert attrs.get("href", "#").startswith("#")
    shown = "".join(found.text)
    assert "<script>window.hacked=1</script>" in shown
    assert "\\x1b[31m\\ud800" in shown
    assert "\\u202e" in shown
    assert not re.search("[\u202e\x1b]", text)
    text.encode()  # no lone surrogate is left


def test_text_of_others_is_no_markup_for_plotly():
    folder = records.folder(Path("run"), **records.hostile())
    others = [records.record("x", [records.case(
        records.HOSTILE, metrics={"runs_before": 9, "runs_after": 1})])]  # fmt: skip
    seen = []

    def walk(value):
        if isinstance(value, str):
            seen.append(value)
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                walk(item)

    for chart in charts(by_id(folder, records.hostile()["sweep"], others)).values():
        walk(chart.figure)
    assert any("&lt;script&gt;" in text for text in seen)
    assert {tag for text in seen for tag in re.findall("<[^>]*>?", text)} == {"<br>"}


def test_figures_in_the_page_are_the_same_json(bare):
    text = made(records.folder(Path("run"), **records.hostile()))
    data = re.search(r'id="figures">(.*?)</script>', text, re.S)[1]
    assert not set("<>&") & set(data)
    figures = json.loads(data)["figures"]
    want = charts(by_id(records.folder(Path("run"), **records.hostile())))
    assert figures == {name: json.loads(json.dumps(c.figure)) for name, c in want.items()}


STRANGE = (None, True, -1, 0, 1e308, "text", [], {}, [None], [{}], {"a": [1]}, 10**400)


def mutated(value, dice, rate):
    """A copy with parts dropped or replaced; statuses stay, as `read_record` sees to it."""
    if isinstance(value, dict):
        return {
            k: v if k in ("status", "schema_version") else mutated(v, dice, rate)
            for k, v in value.items() if k in ("status", "cases") or dice.random() > rate
        }  # fmt: skip
    if isinstance(value, list):
        return [mutated(v, dice, rate) for v in value]
    return dice.choice(STRANGE) if dice.random() < rate else value


@pytest.mark.parametrize("seed", range(40))
def test_any_part_of_a_record_may_be_missing_or_of_another_type(bare, seed):
    dice = random.Random(seed)
    given = {
        "sweep": records.real(dice.choice(["cpu/burst_prose.json", "h200/collapse.json"])),
        "check": records.failing_check(), "bench": records.bench(),
    }  # fmt: skip
    rate = dice.choice([0.02, 0.1, 0.4])
    given = {name: mutated(r, dice, rate) for name, r in given.items()}
    other = mutated(records.real("h200/defragmentation.json"), dice, rate)
    folder = records.folder(Path("run"), run=mutated(records.run_record(), dice, rate), **given)
    text = page.page(folder, VERDICT, against=given["sweep"], others=[other])
    assert Page(text).all("section")


@pytest.mark.parametrize("status", ["pass", "fail", "error", "inconclusive", "skipped"])
def test_each_status_is_in_words_beside_its_colour(bare, status):
    sweep = records.real("cpu/burst_prose.json")
    sweep["cases"] = sweep["cases"][:1]
    sweep["cases"][0] |= {"status": status, "reason": "because", "notes": ["noted"]}
    text = made(records.folder(Path("run"), sweep=sweep), VERDICT)
    assert f'<span class="badge small {status}"><span aria-hidden="true">' in text
    assert "because" in text


@pytest.mark.parametrize("status", ["pass", "fail", "inconclusive", "dead", "interrupted"])
def test_each_verdict_is_named_first(bare, status):
    verdict = Verdict(status, f"{status.upper()}: in one line", (), (), 0)
    found = Page(made(whole(), verdict))
    assert page.WORDS[status] in "".join(found.text).split("in one line")[0]


def test_one_point_and_no_point():
    sweep = records.real("cpu/burst_prose.json")
    sweep["cases"] = sweep["cases"][:1]
    sweep["overview"] = {}
    found = by_id(records.folder(Path("run"), sweep=sweep))
    assert "no fit, which takes two contexts" in found["step-time"].charts[0].says
    sweep["cases"] = []
    found = by_id(records.folder(Path("run"), sweep=sweep))
    assert found["decode"].empty == "the sweep has no point"


def test_a_dead_server_says_so_where_the_curve_would_be():
    dead = records.case("ctx=1k", "error", "the server died", {"context": 1024, "concurrency": 1},
                        absent={}, died=True, answers=[])  # fmt: skip
    found = by_id(records.folder(Path("run"), sweep=records.record("verify-attn sweep", [dead])))
    assert found["decode"].empty == "ctx=1k: the server died"
    assert found["decode"].more["points"][0]["reason"] == "the server died"


def test_ten_thousand_cases_and_long_texts_stay_small(tmp_path):
    long = "x" * 20_000
    failure = {"text": long, "case": {"requests": [[0, "chain:2"]]}}
    cases = [
        records.case(f"k{k}/c{c}", "fail" if (k + c) % 2 else "pass", long,
                     {"kernel": f"kernel{k}", "check": f"check{c}"}, {"executed": 5},
                     **({"failures": [failure]} if (k + c) % 2 else {}))
        for k in range(500) for c in range(20)
    ]  # fmt: skip
    point = records.real("cpu/burst_prose.json")["cases"][1]
    sweep = records.real("cpu/burst_prose.json")
    sweep["cases"] = []
    for i in range(3000):
        more = copy.copy(point) | {"id": f"ctx={i}", "reason": long, "notes": [long] * 20}
        more["metrics"] = point["metrics"] | {"prompt_tokens": 1000 + i}
        more["parameters"] = {"context": 1000 + i, "concurrency": 1 + i % 40}
        sweep["cases"].append(more)
    bench = records.record("verify-attn bench", [
        records.timed(f"kernel{i % 50}", 1000 + i, 32, 1.0, 0.5) for i in range(5000)])  # fmt: skip
    folder = records.folder(Path("run"), check=records.record("verify-attn check", cases),
                            sweep=sweep, bench=bench)  # fmt: skip
    write_report(folder, VERDICT, tmp_path / "out.html", against=sweep)
    text = (tmp_path / "out.html").read_text()
    assert len(text.encode()) < LIMIT_BYTES
    for said in (
        "460 more kernels are in the record", "30 of 5,000 failures are told in full",
        "2,800 more rows are in the record", "12 of 40 lines are drawn",
        "20,000 characters in all",
    ):  # fmt: skip
        assert said in text, said


def test_the_tables_cut_at_rows_and_say_so():
    table = fig.Table.of(["a"], [["1"]] * (ROWS + 5))
    assert (len(table.rows), table.note) == (ROWS, "5 more rows are in the record.")
    assert some(list(range(10)), 4) == [0, 3, 6, 9]
    assert plain("a" * 700).endswith("... (700 characters in all)")
