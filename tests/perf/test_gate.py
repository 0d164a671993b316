"""The gate's verdicts: what is worse, what is not comparable, and what is no figure at all."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.perf.saved_runs import case, pytest_file, record, saved, times, unmeasured
from verify_attn.perf.gate import Comparison, compare, compare_case, load_cases
from verify_attn.perf.judged import judge
from verify_attn.perf.saved import Span, from_pytest_benchmark, from_record, read_case
from verify_attn.perf.thresholds import (
    ThresholdError,
    Thresholds,
    find_pyproject,
    read_thresholds,
)
from verify_attn.record import RecordError

T = 0.05


def gate(a: dict[str, Any], b: dict[str, Any], thresholds: Thresholds | None = None) -> Comparison:
    return compare(from_record(a, "a"), from_record(b, "b"), thresholds or Thresholds())


def outcomes(comparison: Comparison) -> list[str]:
    return [c.outcome for c in comparison.cases]


# -- one case ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "half", "outcome", "code"),
    [
        (0.1, 0.005, "same", 0),  # a kernel against itself: 0.99 to 1.01
        (0.103, 0.005, "same", 0),
        (0.112, 0.005, "worse", 1),
        (0.09, 0.005, "better", 0),
        (0.1055, 0.005, "unclear", 3),  # around the threshold
        (0.1, 0.06, "unclear", 3),  # wider than the threshold
        (0.2, 0.06, "worse", 1),  # as wide, and yet sure
    ],
)
def test_the_interval_decides(new, half, outcome, code):
    found = gate(record(case()), record(case(ms=new, half=half)))
    assert outcomes(found) == [outcome]
    assert found.exit_code == code


def test_unclear_says_what_to_do():
    (found,) = gate(record(case()), record(case(half=0.06))).cases
    assert found.reason.count("reaches across the threshold of 5 %; take more samples") == 1
    assert "run 0.1000 -> 0.1000 ms, x1.000 (0.935-1.065)" in found.reason


@pytest.mark.parametrize("part", ["run", "graph", "cupti", "prepare_run"])
def test_one_time_that_got_worse_is_enough(part):
    a, b = case(), case()
    a["metrics"] |= times(part, 0.1)
    b["metrics"] |= times(part, 0.12)
    (found,) = gate(record(a), record(b)).cases
    assert found.outcome == "worse"
    assert f"{part} 0.1000 -> 0.1200 ms, x1.200" in found.reason


def test_worse_weighs_more_than_unclear_and_better():
    a, b = case(), case(ms=0.08)
    b["metrics"] |= times("graph", 0.12)
    assert outcomes(gate(record(a), record(b))) == ["worse"]
    b["metrics"] |= times("graph", 0.09, 0.06)
    assert outcomes(gate(record(a), record(b))) == ["unclear"]


def test_a_speedup_lost_to_a_faster_baseline_is_worse_and_says_why():
    b = case()
    b["metrics"] |= {"speedup": 40, "speedup_low": 39.8, "speedup_high": 40.2}
    (found,) = gate(record(case()), record(b)).cases
    assert found.outcome == "worse"
    assert "the kernel that speedups are against got faster" in found.reason


def test_bandwidth_that_fell_is_worse_with_the_same_time():
    b = case()
    b["metrics"]["gb_per_s"] *= 0.8
    (found,) = gate(record(case()), record(b)).cases
    assert found.outcome == "worse"
    assert "bandwidth 400.0 -> 320.0 GB/s, x0.800" in found.reason


def test_noise_of_the_host_is_told_and_not_judged():
    a, b = case(), case()
    a["metrics"] |= times("prepare_run", 0.2, 0.1)
    b["metrics"] |= times("prepare_run", 0.21, 0.1)
    (found,) = gate(record(a), record(b)).cases
    assert found.outcome == "same"
    assert "prepare_run 0.2000 -> 0.2100 ms" in found.reason
    b["metrics"] |= times("prepare_run", 0.5, 0.1)
    assert outcomes(gate(record(a), record(b))) == ["worse"]
    for one, ms in ((a, 0.2), (b, 0.21)):  # narrow, and around the threshold
        one["metrics"] |= times("prepare_run", ms)
    assert outcomes(gate(record(a), record(b))) == ["unclear"]


@pytest.mark.parametrize("quantity", ["graph_ms", "gb_per_s", "speedup"])
def test_a_figure_that_is_no_longer_measured_is_unclear(quantity):
    b = case()
    del b["metrics"][quantity]
    (found,) = gate(record(case()), record(b)).cases
    assert found.outcome == "unclear"
    assert "was measured in the baseline only" in found.reason
    assert outcomes(gate(record(b), record(case()))) == ["same"]  # one more is no harm


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timer": "cupti"}, "taken by events, L2 flushed, now by cupti, L2 flushed"),
        ({"l2": "warm: nothing was done"}, "now by events, L2 warm"),
        ({"drained": True}, "GPU idle before"),
    ],
)
def test_times_taken_in_another_way_are_not_compared(change, says):
    b = case(ms=0.2)
    b["methods"]["run"] |= change
    (found,) = gate(record(case()), record(b)).cases
    assert found.changes["run"].verdict == "unclear"
    assert says in found.changes["run"].why
    b["methods"]["graph"] |= change
    b["metrics"] |= times("graph", 0.09)
    assert outcomes(gate(record(case()), record(b))) == ["unclear"]


def test_another_size_of_flush_is_the_same_way():
    b = case()
    b["methods"]["run"]["l2"] = "flushed before each call by 512 MiB of writes"
    assert outcomes(gate(record(case()), record(b))) == ["same"]


def test_what_was_seen_while_measuring_is_told():
    b = case(half=0.06)
    b["notes"] = ["run has two modes, 0.1 and 0.12 ms"]
    (found,) = gate(record(case()), record(b)).cases
    assert "new: run has two modes, 0.1 and 0.12 ms" in found.reason


# -- runs ----------------------------------------------------------------------------------------


def test_a_vanished_case_fails():
    found = gate(record(case(1427), case()), record(case(1427)))
    assert outcomes(found) == ["same", "missing"]
    assert found.exit_code == 1


def test_a_renamed_case_fails_and_names_both():
    found = gate(record(case()), record(case(kernel="mine")))
    assert outcomes(found) == ["renamed"]
    assert "mine | kimi-k2.6-tp8 r1 c31952" in found.cases[0].reason
    assert found.exit_code == 1


def test_two_renamed_cases_are_not_taken_for_the_same_one():
    found = gate(
        record(case(kernel="a"), case(kernel="b"), case(kernel="c")),
        record(case(kernel="x"), case(kernel="y")),
    )
    assert outcomes(found) == ["renamed", "renamed", "missing"]


def test_cases_without_parameters_are_never_renamed():
    a, b = case(), case() | {"id": "other"}
    a["parameters"], b["parameters"] = {"kernel": "x"}, {}
    assert outcomes(gate(record(a), record(b))) == ["missing", "new"]


def test_a_new_case_is_told_and_fails_nothing_unless_it_is_wrong():
    found = gate(record(case()), record(case(), case(1427), unmeasured("error", "crash", 8)))
    assert outcomes(found) == ["same", "new", "failed"]
    assert "error: crash" in found.cases[2].reason
    assert found.exit_code == 1
    assert gate(record(case()), record(case(), case(1427))).exit_code == 0


@pytest.mark.parametrize(
    ("status", "outcome", "code"),
    [("fail", "failed", 1), ("error", "failed", 1), ("skipped", "failed", 1),
     ("inconclusive", "unclear", 3)],
)  # fmt: skip
def test_a_case_that_has_no_time_any_more(status, outcome, code):
    found = gate(record(case()), record(unmeasured(status, "as it says")))
    assert outcomes(found) == [outcome]
    assert found.cases[0].reason == f"{status} now: as it says"
    assert found.exit_code == code


def test_a_case_that_never_had_a_time_is_not_compared():
    a = record(unmeasured("skipped", "no tree mask"), case(1427))
    found = gate(a, record(case(), case(1427)))
    assert outcomes(found) == ["not compared", "same"]
    assert "skipped: no tree mask; pass now" in found.cases[0].reason
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [((), (), 3), ((), (case(),), 3), ((case(),), (), 1), ((unmeasured("error", "x"),), (), 3)],
)
def test_an_empty_run_never_passes(a, b, code):
    assert gate(record(*a), record(*b)).exit_code == code


def test_one_unclear_case_is_enough_for_no_pass():
    found = gate(record(case(), case(1427)), record(case(), case(1427, half=0.06)))
    assert outcomes(found) == ["same", "unclear"]
    assert found.exit_code == 3


def test_another_gpu_makes_everything_unclear():
    found = gate(record(case(), case(1427)), record(case(ms=9), driver="590.1", power_limit_w=600))
    assert outcomes(found) == ["unclear", "unclear"]
    assert "driver 580.95.05 -> 590.1, power_limit_w 700.0 -> 600" in found.cases[0].reason
    assert "missing" in found.cases[1].reason
    assert found.exit_code == 3


def test_an_unknown_gpu_makes_everything_unclear():
    a = record(case())
    del a["environment"]["bench"]["identity"]
    found = gate(a, a)
    assert outcomes(found) == ["unclear"]
    assert "does not say on which GPU" in found.cases[0].reason


@pytest.mark.parametrize("field", ["name", "compute_capability", "memory_bytes", "driver"])
def test_two_gpus_of_which_half_is_known_are_not_the_same(field):
    half = from_record(record(case(), **{field: None}), "a")
    found = compare(half, half, Thresholds())
    assert found.exit_code == 3
    assert f"a does not say on which GPU it ran ({field})" in found.cases[0].reason


def test_a_power_limit_that_nobody_knows_is_told():
    half = from_record(record(case(), power_limit_w=None), "a")
    found = compare(half, half, Thresholds())
    assert found.exit_code == 0
    assert any("power limit" in note for note in found.notes)


def test_the_same_id_over_another_problem_is_unclear():
    b = case()
    b["parameters"]["nodes"] = 64
    found = gate(record(case()), record(b))
    assert outcomes(found) == ["unclear"]
    assert "nodes 32 -> 64" in found.cases[0].reason
    b = case() | {"id": case()["id"]}
    b["parameters"] |= {"kernel": "a rewrite", "case": '{"seed": 2}'}
    assert outcomes(gate(record(case()), record(b))) == ["same"]


def test_versions_are_told_and_not_judged():
    b = record(case())
    b["environment"]["versions"]["torch"] = "2.12.0"
    found = gate(record(case()), b)
    assert "versions differ: torch 2.11.0 -> 2.12.0" in found.notes
    assert found.exit_code == 0


def test_speedups_over_different_baselines_are_not_compared():
    b = case()
    b["metrics"] |= {"speedup": 2, "speedup_low": 1.99, "speedup_high": 2.01}
    new = record(b)
    new["environment"]["bench"]["baseline"] = "torch"
    found = gate(record(case()), new)
    assert outcomes(found) == ["same"]
    assert "speedups are not compared: over triton-unsplit and over torch" in found.notes


def test_a_run_with_itself_says_that_it_says_nothing():
    found = gate(record(case()), record(case()))
    assert any("the same run" in note for note in found.notes)
    assert not any("the same run" in n for n in gate(record(case()), record(case(ms=0.101))).notes)


def test_no_case_in_common_is_told():
    found = gate(record(case()), record(case(1427)))
    assert "a and b have no case in common" in found.notes
    assert outcomes(found) == ["missing", "new"]


def test_what_bench_measures_can_be_compared():
    """Cases that the bench itself made, on a device whose times are written down beforehand."""
    from tests.perf.test_bench import Kernel, measured

    def run(seconds: float) -> dict[str, Any]:
        both = measured(Kernel("slow"), Kernel("fast"), seconds={"slow": 4e-3, "fast": seconds})
        return record(*both.values())

    found = gate(run(1e-3), run(1.12e-3))
    assert {c.id.split(" |")[0]: c.outcome for c in found.cases} == {
        "slow": "same",
        "fast": "worse",
    }
    worse = next(c for c in found.cases if c.outcome == "worse")
    assert {"run", "prepare_run", "graph", "bandwidth", "speedup"} <= set(worse.changes)
    assert outcomes(gate(run(1e-3), run(1.001e-3))) == ["same", "same"]


# -- pytest-benchmark ----------------------------------------------------------------------------


def test_files_of_pytest_benchmark():
    a, b = pytest_file(case(), case(1427)), pytest_file(case(ms=0.112), case(1427))
    found = compare(
        from_pytest_benchmark(a, "a"), from_pytest_benchmark(b, "b"), Thresholds()
    )  # fmt: skip
    assert outcomes(found) == ["worse", "same"]
    assert found.cases[0].id == "tests/perf/test_mine.py::test_kernel[31952]"


def test_a_file_of_pytest_benchmark_without_our_fixture():
    plain = pytest_file(case())
    plain["benchmarks"][0]["extra_info"] = {}
    with pytest.raises(RecordError, match=r"host times only .*verify_benchmark fixture"):
        from_pytest_benchmark(plain, "a")
    mixed = pytest_file(case())
    mixed["benchmarks"].append({"fullname": "other", "extra_info": {}})
    assert "without verify_benchmark: other" in from_pytest_benchmark(mixed, "a").notes[0]
    with pytest.raises(RecordError, match="two cases have the id"):
        from_pytest_benchmark(pytest_file(case(), case()), "a")


# -- hostile files -------------------------------------------------------------------------------


def broken(**metrics: Any) -> dict[str, Any]:
    found = case()
    found["metrics"] |= metrics
    return record(found)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no record"),
        ("no JSON", "no record"),
        (json.dumps(record(case()))[:-30], "no record"),
        ("[" * 100_000, "no record"),
        ("[]", "schema_version None"),
        ('{"schema_version": 7, "cases": []}', "schema_version 7"),
        ('{"schema_version": 1, "cases": 3}', "no list of cases"),
        ("9" * 5000, "no record"),
        ("\x00\x01", "no record"),
        (record(case()) | {"command": "verify-attn check", "environment": {}}, "no bench cases"),
        (record(case()) | {"command": "verify-attn sweep '", "environment": {}}, "no bench cases"),
        (record(case()) | {"environment": 3}, "environment is '3'; it must be an object"),
        (record(case(), case()), "two cases have the id"),
        (record(case() | {"id": 5}), "has the id 5"),
        (record(case() | {"id": ""}), "has the id ''"),
        (record(case() | {"metrics": [1]}), "it must be an object"),
        (record(case() | {"parameters": "x"}), "it must be an object"),
        (record(case() | {"notes": "x"}), "it must be a list"),
        (record(case() | {"metrics": {}}), "passed, but has no time"),
        (record(case() | {"metrics": {"run_ms": 1.0}}), "None stands where a number belongs"),
        (record(case() | {"methods": {"run": 1}}), "it must be an object"),
        (broken(run_ms=math.nan), r"run_ms is nan"),
        (broken(run_ms=math.inf), r"run_ms is inf"),
        (broken(other=[{"x": math.nan}]), r"other\[0\].x is nan"),
        (json.dumps(broken()).replace("0.1,", "1e999,", 1), "is inf"),
        (broken(run_ms=-0.1), "run_ms: -0.1 stands where"),
        (broken(run_low_ms=0), "run_ms: 0 stands where"),
        (broken(run_low_ms=0.2), "not inside its interval"),
        (broken(run_high_ms=0.01), "not inside its interval"),
        (broken(run_ms="0.1"), "'0.1' stands where a number belongs"),
        (broken(run_ms=True), "True stands where a number belongs"),
        (broken(run_ms=[0.1]), "stands where a number belongs"),
        (broken(run_ms=10**400), "stands where a number from"),
        (broken(gb_per_s=-1), "gb_per_s: -1 stands"),
        (broken(gb_per_s="fast"), "gb_per_s: 'fast' stands"),
        (broken(speedup=0), "speedup: 0 stands"),
        (broken(speedup_low=None), "speedup: None stands"),
        ({"benchmarks": 3}, "benchmarks is no list"),
        ({"benchmarks": [3]}, r"benchmarks\[0\] is '3'"),
        ({"benchmarks": [{"fullname": "x", "extra_info": {"verify_attn": 3}}]}, "an object"),
        ({"benchmarks": [{"extra_info": {"verify_attn": {}}}]}, "has the id None"),
        ({"benchmarks": [], "machine_info": {"verify_attn": 1}}, "an object"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused(tmp_path, content, says):
    with pytest.raises(RecordError, match=says):
        load_cases(saved(tmp_path / "a.json", content))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_interval_has_an_end_that_is_no_number(place, wrong):
    ends = [1.0, 1.0, 1.0]
    ends[place] = wrong
    with pytest.raises(RecordError, match=f"{wrong} stands where a number"):
        Span(*ends)


def test_no_file_a_folder_a_device_and_a_huge_file(tmp_path, monkeypatch):
    with pytest.raises(RecordError, match="no record at"):
        load_cases(tmp_path / "none.json")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(RecordError, match="no regular file"):
            load_cases(path)
    with pytest.raises(RecordError, match="no record"):
        load_cases(Path("a\0b"))
    monkeypatch.setattr("verify_attn.perf.saved.MAX_BYTES", 10)
    with pytest.raises(RecordError, match="has 14 bytes; a record has at most 10"):
        load_cases(saved(tmp_path / "huge.json", "[1,2,3,4,5,6]\n"))


# -- thresholds ----------------------------------------------------------------------------------


def test_thresholds_of_a_pyproject(tmp_path):
    path = saved(
        tmp_path / "pyproject.toml",
        "[tool.verify-attn.compare]\nthreshold = 0.1\n[tool.verify-attn.compare.cases]\n"
        '"triton-split *" = 0.2\n"* c1427 *" = 0.3\n"tests/t.py::t[a]" = 0.4\nnothing = 0.5\n',
    )
    found = read_thresholds(path)
    assert found.of("other") == 0.1
    assert found.of("triton-split | c2 ") == 0.2
    assert found.of("triton-split | c1427 n32") == 0.3  # the last match
    assert found.of("tests/t.py::t[a]") == 0.4  # brackets of a pytest id
    assert read_thresholds(path, 0.5).of("other") == 0.5
    assert read_thresholds(path, 0.5).of("triton-split | c2 ") == 0.2
    notes = gate(record(case()), record(case()), found).notes
    assert any("10 % unless told; 20 % for triton-split *" in note for note in notes)
    assert "the threshold for 'nothing' holds for no case" in notes
    assert find_pyproject(tmp_path / "a" / "b") == path


def test_a_threshold_of_its_own_decides():
    b = record(case(ms=0.112), case(1427, ms=0.112))
    own = Thresholds(cases={"* c1427 *": 0.2})
    assert outcomes(gate(record(case(), case(1427)), b, own)) == ["worse", "same"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("threshold = -0.1", "threshold is -0.1; it must be a number above 0"),
        ("threshold = 0", "threshold is 0;"),
        ("threshold = 5", "threshold is 5; .*0.05 is 5 %"),
        ("threshold = nan", "threshold is nan"),
        ("threshold = inf", "threshold is inf"),
        ("threshold = true", "threshold is True"),
        ('threshold = "5%"', "threshold is '5%'"),
        ("treshold = 0.1", "unknown key 'treshold' .did you mean 'threshold'"),
        ("cases = 3", "cases is 3; it must be a table"),
        ('cases = {"*" = "x"}', r"cases, '\*' is 'x'"),
        ("[[", "pyproject.toml: "),
    ],
)
def test_an_impossible_threshold_is_refused(tmp_path, text, says):
    path = saved(tmp_path / "pyproject.toml", f"[tool.verify-attn.compare]\n{text}\n")
    with pytest.raises(ThresholdError, match=says):
        read_thresholds(path)


def test_a_misspelt_table_and_no_table(tmp_path):
    path = saved(tmp_path / "pyproject.toml", "[tool.verify-attn.comapre]\nthreshold = 0.1\n")
    with pytest.raises(ThresholdError, match=r"unknown key 'comapre' .did you mean 'compare'"):
        read_thresholds(path)
    with pytest.raises(ThresholdError, match=r"tool\.verify-attn is 3"):
        read_thresholds(saved(path, "[tool]\nverify-attn = 3\n"))
    assert read_thresholds(saved(path, "[project]\nname = 'x'\n")) == Thresholds()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ThresholdError):
        read_thresholds(path)


# -- properties ----------------------------------------------------------------------------------

MS = st.floats(1e-4, 1e4)
HALF = st.floats(0, 0.3)
MIRROR = {"worse": "better", "better": "worse", "same": "same", "unclear": "unclear"}


@st.composite
def spans(draw: st.DrawFn) -> Span:
    median = draw(MS)
    return Span(median * (1 - draw(HALF)), median, median * (1 + draw(HALF)))


@settings(deadline=None)
@given(spans(), spans(), st.floats(1e-3, 1), st.sampled_from(["run", "bandwidth"]))
def test_from_the_other_side_it_is_the_mirror(a, b, threshold, quantity):
    there, back = judge(quantity, a, b, threshold), judge(quantity, b, a, threshold)
    assert back.verdict == MIRROR[there.verdict]


@settings(deadline=None)
@given(MS, HALF, HALF, st.floats(1e-3, 1), st.floats(1.001, 3))
def test_slower_by_more_than_threshold_and_widths_is_worse(ms, half_a, half_b, threshold, more):
    factor = (1 + threshold) * (1 + half_a) * (1 + half_b) / (1 - half_a) / (1 - half_b) * more
    a = read_case(case(ms=ms, half=half_a), "a")
    b = read_case(case(ms=ms * factor, half=half_b), "b")
    found = compare_case(a, b, threshold)
    assert found.outcome == "worse"
    assert compare_case(b, a, threshold).outcome == "better"


@settings(deadline=None)
@given(MS, HALF, HALF, st.floats(1e-3, 1), st.floats(0.5, 2))
def test_what_is_called_worse_or_same_is_so(ms, half_a, half_b, threshold, factor):
    assume(half_a + half_b < 0.5)
    a = read_case(case(ms=ms, half=half_a), "a")
    found = compare_case(a, read_case(case(ms=ms * factor, half=half_b), "b"), threshold)
    if found.outcome == "worse":
        assert factor > 1 + threshold
    if found.outcome == "better":
        assert factor < 1 / (1 + threshold)
    if found.outcome == "same":
        assert 1 / (1 + threshold) <= factor * (1 + 1e-9)
        assert factor * (1 - 1e-9) <= 1 + threshold


NUMBERS = [k for k, v in case()["metrics"].items() if isinstance(v, float)]


@settings(deadline=None)
@given(
    st.sampled_from(NUMBERS),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.0, "nan", None, True, 1e300, 5e-324]),
)
def test_no_figure_that_is_none_passes(key, value):
    wrong = case()
    wrong["metrics"][key] = value
    for status in ("pass", "fail"):
        try:
            b = from_record(record(wrong | {"status": status}), "b")
        except RecordError:
            continue
        assert status == "fail"  # its figures are not looked at
        assert compare(from_record(record(case()), "a"), b, Thresholds()).exit_code == 1


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["id", "status", "metrics", "run_ms", "methods", "run", "l2", "notes"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_anything_in_place_of_a_case_is_read_or_refused(content):
    entry = content if isinstance(content, dict) else {"metrics": content}
    with suppress(RecordError):
        from_record(record(case() | entry | {"status": "pass"}), "a")


# -- what a fresh adversary got past it -----------------------------------------------------------


def own(case_text: str, ms: float = 0.1) -> dict[str, Any]:
    """A test of a `Case`, whose other parameters do not tell its requests apart."""
    found = case(ms=ms)
    found["parameters"] = {"kernel": "k", "name": "k", "context": 4096, "case": case_text}
    return found


def test_another_case_under_the_same_id_is_unclear():
    before = '{"requests":[[4096,"chain:8"],[4096,"chain:8"]],"seed":1}'
    for after in (
        '{"requests":[[4096,"chain:8"],[16,"chain:8"]],"seed":1}',
        '{"requests":[[4096,"chain:8"],[4096,"chain:8"]],"shared_pages":250}',
        "another text",
    ):
        found = gate(record(own(before)), record(own(after, 0.05)))
        assert (outcomes(found), found.exit_code) == (["unclear"], 3)
        assert "another problem under the same id (case" in found.cases[0].reason
    turned = '{"seed":3,"requests":[[4096,"chain:8"],[4096,"chain:8"]]}'
    assert outcomes(gate(record(own(before)), record(own(turned)))) == ["same"]
    for text in ('"text"', "5", "[1]", "null"):  # JSON, and no case
        assert outcomes(gate(record(own(text)), record(own(text)))) == ["same"]
    other_seed = before.replace('"seed":1', '"seed":2')
    assert outcomes(gate(record(own(before)), record(own(other_seed)))) == ["same"]


def test_preparing_timed_in_another_way_is_unclear_however_wide_it_is():
    def prepared(timer: str, ms: float) -> dict[str, Any]:
        found = case()
        found["metrics"] |= times("prepare_run", ms, 0.3)
        found["methods"]["prepare_run"] = {"timer": timer, "l2": "flushed", "drained": True}
        return found

    found = gate(record(prepared("events", 0.2)), record(prepared("host", 20.0)))
    assert (outcomes(found), found.exit_code) == (["unclear"], 3)
    assert "taken by events" in found.cases[0].reason
    assert "noise" not in found.cases[0].reason


@pytest.mark.parametrize("before", ["inconclusive", "skipped", None])
@pytest.mark.parametrize("now", ["fail", "error"])
def test_a_kernel_that_turned_wrong_fails_whatever_the_baseline_knew_of_it(before, now):
    a = [] if before is None else [unmeasured(before, "noise", 11402)]
    b = unmeasured(now, "oracle: wrong", 11402)
    found = gate(record(case(), *a), record(case(), b))
    assert (sorted(outcomes(found)), found.exit_code) == (["failed", "same"], 1)


@pytest.mark.parametrize("before", ["fail", "error"])
def test_a_kernel_that_was_wrong_before_is_not_compared(before):
    a, b = unmeasured(before, "oracle: wrong", 11402), unmeasured("fail", "oracle: wrong", 11402)
    found = gate(record(case(), a), record(case(), b))
    assert (sorted(outcomes(found)), found.exit_code) == (["not compared", "same"], 0)


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e9))
def test_an_interval_without_width_is_read_whatever_the_rounding(ms, gb_per_s):
    tie = case(ms=ms, half=0.0)
    tie["metrics"] |= {"gb_per_s": gb_per_s}
    assert outcomes(gate(record(tie), record(tie))) == ["same"]


def test_a_faster_baseline_is_said_only_where_the_time_held():
    def slower(run: float, half: float) -> dict[str, Any]:
        found = case()
        found["metrics"] |= times("run", run, half)
        found["metrics"] |= {"speedup": 40.0, "speedup_low": 39.9, "speedup_high": 40.1}
        return found

    same, unclear = (gate(record(case()), record(slower(*how))) for how in
                     ((0.1, 0.005), (0.106, 0.02)))  # fmt: skip
    assert outcomes(same) == outcomes(unclear) == ["worse"]
    assert "speedups are against got faster" in same.cases[0].reason
    assert "speedups are against got faster" not in unclear.cases[0].reason


@pytest.mark.parametrize("blank", [" ", 0, False])
def test_a_gpu_that_is_blank_is_not_told(blank):
    found = gate(record(case(), name=blank), record(case(), name=blank))
    assert (outcomes(found), found.exit_code) == (["unclear"], 3)


def test_host_times_of_others_may_be_infinite():
    """Plain benchmarks of the same file are only noted: an `ops` of infinity is pytest-benchmark's
    own for a time of zero."""
    data = pytest_file(case())
    data["benchmarks"].append({"fullname": "tests/test_plain.py::test", "extra_info": {},
                               "stats": {"ops": math.inf}})  # fmt: skip
    assert list(from_pytest_benchmark(data, "a").cases)
    data["benchmarks"][0]["extra_info"]["verify_attn"]["metrics"]["run_ms"] = math.nan
    with pytest.raises(RecordError, match=r"metrics\.run_ms is nan"):
        from_pytest_benchmark(data, "a")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"[tool.verify-attn.compare]\nthreshold = {'9' * 5000}\n", "pyproject.toml: "),
        ("[tool.verify_attn.compare]\nthreshold = 0.1\n", "is read by nobody"),
        ("tool = 5\n", "tool is 5; it must be a table"),
    ],
)
def test_thresholds_that_cannot_be_read(tmp_path, text, says):
    path = saved(tmp_path / "pyproject.toml", text)
    with pytest.raises(ThresholdError, match=says):
        read_thresholds(path)


def test_what_is_wrong_now_fails_on_any_gpu():
    found = gate(record(case()), record(unmeasured("fail", "oracle: wrong"), name="NVIDIA H100"))
    assert (outcomes(found), found.exit_code) == (["failed"], 1)
