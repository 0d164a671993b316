"""`verify-attn history` as a user meets it: what it reads, what it claims, what it refuses."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.perf.saved_runs import case, unmeasured
from tests.perf.saved_runs import record as bench_record
from verify_attn.cli import main
from verify_attn.history_command import sparkline
from verify_attn.record import read_record
from verify_attn.report.history import direction, make_series
from verify_attn.report.kept import HistoryError, read_folder

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
ID = case()["id"]


def sha(number):
    return f"{number:02d}" + "c0ffee" * 7


def bench(number, ms=0.1, cases=None, **identity):
    """A record of bench, made so many hours later, at a commit of its own."""
    found = bench_record(*(cases if cases is not None else [case(ms=ms)]), **identity)
    started = (FIRST + timedelta(hours=number)).isoformat()
    return found | {"started": started, "commit": sha(number)}


def sweep(number, rate, **server):
    return {
        "schema_version": 1, "command": "verify-attn sweep --url http://gpu:8000",
        "started": (FIRST + timedelta(hours=number)).isoformat(), "commit": sha(number),
        "environment": {"gpus": [], "platform": "Linux", "cpu_count": 2, "versions": {}},
        "server": {"url": "http://gpu:8000", "model": "tiny"} | server, "floors_given": 0,
        "cases": [{
            "id": "ctx=1024", "status": "fail", "reason": "below its floor",
            "parameters": {"context": 1024, "concurrency": 1, "corpus": "mixed"},
            "metrics": {"decode_tok_s": rate, "decode_tok_s_low": rate * 0.99,
                        "decode_tok_s_high": rate * 1.01, "step_ms": 4000 / rate},
        }],
    }  # fmt: skip


def keep(folder, *records):
    """Write them under names whose order is not that of time."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, record in enumerate(records):
        (folder / f"{(i * 7) % 101:03d}.json").write_text(json.dumps(record))


def history(*words):
    found = CliRunner().invoke(main, ["history", *map(str, words)])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.output
    return found


def levels(*parts):
    """(level, records) pairs as figures with 0.5 % of noise."""
    flat = np.repeat([level for level, _ in parts], [count for _, count in parts])
    return [float(v) for v in flat * (1 + 0.005 * np.random.default_rng(1).normal(size=len(flat)))]


def kept(tmp_path, *parts):
    keep(tmp_path, *[bench(i, ms) for i, ms in enumerate(levels(*parts))])
    return tmp_path


def test_a_figure_outside_its_own_interval_is_left_out_and_why_is_said(tmp_path):
    records = [bench(i, 0.1) for i in range(12)]
    metrics = records[4]["cases"][0]["metrics"]
    metrics["run_ms"] = 5 * metrics["run_high_ms"]
    keep(tmp_path, *records)
    done = history(tmp_path, "--metric", "run_ms", "--json", tmp_path / "out/h.json")
    assert done.exit_code == 0
    said = "run_ms is left out: 0.5"
    assert said in done.output
    assert "lies outside its own interval" in done.output
    found = read_record(tmp_path / "out/h.json")
    assert len(found["cases"][0]["points"]) == 11
    assert any(said in note for note in found["notes"])


def test_a_history_of_nothing_but_such_figures_is_refused_with_the_reason(tmp_path):
    record = bench(0, 0.1)
    metrics = record["cases"][0]["metrics"]
    metrics["run_low_ms"], metrics["run_high_ms"] = metrics["run_high_ms"], metrics["run_low_ms"]
    keep(tmp_path, record)
    done = history(tmp_path, "--metric", "run_ms")
    assert done.exit_code == 2
    assert "lies outside its own interval" in done.output


# -- verdicts ------------------------------------------------------------------------------------


def test_a_worsening_that_holds(tmp_path):
    found = history(kept(tmp_path, (0.1, 12), (0.12, 12)), "--metric", "run_ms")
    assert found.exit_code == 1
    assert f"worse at {sha(11)[:10]} .. {sha(12)[:10]} (2026-03-01 12:00): 1 series" in found.output
    assert "worse x1.19" in found.output or "worse x1.20" in found.output
    assert found.output.splitlines()[-1] == "1 series: 1 got worse and stayed so"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(0.1, 24)], "none"),
        ([(0.12, 12), (0.1, 12)], "better x0.8"),
        ([(0.1, 12), (0.12, 12), (0.1, 12)], "better x0.8"),
    ],
    ids=["flat", "better", "worse and back"],
)
def test_no_worsening_at_the_end(tmp_path, parts, says):
    found = history(kept(tmp_path, *parts), "--metric", "run_ms")
    assert found.exit_code == 0
    assert says in found.output
    assert "0 got worse" in found.output


def test_too_few_records_to_say(tmp_path):
    found = history(kept(tmp_path, (0.1, 2), (0.2, 3)))
    assert found.exit_code == 3
    assert "5 records, 6 are needed" in found.output


@pytest.mark.parametrize(("first", "then", "code"), [(100, 80, 1), (80, 100, 0)])
def test_a_rate_that_falls_is_worse_and_a_failed_point_counts(tmp_path, first, then, code):
    rates = levels((first, 8), (then, 8))
    keep(tmp_path, *[sweep(i, rate) for i, rate in enumerate(rates)])
    found = history(tmp_path)
    assert found.exit_code == code
    word = "worse" if code else "better"
    assert f"{word} at {sha(7)[:10]} .. {sha(8)[:10]}" in found.output
    assert "2 series\n" in found.output  # the rate and the step time


def test_wide_intervals_of_the_records_hide_a_change(tmp_path):
    for half, code in ((0.002, 1), (0.2, 0)):
        folder = tmp_path / str(half)
        times = levels((0.1, 10), (0.11, 10))
        keep(folder, *[bench(i, cases=[case(ms=t, half=half)]) for i, t in enumerate(times)])
        assert history(folder).exit_code == code


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("run_ms", "low"), ("first_token_s", "low"), ("worst_over_bound", "low"),
        ("decode_tok_s", "high"), ("limit_share", "high"), ("gb_per_s", "high"),
        ("speedup", "high"), ("committed_per_step", "high"), ("run_ratio", "low"),
        ("bandwidth_ratio", "high"), ("sm_clock_mhz_least", None), ("steps", None),
    ],
)  # fmt: skip
def test_which_way_is_better(metric, better):
    assert direction(metric) == better


# -- which commits -------------------------------------------------------------------------------


def test_records_between_that_lack_the_figure_are_counted(tmp_path):
    times = levels((0.1, 8), (0.13, 8))
    records = [bench(i, ms) for i, ms in enumerate(times)]
    records[8] = bench(8, cases=[unmeasured("error", "crashed")])
    records[9] = bench(9, cases=[])
    keep(tmp_path, *records)
    found = history(tmp_path, "--metric", "run_ms")
    assert f"{sha(7)[:10]} .. {sha(10)[:10]}, 2 records between lack the figure" in found.output


def test_what_else_differs_is_told(tmp_path):
    records = [bench(i, ms) for i, ms in enumerate(levels((0.1, 8), (0.13, 8)))]
    for record in records[8:]:
        record["environment"]["versions"] = {"torch": "2.11.0", "triton": "3.7.0"}
        record["commit"] = sha(7)
        record["cases"][0]["methods"]["run"]["l2"] = "kept: 50 MB"
    keep(tmp_path, *records)
    found = history(tmp_path, "--metric", "run_ms").output
    assert "versions differ: triton 3.6.0 -> 3.7.0" in found
    assert "the commit is the same" in found
    assert "timed in another way: events, L2 flushed -> events, L2 kept" in found


def test_without_commits_files_and_times_are_named(tmp_path):
    records = [bench(i, ms) for i, ms in enumerate(levels((0.1, 8), (0.13, 8)))]
    for record in records:
        record["commit"] = None
    del records[7]["commit"]
    keep(tmp_path, *records)
    found = history(tmp_path, "--metric", "run_ms").output
    assert "049.json (2026-03-01 07:00:00, no commit) .. 056.json (2026-03-01 08:00:00" in found


def test_the_newest_record_without_the_case_is_told(tmp_path):
    records = [bench(i, ms) for i, ms in enumerate(levels((0.1, 12)))]
    keep(tmp_path, *records, bench(12, cases=[unmeasured("error", "illegal memory access")]))
    found = history(tmp_path).output
    assert "not in the newest 1 of 13 records; the last says error: illegal memory access" in found


# -- machines ------------------------------------------------------------------------------------


def test_a_new_machine_starts_a_new_series(tmp_path):
    old = [bench(i, ms) for i, ms in enumerate(levels((0.1, 8), (0.12, 8)))]
    new = [bench(20 + i, ms, name="NVIDIA B200") for i, ms in enumerate(levels((0.3, 8)))]
    keep(tmp_path, *old, *new)
    found = history(tmp_path, "--metric", "run_ms")
    assert found.exit_code == 0  # the worsening was on the machine that is gone
    assert "2 machines or settings, each judged apart" in found.output
    assert "ended: newer records are of 1 x NVIDIA B200" in found.output
    assert "1 ended on another machine" in found.output


def test_two_runners_in_turn_are_two_series_that_both_count(tmp_path):
    records = []
    for i, ms in enumerate(levels((0.1, 8), (0.12, 8))):
        records += [bench(2 * i, ms), bench(2 * i + 1, 3 * 0.1, driver="1.0")]
    keep(tmp_path, *records)
    found = history(tmp_path, "--metric", "run_ms")
    assert found.exit_code == 1
    assert "2 series: 1 got worse" in found.output


def test_another_model_is_another_series(tmp_path):
    half = [sweep(i, rate) for i, rate in enumerate(levels((100, 8)))]
    keep(tmp_path, *half, *[sweep(20 + i, 50, model="large") for i in range(8)])
    assert history(tmp_path).exit_code == 0


# -- reading -------------------------------------------------------------------------------------


def test_what_is_left_out_is_counted_and_named(tmp_path):
    kept(tmp_path / "deep" / "down", (0.1, 8))
    whole = json.dumps(bench(99))
    files = {
        "half.json": whole[: len(whole) // 2], "empty.json": "", "binary.json": b"\xff\xfe\x00",
        "nested.json": "[" * 100_000, "digits.json": f'{{"a": {"9" * 5000}}}',
        "old.json": json.dumps(bench(99) | {"schema_version": 0}),
        "list.json": "[]", "cases.json": json.dumps(bench(99) | {"cases": [{"id": 3}]}),
        "doctor.json": json.dumps(bench(99) | {"command": "verify-attn doctor",
                                               "environment": {}}),
        "timeless.json": json.dumps(bench(99) | {"started": "yesterday"}),
        "deep/down/copy.json": (tmp_path / "deep" / "down" / "007.json").read_text(),
        "notes.txt": "no record",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.json").symlink_to(tmp_path / "self.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.json").write_text(whole)
    records = read_folder(tmp_path)
    assert len(records.kept) == 8
    left = {name for names in records.skipped.values() for name in names}
    assert left == {*files, "pipe.json", "loop", "self.json"} - {"notes.txt"}
    found = history(tmp_path)
    assert found.exit_code == 0
    for says in (
        "schema_version 0; this version reads 1", "the same record as in another file",
        "is of 'verify-attn doctor': only bench, sweep, check, compare", "says no time",
        "pipe.json: is no regular file", "left out: 1 file: loop: is a link to a folder",
        "left out: 5 files: ",
    ):  # fmt: skip
        assert says in found.output, says


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    kept(tmp_path, (0.1, 8))
    read = Path.read_bytes

    def refuse(path):
        if path.name == "007.json":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    records = read_folder(tmp_path)
    assert records.skipped == {"cannot be read: Permission denied": ["007.json"]}
    assert len(records.kept) == 7


def test_records_of_the_same_time_keep_the_order_of_their_names(tmp_path):
    records = [bench(0, ms) | {"commit": sha(i)} for i, ms in enumerate(levels((0.1, 12)))]
    for i, record in enumerate(records):
        (tmp_path / f"{i:03d}.json").write_text(json.dumps(record))
    found = read_folder(tmp_path)
    assert [record.name for record in found.kept] == [f"{i:03d}.json" for i in range(12)]
    assert "11 records started in the same second as another" in history(tmp_path).output


def test_times_are_compared_whatever_their_zone(tmp_path):
    zones = ["2026-03-01T10:00:00+09:00", "2026-03-01T02:00:00", "2026-02-28T22:30:00-04:00"]
    keep(tmp_path, *[bench(0) | {"started": at, "commit": str(i)} for i, at in enumerate(zones)])
    assert [record.commit for record in read_folder(tmp_path).kept] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), 10**400, 1e13, True, "0.1", None, [1], {}]
)
def test_a_figure_that_is_none_is_no_point(tmp_path, value):
    records = [bench(i, ms) for i, ms in enumerate(levels((0.1, 9)))]
    records[4]["cases"][0]["metrics"]["run_ms"] = value
    keep(tmp_path, *records)
    (series,) = make_series(read_folder(tmp_path), metrics=["run_ms"])
    assert len(series.points) == 8


@pytest.mark.parametrize("where", ["case", "commit", "metrics", "environment", "started", "driver"])
def test_hostile_text_and_types(tmp_path, where):
    records = [bench(i, ms) for i, ms in enumerate(levels((0.1, 8), (0.13, 8)))]
    evil = "\x1b[31m[bold]x[/bold]\r\n</script><img src=x onerror=alert(1)>\udc80\\"
    for i, record in enumerate(records):
        if where == "case":
            record["cases"][0]["id"] = evil
        elif where == "commit":
            record["commit"] = f"{i}{evil}"
        elif where == "metrics":
            record["cases"].append({"id": "bad", "status": "pass", "metrics": [3]})
            record["cases"].append(copy.deepcopy(record["cases"][0]))
        elif where == "environment":
            record["environment"] = {"bench": 3, "gpus": [None], "versions": [1]}
        elif where == "started":
            record["started"] = record["started"] if i < 12 else {"a": evil}
        else:
            record["environment"]["bench"]["identity"]["driver"] = evil
    keep(tmp_path, *records)
    page, out = tmp_path / "page.html", tmp_path / "out" / "record.json"
    found = history(tmp_path, "--metric", "run_ms", "--html", page, "--json", out)
    assert found.exit_code == 1
    assert "\x1b" not in found.output
    assert "\r" not in found.output
    assert read_record(out)["cases"][0]["status"] == "fail"
    text = page.read_text()
    assert text.count("</script>") == 2
    assert "<img src=x" not in text
    assert "\x1b" not in text


# -- bad input -----------------------------------------------------------------------------------


def test_bad_input(tmp_path):
    folder = kept(tmp_path / "kept", (0.1, 8))
    (tmp_path / "empty").mkdir()
    for words, says in (
        ([tmp_path / "none"], "is no folder"),
        ([folder / "000.json"], "is no folder"),
        ([tmp_path / "empty"], "no *.json at all"),
        ([folder, "--case", "nothing*"], f"matches none of 1 cases: {ID}"),
        ([folder, "--metric", "decode_tok_s"], "is in none of the records: "),
        ([folder, "--json", folder], "no regular file"),
        ([folder, "--json", tmp_path / "x", "--html", tmp_path / "x"], "give each its own path"),
        ([folder, "--json", folder / "000.json"], "is one of the records; give another path"),
        ([folder, "--html", folder / "000.json"], "is one of the records; give another path"),
        ([folder, "--branch", "records"], "no branch or commit records"),
        ([folder, "--branch=--output=x"], "no branch or commit --output=x"),
    ):
        found = history(*words)
        assert found.exit_code == 2, words
        assert says in found.stderr, words
    keep(tmp_path / "doctor", bench(0) | {"command": "verify-attn doctor", "environment": {}})
    with pytest.raises(HistoryError, match="doctor"):
        read_folder(tmp_path / "doctor")


def test_a_page_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    found = history(kept(tmp_path, (0.1, 8)), "--html", tmp_path / "page.html")
    assert found.exit_code == 2
    assert "verify-attn[report]" in found.stderr


# -- case and metric -----------------------------------------------------------------------------


def test_case_and_metric(tmp_path):
    both = [bench(i, cases=[case(ms=0.1), case(1427, ms=0.01)]) for i in range(8)]
    keep(tmp_path, *both)
    assert "4 series" not in history(tmp_path).output  # no limit_share in these
    assert "2 series: 0" in history(tmp_path).output
    assert "1 series: 0" in history(tmp_path, "--case", "*c1427*").output
    assert "1 series: 0" in history(tmp_path, "--case", ID).output
    assert "4 series: 0" in history(tmp_path, "--metric", "speedup", "--metric", "graph_ms").output


def test_the_record_says_what_the_table_says(tmp_path):
    out = tmp_path / "out" / "record.json"
    history(kept(tmp_path / "kept", (0.1, 12), (0.12, 12)), "--metric", "run_ms", "--json", out)
    (one,) = read_record(out)["cases"]
    (change,) = one["changes"]
    assert (change["last_good"], change["first_bad"]) == (sha(11), sha(12))
    assert change["verdict"] == "worse"
    assert len(one["points"]) == one["metrics"]["records"] == 24
    assert one["parameters"]["better"] == "low"


# -- a branch ------------------------------------------------------------------------------------


def test_a_branch_is_read_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    repository = tmp_path / "repository"
    kept(repository / "runs" / "naïve \n", (0.1, 12), (0.12, 12))
    (repository / "runs" / "link.json").symlink_to("elsewhere")
    (repository / "half.json").write_text("{")

    def git(*words):
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", repository, *who, *words], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "nothing")
    git("checkout", "-q", "-b", "records")
    git("add", "-A")
    git("commit", "-q", "-m", "records")
    git("checkout", "-q", "main")
    assert not list(repository.glob("*.json"))
    found = history(repository, "--branch", "records", "--metric", "run_ms")
    assert found.exit_code == 1, found.output
    assert f"{sha(11)[:10]} .. {sha(12)[:10]}" in found.output
    assert "runs/link.json: is no regular file" in found.output
    assert "half.json: is no record" in found.output
    assert "no *.json at all" in history(repository, "--branch", "main").stderr


# -- the terminal --------------------------------------------------------------------------------


def test_sparkline():
    assert sparkline([1, 2, 3]) == "▁▅█"
    assert sparkline([5.0]) == "▅"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert set(sparkline(levels((1, 200)))) <= set("▄▅")  # noise is drawn flat
    assert len(sparkline(range(1000))) == 24
    assert sparkline([1, 2], "_#") == "_#"


def test_a_terminal_without_block_characters(tmp_path):
    folder = kept(tmp_path, (0.1, 12), (0.12, 12))
    command = Path(sys.executable).with_name("verify-attn")
    found = subprocess.run(
        [command, "history", folder], capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    assert b"\\u" not in found.stdout
    assert b"____" in found.stdout
