"""What the page draws: the records' own numbers, in every section."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from tests.report import records
from tests.report.pages import by_id, charts, whole


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
    assert "112.7 tok/s at 1,427 tokens, 1.785 at 184,679" in chart.says


def test_without_a_gpu_kernel_times_say_so_and_what_to_do():
    run = records.run_record() | {"environment": {"gpus": []}}
    run["cases"] = [c for c in run["cases"] if c["id"] != "bench"]
    skipped = {"id": "bench", "status": "skipped", "reason": "no GPU here: kernels were not timed",
               "metrics": {}, "parameters": {}, "exit_code": None}  # fmt: skip
    for more in ([skipped], []):
        whole = run | {"cases": run["cases"] + more}
        empty = by_id(records.folder(Path("."), run=whole))["kernels"].empty
        assert empty.startswith("nothing was timed, because this machine has no GPU; on one that")
        assert "verify-attn bench --json" in empty
        assert "missing" not in empty


def test_a_step_that_was_skipped_says_why_not_that_a_file_is_missing():
    skipped = {"id": "sweep", "status": "skipped", "reason": "it needs fastapi", "metrics": {},
               "parameters": {}, "exit_code": None}  # fmt: skip
    run = records.run_record() | {"cases": [skipped]}
    assert by_id(records.folder(Path("."), run=run))["decode"].empty == "sweep: it needs fastapi"


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
    from verify_attn.report.html.windows import AT_TOKEN

    source = Path(find_spec("verify_attn.live.within").origin).read_text()
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
    at_n = own["linear_s_per_token"] * n + own["quadratic_s_per_token2"] * n**2
    assert curve["y"][-1] == pytest.approx(1e3 * (own["fixed_s"] + at_n))
    assert "linear: 17.83 ms + 12.03 ms every 1,000 tokens" in chart.says
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
    assert grid["title"] == "k: share of the limit by context and nodes"
    assert grid["nodes"] == ["8", "32"]
    assert grid["rows"][0][1][0] == {"text": "1%", "full": 1}


def test_times_without_a_limit_are_drawn_as_times():
    bench = records.real("h200/kernel_times.json")
    found = by_id(records.folder(Path("run")), others=[bench])["kernels"]
    assert found.charts[0].title == "Time of a call by context"
    title = found.more["grids"][0]["title"]
    assert title == "triton-unsplit: time of a call by context and nodes"


def test_a_failure_is_told_down_to_the_line_that_makes_it_again():
    from verify_attn.generate import Case

    more = by_id(whole())["correctness"].more
    failure = more["failures"][0]
    assert failure["line"].startswith(
        "verify-attn check examples.sibling_leak:verify --only oracle"
    )
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


def test_a_record_of_several_servers_has_a_line_and_a_fit_for_each():
    sweep = records.real("h200/collapse.json")
    found = charts(by_id(records.folder(Path("run"), sweep=sweep)))
    rates = {t["name"]: t for t in found["decode-chart"].data if t.get("name")}
    assert list(rates) == [
        "triton-unsplit", "triton-split", "sm120",
        "true,triton-unsplit", "true,triton-split", "true,sm120",
    ]  # fmt: skip
    assert len(rates["triton-split"]["x"]) == 6
    fitted = [t["name"] for t in found["step-time-chart"].data if t["name"].endswith("fit")]
    assert fitted == [f"{name}, fit" for name in rates]


def test_streams_side_by_side_are_lines_of_their_own():
    sweep = records.real("cpu/burst_prose.json")
    sweep["cases"][1]["parameters"]["concurrency"] = 4
    chart = charts(by_id(records.folder(Path("run"), sweep=sweep)))["decode-chart"]
    assert [t["name"] for t in chart.data] == ["1 stream", "4 streams"]


def test_what_differs_between_steps_is_told_of_each():
    check = records.failing_check()
    check["environment"]["versions"]["python"] = "3.12"
    doctor = records.record("verify-attn doctor", [
        records.case("nvcc", parameters={"found": "13.0"}),
        records.case("CUDA", "inconclusive", "no driver", {"found": "torch with CUDA 13"}),
    ])  # fmt: skip
    folder = records.folder(Path("run"), check=check, bench=records.bench(), doctor=doctor)
    tables = dict(by_id(folder)["environment"].more["tables"])
    rows = {row[0]: row[1] for row in tables["Machine and versions"].rows}
    assert rows["version of python"] == "doctor: 3.11\ncheck: 3.12\nbench: 3.11"
    assert rows["Triton kernels"] == "ran in the interpreter"
    assert tables["Doctor"].rows == [
        ["nvcc", "13.0"], ["CUDA", "torch with CUDA 13; inconclusive; no driver"],
    ]  # fmt: skip


def test_shares_of_a_change_are_told_only_where_both_pull_the_same_way():
    sweep = records.real("cpu/burst_prose.json")
    part = {"against": "ctx=1k", "rate_ratio": 0.5, "committed_ratio": 1.6, "step_time_ratio": 3.2}
    sweep["cases"][1]["attribution"] = [
        part | {"acceptance_share": -0.9, "step_time_share": 1.9},
        part | {"acceptance_share": 0.4, "step_time_share": 0.6},
    ]  # fmt: skip
    splits = by_id(records.folder(Path("run"), sweep=sweep))["causes"].more["splits"]
    assert [row[-1] for row in splits.rows] == ["", "40%"]
