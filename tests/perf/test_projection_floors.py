"""What benchmarks/project_floors.py makes, from a made-up record, in a copy of nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import project_floors
from benchmarks.project_floors import COMMITTED, CONTEXTS, LAYERS, STEP_S

from tests.perf.projected_runs import CELLS, made_up, record
from verify_attn.live.floors import read_floors
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection import Projection
from verify_attn.perf.projection_show import BUILT_IN
from verify_attn.record import read_record

ROOT = Path(__file__).resolve().parents[2]
FLOORS = "ci/floors-kimi-k2.6-8x-rtx-pro-6000.toml"
# Rates that the deployment measured before its new kernel.
BEFORE = {1_427: 118.6, 184_728: 0.7}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The part of a repository that is written to."""
    for folder in ("docs", "ci", "src/verify_attn/perf"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/projection.md").write_text((ROOT / "docs/projection.md").read_text())
    return tmp_path


def make(tree: Path, monkeypatch: pytest.MonkeyPatch, made: dict, *words: str) -> int:
    (tree / "bench.json").write_text(json.dumps(made))
    monkeypatch.setattr(
        sys, "argv", ["project_floors", str(tree / "bench.json"), "--root", str(tree), *words]
    )
    return project_floors.main()


def test_floors_load_and_say_what_they_are(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(tree, monkeypatch, record()) == 0
    (floor,) = read_floors(tree / FLOORS)
    assert "projected, not measured" in floor.name
    assert (tree / FLOORS).read_text().startswith("# PROJECTED, not measured")
    assert floor.holds_for("moonshotai/Kimi-K2.6", 1)
    assert (floor.unit, floor.rate) == ("tok/s", "sustained")
    assert [context for context, _ in floor.points] == list(CONTEXTS)
    rates = [rate for _, rate in floor.points]
    assert rates == sorted(rates, reverse=True)
    # Kernels alone do not make short contexts faster than they were measured to be.
    assert floor.at(1_427) < BEFORE[1_427]
    assert floor.at(184_728) > BEFORE[184_728]


def test_they_take_the_slow_end(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(tree, monkeypatch, record()) == 0
    (floor,) = read_floors(tree / FLOORS)
    made = Projection.from_record(record(), "rtx-pro-6000")
    for context in CONTEXTS:
        slow = made.project("sm120", Cell(context=context, nodes=32))
        assert not isinstance(slow, str)
        rate = COMMITTED / (STEP_S + LAYERS * slow.high_ms / 1e3)
        assert rate - 0.1 <= floor.at(context) <= rate


def test_what_is_assumed_of_the_server_can_be_given(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--committed", "1", "--step-ms", "10", "--nodes", "8")
    assert make(tree, monkeypatch, record(), *words) == 0
    text = (tree / FLOORS).read_text()
    assert "1 committed tokens a step; 10 ms a step outside attention" in text
    assert "8 nodes a step" in text


def test_the_page_has_the_table_and_keeps_the_rest(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tree / "docs/projection.md").read_text()
    assert make(tree, monkeypatch, record()) == 0
    after = (tree / "docs/projection.md").read_text()
    assert after.count("| 184,728 |") == 3
    assert f"| {made_up(Cell(context=184_728, nodes=64)):.3f} |" in after
    start = before.index("<!-- projected -->")
    assert after[:start] == before[:start]
    assert after.endswith(before[before.index("<!-- end of projected -->") :])
    assert make(tree, monkeypatch, record()) == 0
    assert (tree / "docs/projection.md").read_text() == after


def test_the_package_gets_a_record_that_projects_the_same(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = record()
    full["cases"] += record([CELLS[0]], kernel="triton-split")["cases"]
    assert make(tree, monkeypatch, full) == 0
    kept = read_record(tree / "src/verify_attn" / BUILT_IN)
    assert {c["parameters"]["kernel"] for c in kept["cases"]} == {"sm120"}
    a, b = (Projection.from_record(r, "rtx-pro-6000") for r in (full, kept))
    assert [a.project("sm120", c) for c in CELLS] == [b.project("sm120", c) for c in CELLS]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (record(CELLS[:-1]), "measure it with verify-attn bench sm120 --grid"),
        (record(kernel="triton-split"), "no time of sm120"),
        ({"schema_version": 1, "cases": []}, "the record is of no GPU"),
    ],
)
def test_a_record_of_no_use_writes_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made: dict,
    told: str,
) -> None:  # fmt: skip
    before = (tree / "docs/projection.md").read_text()
    assert make(tree, monkeypatch, made) == 2
    assert told in capsys.readouterr().err
    assert not (tree / FLOORS).exists()
    assert (tree / "docs/projection.md").read_text() == before


@pytest.mark.parametrize(
    "words", ["--committed=-1", "--committed=nan", "--step-ms=inf", "--step-ms=-60", "--nodes=0"]
)
def test_numbers_that_make_no_floor(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert make(tree, monkeypatch, record(), words) == 2
    assert f"error: {words.split('=')[0]} is " in capsys.readouterr().err
    assert not (tree / FLOORS).exists()


def test_what_is_in_the_repository_is_made_of_its_record(tree: Path, monkeypatch) -> None:
    """What is derived from the H200's record is what the script makes of it."""
    path = ROOT / "results/h200/bench_page1.json"
    assert make(tree, monkeypatch, read_record(path)) == 0
    for name in ("docs/projection.md", FLOORS, f"src/verify_attn/{BUILT_IN}"):
        assert (tree / name).read_text() == (ROOT / name).read_text(), name
