"""`verify-attn bench` and `roofline` without a GPU, and what they do with what was measured."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.perf.scripted import ScriptedDevice
from tests.perf.test_bench import Kernel, steady
from verify_attn import bench_asked, bench_command
from verify_attn.bench_command import Asked, finish, run_bench
from verify_attn.cli import main
from verify_attn.cli_kernels import bench
from verify_attn.generate import visible_rows
from verify_attn.perf import ceilings, cuda_device
from verify_attn.perf.axes import Cell
from verify_attn.perf.roofline import Rates, work_of
from verify_attn.perf.show import write_csv
from verify_attn.record import RecordError, read_record

CELLS = tuple(Cell(context=c, nodes=5, heads=4, geometry="tiny", dtype="float32") for c in (20, 40))


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


class TestWithoutAGpu:
    """It prints the roofline and says that nothing was timed."""

    @pytest.fixture(autouse=True)
    def no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def test_nothing_is_timed(self, tmp_path: Path) -> None:
        record = tmp_path / "r.json"
        done = run("bench", "--quick", "--json", str(record))
        assert done.exit_code == 3
        assert "nothing was timed" in done.output
        assert "184,728 tokens, 32 nodes" in done.output
        assert not record.exists()

    def test_a_dry_run_shows_plan_and_cells(self) -> None:
        done = run("bench", "--dry-run", "--contexts", "1k,2k", "--nodes", "8,17", "--grid")
        assert done.exit_code == 0
        assert "4 cells, triton-unsplit, triton-split: at most about" in done.output
        assert "2,048 tokens, 17 nodes" in done.output

    def test_a_name_is_shown_and_not_obeyed(self) -> None:
        done = run("bench", "--dry-run", "--quick", "[red]x[/red]:\x1b[31my")
        assert "[red]x[/red]:\\x1b[31my" in done.output

    def test_fp8_products_have_a_floor_of_their_own(self) -> None:
        done = run("roofline", "--kv-dtypes", "float8_e4m3fn", "--nodes", "64")
        assert "products in fp8 has half the arithmetic time" in done.output

    def test_peers_that_are_not_here_are_named_with_their_reason(self) -> None:
        done = run("bench", "--dry-run", "--quick", "--peers")
        assert done.exit_code == 0
        assert "left out flashmla: " in done.output

    @pytest.mark.parametrize(
        ("lack", "gpu", "kernels", "left_out"),
        [
            (None, True, ("triton-unsplit", "triton-split", "sm120"), {}),
            ("no NVRTC", True, ("triton-unsplit", "triton-split"), {"sm120": "no NVRTC"}),
            ("it needs a GPU", False, ("triton-unsplit", "triton-split"), {}),
        ],
    )
    def test_the_default_is_every_kernel_of_ours_that_can_be_timed(
        self, monkeypatch: pytest.MonkeyPatch, lack: str | None, gpu: bool,
        kernels: tuple[str, ...], left_out: dict[str, str],
    ) -> None:  # fmt: skip
        monkeypatch.setattr(bench_asked, "lacking", lambda kernel: lack)
        options = bench.make_context("bench", ["--quick"]).params
        monkeypatch.setattr(bench_asked.torch.cuda, "is_available", lambda: gpu)
        asked = bench_asked.ask((), options)
        assert (asked.kernels, asked.left_out) == (kernels, left_out)
        assert bench_asked.ask(("torch",), options).kernels == ("torch", "triton-unsplit")

    def test_the_default_is_every_axis(self) -> None:
        done = run("bench", "--dry-run")
        assert done.exit_code == 0
        assert "64 requests" in done.output
        assert "256 nodes" in done.output

    @pytest.mark.parametrize("line", [("roofline",), ("bench", "--dry-run"), ("bench",)])
    def test_whose_figures_they_are_is_said_where_nobody_asked(self, line: tuple[str, ...]) -> None:
        done = run(*line, "--quick")
        assert "for h200, as no --gpu was given; there are: h200, h100, b200" in done.stdout
        assert "no --gpu was given" not in run(*line, "--quick", "--gpu", "b200").stdout

    def test_roofline(self) -> None:
        done = run("roofline", "--gpu", "h200", "--contexts", "184728", "--nodes", "8,64")
        assert done.exit_code == 0
        lines = {line.split()[2]: line.split() for line in done.output.splitlines()
                 if line.startswith("184,728 tokens")}  # fmt: skip
        # 8 heads x 64 nodes x 184,792 tokens x 2 x (576 + 512) operations, at 989.5 TFLOP/s.
        assert lines["64"][-1] == "arithmetic"
        assert float(lines["64"][-2]) == pytest.approx(0.2078, abs=0.0005)
        # 184,736 rows of 1,152 bytes at 4.8 TB/s.
        assert lines["8"][-1] == "memory"
        assert float(lines["8"][-2]) == pytest.approx(0.0445, abs=0.0005)
        assert "NVIDIA H200" in done.output

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("bench", "--nodes", "0"), "nodes is 0"),
            (("bench", "--nodes", "eight"), "no size"),
            (("bench", "--nodes", ""), "no size"),
            (("bench", "--trees", "bush"), "tree is 'bush'"),
            (("bench", "--heads", "129"), "heads is 129"),
            (("bench", "--quick", "--nodes", "8"), "--quick has its own cells"),
            (("bench", "--timers", "sundial"), "no timer 'sundial'"),
            (("bench", "--contexts", ",".join(map(str, range(1, 200)))), "at most 150"),
            (("bench", "--quick", "--gpu", "abacus"), "no GPU 'abacus'"),
            (("bench", "--quick", "--json", "/proc/no/such.json"), "no record can be written"),
            (("bench", "--quick", "--dry-run", "nosuch"), "no kernel 'nosuch'"),
            (("bench", "--quick", "--dry-run", "--baseline", "nosuch"), "no kernel 'nosuch'"),
            (("bench", "--quick", "--time-limit", "nan"), "--time-limit is nan"),
            (("bench", "--quick", "--json", "a", "--csv", "./a"), "are both a"),
            (("roofline", "--gpu", "abacus"), "no GPU 'abacus'"),
            (("roofline", "--page-sizes", "0"), "page_size is 0"),
        ],
    )
    def test_bad_input(self, words: tuple[str, ...], told: str) -> None:
        done = run(*words)
        assert done.exit_code == 2
        assert told in done.output + (done.stderr or "")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ScriptedDevice:
    """A scripted GPU in the place of the real one."""
    device = ScriptedDevice(steady({"a": 1e-3, "b": 2e-3}))
    top = ceilings.Ceilings(Rates(1.0, 1.0, "measured: scripted"), 1.0, 1.0, "read", 1.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(cuda_device, "CudaDevice", lambda: device)
    monkeypatch.setattr(ceilings, "ceilings", lambda device: top)
    monkeypatch.setattr(ceilings, "self_test", lambda device, sheet: {"events": {"agrees": True}})
    monkeypatch.setattr(bench_command, "load", Kernel)
    return device


def asked(tmp_path: Path, **values: Any) -> Asked:
    return Asked(
        **{
            "kernels": ("a", "b"), "cells": CELLS, "timers": ("events", "graph"), "baseline": "b",
            "time_limit_s": 60.0, "left_out": {"flashmla": "not installed"},
            "record": tmp_path / "r.json", "csv": tmp_path / "r.csv",
        }
        | values
    )  # fmt: skip


def test_a_whole_run(
    device: ScriptedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_bench(asked(tmp_path), None, False) == 0
    record = read_record(tmp_path / "r.json")
    said = record["environment"]["bench"]
    assert said["identity"]["name"] == "Scripted GPU"
    assert said["left_out"] == {"flashmla": "not installed"}
    assert [c["status"] for c in record["cases"]] == ["pass"] * 4
    shown = capsys.readouterr().out
    assert "times b" in shown
    assert "2.00" in shown
    with (tmp_path / "r.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kernel"] for row in rows] == ["a", "b", "a", "b"]
    assert float(rows[0]["run_ms"]) == pytest.approx(1, rel=0.01)
    assert float(rows[0]["speedup"]) == pytest.approx(2, rel=0.01)
    assert rows[1]["speedup"] == ""


def test_ctrl_c_keeps_the_cells_that_were_measured(device: ScriptedDevice, tmp_path: Path) -> None:
    sample = device.sample

    def until(call: Any) -> Any:
        if "c40" in call.name:
            raise KeyboardInterrupt
        return sample(call)

    device.sample = until  # type: ignore[method-assign]
    assert run_bench(asked(tmp_path), None, False) == 130
    assert [c["parameters"]["context"] for c in read_record(tmp_path / "r.json")["cases"]] == [
        20
    ] * 2


def test_ctrl_c_before_the_first_cell_leaves_what_was_there(
    device: ScriptedDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(call: Any) -> Any:
        raise KeyboardInterrupt

    (tmp_path / "r.json").write_text("good")
    (tmp_path / "r.csv").write_text("good")
    device.sample = never  # type: ignore[method-assign]
    assert run_bench(asked(tmp_path), None, False) == 130
    assert (tmp_path / "r.json").read_text() == (tmp_path / "r.csv").read_text() == "good"
    assert "interrupted before anything was measured: nothing is written" in capsys.readouterr().out


def test_a_record_that_cannot_be_written_any_more_ends_it_and_the_rest_is(
    device: ScriptedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, record: dict[str, Any]) -> None:
        raise RecordError(f"{path} is not written: no space left")

    monkeypatch.setattr(bench_command, "write_record", full)
    assert run_bench(asked(tmp_path), None, False) == 2
    with (tmp_path / "r.csv").open() as file:
        assert [row["context"] for row in csv.DictReader(file)] == ["20", "20"]


def test_a_kernel_that_does_not_load(
    device: ScriptedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verify_attn.kernels.registry import load

    monkeypatch.setattr(bench_command, "load", load)
    assert run_bench(asked(tmp_path, kernels=("no.such:kernel",)), None, False) == 2


def test_a_timer_that_lies_ends_it(
    device: ScriptedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from verify_attn.perf.device import TimerError

    def lies(device: object, sheet: object) -> dict[str, Any]:
        raise TimerError("the host counts 0.30 s, the device 0.20 s")

    monkeypatch.setattr(ceilings, "self_test", lies)
    assert run_bench(asked(tmp_path), None, False) == 3
    assert "no time can be believed here" in capsys.readouterr().err


def test_statuses_make_the_exit_code(tmp_path: Path) -> None:
    from rich.console import Console

    def ends(*statuses: str) -> int:
        cases = [
            {"id": s, "status": s, "reason": None, "metrics": {}, "notes": [],
             "parameters": {"kernel": "k", "case": "", **vars(Cell())}}
            for s in statuses
        ]  # fmt: skip
        record = {"schema_version": 1, "cases": cases}
        return finish(asked(tmp_path), record, Console(quiet=True), False)

    assert ends("pass", "skipped") == 0
    assert ends("skipped") == 3
    assert ends() == 3
    assert ends("pass", "inconclusive") == 3
    assert ends("pass", "error") == 1
    assert ends("pass", "fail", "inconclusive") == 1


def test_both_files_are_there_when_nothing_can_be_shown(tmp_path: Path) -> None:
    from rich.console import Console

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    case = {"id": "x", "status": "pass", "reason": None, "metrics": {"run_ms": 1.0}, "notes": [],
            "parameters": {"kernel": "k", "case": "", **vars(Cell())}}  # fmt: skip
    with pytest.raises(OSError, match="No space left"):
        finish(asked(tmp_path), {"schema_version": 1, "cases": [case]}, Console(file=Full()), False)
    assert len(read_record(tmp_path / "r.json")["cases"]) == 1
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 2


def test_no_text_in_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    case = {"id": "=1+1", "status": "error", "reason": "@SUM(A1)\ud800", "metrics": {"run_ms": -1},
            "parameters": {"kernel": "+x", **vars(Cell())}}  # fmt: skip
    write_csv(tmp_path / "r.csv", [case])
    with (tmp_path / "r.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["id"], row["kernel"]) == ("'=1+1", "'+x")
    assert row["reason"].startswith("'@SUM")
    assert row["run_ms"] == "-1"


def test_a_huge_grid_is_planned_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(text: str) -> Any:
        made.append(text)
        return visible_rows(text)

    for module in ("generate", "perf.roofline"):
        monkeypatch.setattr(f"verify_attn.{module}.visible_rows", counted)
    work_of(Cell(requests=1024, nodes=64).case())
    assert len(made) == 2  # and not 2,048


HANGS = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
import pytest
from tests.perf.test_bench_command import CELLS, Kernel, asked
from tests.perf.scripted import ScriptedDevice
from verify_attn.perf import ceilings, cuda_device
from verify_attn.perf.roofline import Rates
from verify_attn import bench_asked, bench_command
import torch
torch.cuda.is_available = lambda: True
class Device(ScriptedDevice):
    def sample(self, call):
        if "c40" in call.name and call.name.startswith("b"):
            time.sleep(600)
        return super().sample(call)
cuda_device.CudaDevice = lambda: Device(lambda name, number: 1e-3)
ceilings.ceilings = lambda d: ceilings.Ceilings(Rates(1.0, 1.0, "scripted"), 1.0, 1.0, "read", 1.0)
ceilings.self_test = lambda d, s: {{}}
bench_command.load = Kernel
sys.exit(bench_command.run_bench(asked(Path({where!r}), time_limit_s={limit}), None, False))
"""


def started(tmp_path: Path, limit: float) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    script = HANGS.format(root=root, where=str(tmp_path), limit=limit)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_kernel_that_hangs_ends_the_run_with_what_was_measured(tmp_path: Path) -> None:
    process = started(tmp_path, 1.5)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1, shown
    assert "timing took longer than --time-limit 1.5 s" in shown
    cases = read_record(tmp_path / "r.json")["cases"]
    names = [f"{c['parameters']['kernel']} {c['parameters']['context']}" for c in cases]
    assert names == ["a 20", "b 20", "b 40"]
    assert [c["status"] for c in cases] == ["pass", "pass", "error"]


def test_sigterm_is_an_interruption(tmp_path: Path) -> None:
    process = started(tmp_path, 60)
    deadline = time.monotonic() + 30
    while not (tmp_path / "r.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130, shown
    assert len(read_record(tmp_path / "r.json")["cases"]) == 2
