"""Projections in `roofline --project` and beside what `bench` measures on such a card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.perf.projected_runs import CELLS, record
from tests.perf.scripted import IDENTITY, ScriptedDevice
from tests.perf.test_bench import Kernel, steady
from verify_attn import bench_command
from verify_attn.bench_command import Asked, run_bench
from verify_attn.cli import main
from verify_attn.perf import ceilings, cuda_device, projection_show
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection import Projection, ProjectionError
from verify_attn.perf.roofline import Rates
from verify_attn.record import read_record

CARD = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
SMALL = Cell(context=40, nodes=3, heads=4, geometry="tiny", dtype="bfloat16")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def h200(tmp_path: Path) -> Path:
    """The record of an H200, with one cell that is small enough to run here."""
    path = tmp_path / "h200.json"
    cells = [SMALL, SMALL.changed(context=80), SMALL.changed(context=160)]
    path.write_text(json.dumps(record([*CELLS, *cells], ms=lambda cell: 0.01 + cell.context / 1e6)))
    return path


class TestRoofline:
    def test_every_cell_of_the_record(self, h200: Path) -> None:
        done = run("roofline", "--gpu", "rtx-pro-6000", "--project", str(h200))
        assert done.exit_code == 0, done.output
        assert done.output.startswith("projected, not measured: times on rtx-pro-6000 from those")
        lines = [x.split() for x in done.output.splitlines() if x.startswith("184,728 tokens, 64")]
        (line,) = lines
        made = Projection.from_record(read_record(h200), "rtx-pro-6000")
        found = made.project("sm120", Cell(context=184_728, nodes=64))
        assert not isinstance(found, str)
        assert f"{found.ms:.4f}" in line
        assert f"{found.low_ms:.4f}" in line
        assert f"{found.high_ms:.4f}" in line
        for assumption in made.assumptions:
            assert f"  {assumption.id} = " in done.output
        assert "arXiv 2501.12084" in done.output

    def test_cells_that_were_asked_for_and_not_measured_are_counted(self, h200: Path) -> None:
        done = run("roofline", "--project", str(h200), "--contexts", "1427,5k", "--nodes", "8")
        assert done.exit_code == 0
        assert "1,427 tokens, 8 nodes" in done.output
        assert "1 cells have no projection: not measured on h200" in done.output

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("--gpu", "l40s"), "nothing can be projected to l40s"),
            (("--gpu", "abacus"), "no GPU 'abacus'"),
            (("--nodes", "0"), "nodes is 0"),
        ],
    )
    def test_bad_input(self, h200: Path, words: tuple[str, ...], told: str) -> None:
        done = run("roofline", "--project", str(h200), *words)
        assert done.exit_code == 2
        assert told in done.output + (done.stderr or "")

    def test_no_record(self, tmp_path: Path) -> None:
        done = run("roofline", "--project", str(tmp_path / "none.json"))
        assert done.exit_code == 2
        assert "no record at" in done.output + (done.stderr or "")

    def test_names_of_others_are_shown_and_not_obeyed(self, tmp_path: Path) -> None:
        text = record()
        text["command"] = "[red]x[/red]\x1b[31m"
        (tmp_path / "r.json").write_text(json.dumps(text))
        done = run("roofline", "--project", str(tmp_path / "r.json"))
        assert "[red]x[/red]\\x1b[31m" in done.output


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> str:
    """A scripted RTX PRO 6000 on which `sm120` takes 0.1 ms and b takes 0.2."""
    put(monkeypatch, CARD)
    return CARD


def put(monkeypatch: pytest.MonkeyPatch, name: str, ms: float = 0.1) -> None:
    device = ScriptedDevice(steady({"sm120": ms / 1e3, "b": 2e-4}), IDENTITY | {"name": name})
    top = ceilings.Ceilings(Rates(1.0, 1.0, "measured: scripted"), 1.0, 1.0, "read", 1.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(cuda_device, "CudaDevice", lambda: device)
    monkeypatch.setattr(ceilings, "ceilings", lambda device: top)
    monkeypatch.setattr(ceilings, "self_test", lambda device, sheet: {})
    monkeypatch.setattr(bench_command, "load", Kernel)


def asked(tmp_path: Path, project: Path | None, *cells: Cell) -> Asked:
    return Asked(
        ("sm120", "b"), cells or (SMALL,), ("events",), "b", 60.0, {}, tmp_path / "r.json", None,
        project,
    )  # fmt: skip


class TestBench:
    def test_measured_against_projected(
        self, card: str, tmp_path: Path, h200: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_bench(asked(tmp_path, h200), None, False) == 0
        written = read_record(tmp_path / "r.json")
        mine, other = written["cases"]
        told = mine["projected"]
        assert told["mark"] == "projected, not measured"
        assert told["low_ms"] <= told["ms"] <= told["high_ms"]
        measured = mine["metrics"]["run_ms"]
        assert told["measured_over_projected"] == pytest.approx(measured / told["ms"])
        assert told["within"] is (told["low_ms"] <= measured <= told["high_ms"])
        assert not [name for name in mine["metrics"] if "project" in name]
        assert "projected" not in other
        about = written["environment"]["bench"]["projection"]
        assert about["source"] == "h200"
        assert {a["id"] for a in about["assumptions"]} >= {"source-mma", "fixed", "rereads"}
        shown = capsys.readouterr().out
        assert "measured/projected" in shown
        assert f"{told['measured_over_projected']:.2f}" in shown
        assert "target-memory = " in shown

    @pytest.mark.parametrize("over", [1.0, 50.0])
    def test_within_the_range_or_outside(
        self, over: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, h200: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        made = Projection.from_record(read_record(h200), "rtx-pro-6000").project("sm120", SMALL)
        assert not isinstance(made, str)
        put(monkeypatch, CARD, made.ms * over)
        assert run_bench(asked(tmp_path, h200), None, False) == 0
        assert read_record(tmp_path / "r.json")["cases"][0]["projected"]["within"] is (over == 1)
        assert ("within" if over == 1 else "outside") in capsys.readouterr().out

    def test_the_times_in_the_package_are_taken_where_no_record_is_named(
        self, card: str, tmp_path: Path, h200: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "perf/data").mkdir(parents=True)
        (tmp_path / projection_show.BUILT_IN).write_text(h200.read_text())
        monkeypatch.setattr(projection_show, "files", lambda package: tmp_path)
        assert run_bench(asked(tmp_path, None), None, False) == 0
        assert "projected" in read_record(tmp_path / "r.json")["cases"][0]

    def test_a_version_without_times_says_so_and_measures(
        self, card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.setattr(projection_show, "files", lambda package: tmp_path)
        assert run_bench(asked(tmp_path, None), None, False) == 0
        assert "no projection: this version has no times" in capsys.readouterr().out
        told = read_record(tmp_path / "r.json")["environment"]["bench"]["projection"]
        assert set(told) == {"reason"}

    def test_other_cells_have_none_and_that_is_said(
        self, card: str, tmp_path: Path, h200: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_bench(asked(tmp_path, h200, replace(SMALL, nodes=4)), None, False) == 0
        assert "no cell here has a projection" in capsys.readouterr().out

    def test_another_gpu_is_told_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put(monkeypatch, "NVIDIA H200")
        assert run_bench(asked(tmp_path, None), None, False) == 0
        assert "project" not in capsys.readouterr().out
        assert "projection" not in read_record(tmp_path / "r.json")["environment"]["bench"]

    def test_a_record_named_on_another_gpu_is_bad_usage(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, h200: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        put(monkeypatch, "NVIDIA H200")
        assert run_bench(asked(tmp_path, h200), None, False) == 2
        assert "this is NVIDIA H200; projections are to rtx-pro-6000" in capsys.readouterr().err

    def test_a_dry_run_says_that_it_sets_nothing_beside(self, h200: Path) -> None:
        done = run("bench", "--quick", "--dry-run", "--project", str(h200))
        assert done.exit_code == 0
        assert "--project: nothing is measured to set beside it" in done.output

    def test_a_record_of_no_use_is_bad_usage(
        self, card: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "x.json").write_text(json.dumps(record(kernel="triton-split")))
        assert run_bench(asked(tmp_path, tmp_path / "x.json"), None, False) == 2
        assert "no time of sm120" in capsys.readouterr().err

    def test_a_case_without_a_time_keeps_its_projection(self, h200: Path) -> None:
        made = Projection.from_record(read_record(h200), "rtx-pro-6000")
        case: dict[str, Any] = record([SMALL], ms=lambda cell: 1.0)["cases"][0] | {"metrics": {}}
        projection_show.set_beside(made, [case])
        assert "within" not in case["projected"]


BENCH, CASE = "environment.bench", "cases.0"
DAMAGED: dict[str, list[Any]] = {  # the field, and what cannot stand there
    "environment": [None, []],
    BENCH: [None],
    f"{BENCH}.identity": [None],
    f"{BENCH}.identity.name": [5],
    f"{BENCH}.ceilings": [None, [1]],
    f"{BENCH}.ceilings.rates": [None, [1]],
    f"{BENCH}.ceilings.rates.gb_per_s": [
        None, 0, -1, 1e-300, 99_999, float("inf"), float("nan"), True, 10**400,
    ],
    f"{BENCH}.ceilings.rates.tflops": ["x", 1_100.0],
    f"{CASE}.metrics": [None],
    f"{CASE}.metrics.run_ms": [float("inf"), float("nan"), 10**400, 5e-324, 0, "fast", True],
    f"{CASE}.metrics.sm_clock_mhz_most": ["x", -5, float("nan")],
    f"{CASE}.parameters": [None],
    f"{CASE}.parameters.kernel": [["a"]],
    f"{CASE}.parameters.nodes": ["x", 0, -3, 8.5, True],
    f"{CASE}.parameters.context": [None, -1, 10**30],
    f"{CASE}.parameters.heads": [0, [8]],
    f"{CASE}.parameters.page_size": [0],
    f"{CASE}.parameters.geometry": ["x", 8],
    f"{CASE}.parameters.layout": ["x", None],
    f"{CASE}.parameters.dtype": ["x"],
    f"{CASE}.parameters.tree": ["x"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in DAMAGED.items() for value in values]
)
def test_a_damaged_record_is_refused_with_the_field(path: str, value: Any) -> None:
    made = record()
    *outer, field = [int(word) if word.isdecimal() else word for word in path.split(".")]
    at: Any = made
    for word in outer:
        at = at[word]
    at[field] = value
    with pytest.raises(ProjectionError, match=rf"the record's .*\b{field}\b.* is ") as caught:
        Projection.from_record(made, "rtx-pro-6000")
    assert len(str(caught.value)) < 400


def test_a_damaged_record_is_bad_usage(h200: Path) -> None:
    made = json.loads(h200.read_text())
    made["cases"][0]["parameters"]["layout"] = "[red]\x1b[31mx"
    h200.write_text(json.dumps(made))
    done = run("roofline", "--project", str(h200))
    assert done.exit_code == 2
    assert "cases[0].parameters: layout is '[red]" in done.output + (done.stderr or "")


def test_nothing_projected_is_inconclusive(h200: Path) -> None:
    done = run("roofline", "--project", str(h200), "--nodes", "9")
    assert done.exit_code == 3
    assert "1 cells have no projection: not measured on h200" in done.output
