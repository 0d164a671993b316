"""The page without a browser: its numbers, its text, what it does with odd records."""

import copy
import json
import random
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

plotly = pytest.importorskip("plotly")

from tests.report import records
from verify_attn.report.html import figure as fig
from verify_attn.report.html import page, write_report
from verify_attn.report.html.page import sections
from verify_attn.report.html.values import ROWS, plain, some
from verify_attn.report.verdict import Reason, Verdict, judge

LIMIT_BYTES = 8_000_000
VERDICT = Verdict("fail", "FAIL: a reason", (Reason("check", "fail", "a reason", ""),), ("x",), 1)


class Page(HTMLParser):
    """Tags with their attributes, in order, and the text outside of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture
def bare(monkeypatch):
    """Pages without plotly.js: a hundredth of the size."""
    monkeypatch.setattr("verify_attn.report.html.page._plotly", lambda: "var Plotly;")


def made(folder, verdict=None, **more):
    return page.page(folder, verdict or judge(folder), **more)


def whole():
    """A folder with something in every section."""
    return records.folder(
        Path("run"), run=records.run_record(), sweep=records.real("cpu/burst_prose.json"),
        check=records.failing_check(), bench=records.bench(),
    )  # fmt: skip


def by_id(folder, against=None, others=()):
    return {s.id: s for s in sections(folder, against, others)}


def charts(found):
    return {c.id: c for s in found.values() for c in s.charts}


# -- what is drawn -------------------------------------------------------------------------------


def test_every_section_is_there_and_has_something():
    found = by_id(whole(), others=[records.real("h200/defragmentation.json")])
    assert {name for name, s in found.items() if s.empty} == set()
    assert set(charts(found)) == {
        "decode-chart", "within-chart", "histogram-chart", "position-chart", "step-time-chart",
        "prefill-chart", "kernels-context-chart", "kernels-nodes-chart", "runs-chart",
        "defragmented-chart", "layouts-chart",
    }  # fmt: skip


def test_a_section_without_data_says_why():
    problems = {"sweep": "sweep.json is half-written", "bench": "no GPU"}
    found = by_id(records.folder(Path("run"), problems))
    assert found["decode"].empty == "sweep: sweep.json is half-written"
    assert found["kernels"].empty == "bench: no GPU"
    assert all(s.empty for name, s in found.items() if name not in ("tree", "steps"))
    assert "An example" in found["tree"].more["says"]


@pytest.mark.parametrize(
    "name", ["cpu/burst_prose.json", "cpu/burst_reasoning.json", "h200/collapse.json"]
)
def test_figures_are_what_plotly_accepts(name):
    from plotly.graph_objects import Figure

    folder = records.folder(Path("run"), sweep=records.real(name), bench=records.bench(),
                            check=records.failing_check())  # fmt: skip
    others = [records.real("h200/fragmentation.json"), records.real("h200/defragmentation.json")]
    found = charts(by_id(folder, records.real("h200/collapse.json"), others))
    assert found
    for chart in found.values():
        Figure(chart.figure)  # raises for a property or a value that it does not know
        assert chart.table.rows
        assert chart.says


def test_decode_has_the_records_numbers_floors_and_the_saved_run():
    sweep, saved = records.collapse(), records.real("cpu/burst_prose.json")
    chart = charts(by_id(records.folder(Path("run"), sweep=sweep), saved))["decode-chart"]
    named = {t.get("name"): t for t in chart.data}
    want = [(c["metrics"]["prompt_tokens"], c["metrics"]["decode_tok_s"]) for c in sweep["cases"]]
    assert list(zip(named["1 stream"]["x"], named["1 stream"]["y"], strict=True)) == want
    assert named["1 stream"]["marker"]["symbol"] == ["circle", *["x"] * 5]
    assert named["floor: chat"]["y"] == [40.0] * 6
    assert chart.data[0]["name"].startswith("saved 2026-11-30 18:33"), "it lies behind the others"
    band = next(t for t in chart.data if t.get("fill") == "toself")
    assert band["y"][0] == sweep["cases"][0]["metrics"]["decode_tok_s_high"]
    assert band["y"][-1] == sweep["cases"][0]["metrics"]["decode_tok_s_low"]
    assert "115.2 tok/s at 1,427 tokens, 1.828 at 184,679" in chart.says


def test_a_compared_sweep_without_its_saved_run_says_how_to_draw_it():
    sweep = records.real("cpu/burst_prose.json") | {"against": {"name": "old.json", "differs": []}}
    notes = by_id(records.folder(Path("run"), sweep=sweep))["decode"].notes
    assert "The sweep was compared with old.json; report --against draws it." in notes


def test_change_points_of_an_answer_are_marked():
    section = by_id(whole())["within"]
    marks = next(t for t in section.charts[0].data if t["mode"] == "markers+text")
    assert (marks["x"], marks["text"]) == ([1132], ["acceptance-falls"])
    windows = records.real("cpu/burst_prose.json")["cases"][1]["answers"][0]["windows"]
    inside = [w for w in windows if w["first_token"] <= 1132 < w["first_token"] + w["tokens"]]
    assert marks["y"] == [inside[0]["tok_per_s"]]
    assert "token 1,132: acceptance-falls" in section.notes[0]


def test_change_points_are_read_from_the_words_that_the_diagnosis_writes():
    from verify_attn.live import within as diagnosis
    from verify_attn.report.html.windows import AT_TOKEN

    source = Path(diagnosis.__file__).read_text()
    assert source.count(" at token {at}") == 2
    assert AT_TOKEN.search("by 1.27 times at token 1034")[1] == "1034"


def test_committed_histogram_counts_the_bonus_token():
    chart = charts(by_id(whole()))["histogram-chart"]
    server = records.real("cpu/burst_prose.json")["cases"][1]["answers"][0]["metrics"]["server"]
    steps = server["accepted_drafts_histogram"]
    bars = chart.data[1]
    assert bars["x"][0] == 1, "a step that accepts no draft commits one token"
    assert bars["y"] == [n / 233 for n in steps]
    assert "3,071 tokens: 6.45 committed a step" in chart.says
    positions = charts(by_id(whole()))["position-chart"].data[1]["y"]
    assert positions == server["accepted_per_position"]


def test_the_fit_is_drawn_from_its_coefficients():
    sweep = records.collapse()
    chart = charts(by_id(records.folder(Path("run"), sweep=sweep)))["step-time-chart"]
    own = sweep["overview"]["1"]["step_time_fit"]
    curve = next(t for t in chart.data if t["name"].endswith("fit"))
    n = curve["x"][-1]
    assert n == 184_679 + 40.5, "half of the answer's 81 tokens are in the KV too"
    assert curve["y"][-1] == pytest.approx(1e3 * (own["fixed_s"] + own["linear_s_per_token"] * n))
    assert "linear: 17.49 ms + 11.76 ms every 1,000 tokens" in chart.says
    assert any("attention" in t["name"] for t in chart.data)


def test_kernels_are_drawn_along_one_axis_and_projections_marked():
    section = by_id(whole())["kernels"]
    by_context, by_nodes = section.charts
    line = next(t for t in by_context.data if t["name"] == "triton-split")
    assert line["x"] == [1427, 11402, 31952, 65536, 131072, 184728]
    assert next(t for t in by_nodes.data if t["name"] == "triton-split")["x"] == [8, 32, 64, 256]
    guess = next(t for t in by_context.data if "projected" in t["name"])
    assert guess["marker"]["symbol"].endswith("-open")
    assert ["projected, not measured" in row[-1] for row in by_context.table.rows].count(True) == 2
    assert "nothing was run for them" in section.notes[0]
    assert any("page_size 1 is not declared" in note for note in section.notes)


def test_context_by_nodes_is_a_grid_where_both_were_combined():
    cells = [records.timed("k", c, n, 1.0, c / n / 10_000) for c in (1000, 2000) for n in (8, 32)]
    bench = records.record("verify-attn bench", cells)
    grid = by_id(records.folder(Path("run"), bench=bench))["kernels"].more["grids"][0]
    assert grid["nodes"] == ["8", "32"]
    assert grid["rows"][0][1][0] == {"text": "1%", "full": 1}


def test_times_without_a_limit_are_drawn_as_times():
    bench = records.real("h200/kernel_times.json")
    found = by_id(records.folder(Path("run")), others=[bench])["kernels"]
    assert found.charts[0].title == "Time of a call by context"


def test_a_failure_is_told_down_to_the_line_that_makes_it_again():
    from verify_attn.generate import Case

    more = by_id(whole())["correctness"].more
    failure = more["failures"][0]
    assert failure["line"].startswith("verify-attn check examples.sibling_leak:verify --only oracle")
    Case.from_json(failure["line"].split("--case ")[1].strip("'"))
    oracle, lse = more["rows"]
    assert [c["text"] for c in oracle[1]] == ["fail", "24"]
    assert [c["text"] for c in lse[1]] == ["skipped", "24"]
    assert more["skipped"] == [("does not declare lse", "examples.sibling_leak:verify/lse")]


def test_the_failing_examples_tree_is_drawn_with_its_row():
    more = by_id(whole())["tree"].more
    assert "request 1 of 2" in more["says"]
    assert "The first wrong row is node 4: of the nodes it sees 0, 1, 4." in more["says"]
    assert [n["i"] for n in more["nodes"] if n["on"]] == [0, 1, 4]
    # Node i is seen by itself and its descendants: cells of the mask are depths + 1, summed.
    assert more["mask"].count("M") == sum((1, 2, 2, 3, 3, 3, 3, 4))


@pytest.mark.parametrize(
    ("tree", "says"),
    [("chain:400", "96 of 400 nodes are drawn"), ("star:5+3", "3 rows of padding"),
     ("padding:4", "An example"), ("nonsense", "An example"), (7, "An example")],
)  # fmt: skip
def test_trees_of_any_size_and_none(tree, says):
    check = records.failing_check()
    check["cases"][0]["failures"][0]["case"] = {"requests": [[0, tree]]}
    assert says in by_id(records.folder(Path("run"), check=check))["tree"].more["says"]


# -- odd and hostile records ---------------------------------------------------------------------


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
    write_report(folder, judge(folder), tmp_path / "out.html", against=sweep)
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


# -- the page itself -----------------------------------------------------------------------------


def test_links_ids_and_headings(bare):
    found = Page(made(whole()))
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"][1:] for attrs in found.all("a")]
    assert set(targets) <= set(ids)
    assert "failure-0" in targets
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    labelled = [attrs["aria-labelledby"] for _, attrs in found.tags if "aria-labelledby" in attrs]
    assert set(labelled) <= set(ids)
    assert found.all("html") == [{"lang": "en"}]
    for needed in ("title", "main", "nav", "header", "footer"):
        assert found.all(needed), needed
    assert all(attrs.get("scope") in ("col", "row") for attrs in found.all("th"))


def test_the_policy_allows_its_own_two_scripts_and_nothing_else(bare):
    text = made(whole())
    policy = next(a["content"] for a in Page(text).all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for scripts in re.findall("<script>(.*?)</script>", text, re.S):
        assert page._policy(scripts).split("'sha256-")[1].split("'")[0] in policy
    # Nothing is loaded: no attribute that could name another place.
    for _, attrs in Page(text).tags:
        assert not {"src", "srcset", "action", "data", "poster"} & set(attrs)


def test_plotly_is_inside_once(tmp_path):
    write_report(whole(), VERDICT, tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert text.count("* plotly.js v") == 1
    assert len(text.encode()) < LIMIT_BYTES


def test_every_colour_has_its_place_in_the_dark():
    folder = records.folder(Path("run"), sweep=records.real("h200/collapse.json"),
                            bench=records.bench())  # fmt: skip
    others = [records.real("h200/fragmentation.json"), records.real("h200/defragmentation.json")]
    used = set()

    def walk(value, colour=False):
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, colour or key.endswith("color"))
        elif isinstance(value, list):
            for item in value:
                walk(item, colour)
        elif colour:
            used.add(value)

    for chart in charts(by_id(folder, records.collapse(), others)).values():
        walk(chart.figure)
    assert used - {"rgba(0,0,0,0)"} <= set(fig.DARK)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_aa_in_both_schemes():
    css = resources.files("verify_attn.report.html").joinpath("templates/style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for part in css.split("@media (prefers-color-scheme: dark)")[:2]
    )
    assert set(light) == set(dark)
    for scheme in (light, dark):
        for name in ("ink", "muted", "link", "pass", "fail", "unsure"):
            assert contrast(scheme[name], scheme["card"]) >= 4.5, name
            assert contrast(scheme[name], scheme["page"]) >= 4.5, name
        assert contrast(scheme["node"], scheme["card"]) >= 3
        assert contrast(scheme["ink"], scheme["hit"]) >= 4.5
    for colour in (*fig.COLOURS, fig.LIMIT, fig.MUTED, fig.INK):
        assert contrast(colour, fig.SURFACE) >= 4.5, colour  # some of it is text in charts
        assert contrast(fig.DARK[colour], fig.DARK[fig.SURFACE]) >= 4.5, colour


def test_what_was_there_stays_where_writing_fails(tmp_path, monkeypatch):
    out = tmp_path / "out.html"
    out.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        write_report(whole(), VERDICT, out)
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]
    assert out.read_text() == "old"


def test_headline_without_the_status_that_the_badge_says(bare):
    found = "".join(Page(made(whole(), VERDICT)).text)
    assert "FAIL: a reason" not in found
    assert found.count("a reason") == 1, "a reason that is the headline is not said twice"
