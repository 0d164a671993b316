"""What a run says of itself before it begins: by the real commands' own plans."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.report.test_run_logic import H200
from verify_attn import run_ahead, run_server
from verify_attn.cli import main
from verify_attn.engine.options import Options
from verify_attn.engine.presets import K26_RANK
from verify_attn.kernels.builtin import BUILTIN
from verify_attn.live.settings import parse_sizes
from verify_attn.run_ahead import Ahead, look_ahead, shown
from verify_attn.run_plan import Asked, BadRun


def test_with_a_gpu_every_step_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ahead, "worker_count", lambda _: 16)
    monkeypatch.setattr("verify_attn.run_server.gpus", lambda: [H200])
    assert "--geometry" in run_server.first_choice(True).sweep(True)  # sweep reads it below
    plan = look_ahead(Asked(quick=True), tmp_path, True)
    assert plan["check"].words == f"{', '.join(BUILTIN)}, 100 cases each: about 38 s"
    assert plan["bench"].words.startswith("3 cells, triton-unsplit, triton-split: at most about")
    assert plan["bench"].seconds == 60
    own = plan["sweep"]
    assert own.words.startswith("the package's own server, k2.6-rank, at 1k,8k,32k,128k tokens")
    assert sum(step.seconds for step in plan.values()) < 300  # --quick is quick on a GPU too
    assert not list(tmp_path.iterdir())


def test_a_server_of_the_users_is_planned_by_the_sweep_itself(tmp_path: Path) -> None:
    plan = look_ahead(Asked(url="http://127.0.0.1:9", contexts="2k,4k"), tmp_path, False)
    assert list(plan) == ["check", "sweep"]
    assert plan["sweep"].words.startswith("about 63 s in all at an assumed 2,000 prefill")
    assert plan["sweep"].seconds == 63


def test_what_the_bench_refuses_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadRun, match="no kernel"):
        look_ahead(Asked(kernels=("nothing-like-it",)), tmp_path, True)


def test_only_what_is_left_is_told() -> None:
    plan = {"check": Ahead("c", 30.0), "sweep": Ahead("s", 200.0)}
    assert shown(plan, ["check", "sweep"])[-1] == "plan: about 4 min in all"
    assert shown(plan, ["sweep"]) == ["plan: sweep: s", "plan: about 3 min in all"]
    assert shown(plan, []) == ["plan: nothing is left to do"]


def test_the_rank_is_served_as_serve_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []
    monkeypatch.setattr(
        "verify_attn.serve_command.run_serve", lambda options, *_: asked.append(options) or 0
    )
    line = ["serve", *run_server.RANK.arguments, "--kernel", "triton-split", "--port", "0"]
    assert CliRunner().invoke(main, line).exit_code == 0
    assert (asked[0].model, asked[0].pin, asked[0].kernel) == ("k2.6-rank", 4, "triton-split")
    # A prompt and its answer fit into the model's positions, beside a step's tree.
    longest = max(parse_sizes(run_server.RANK.contexts)) + 600 + asked[0].budget + 1
    assert longest < K26_RANK.max_positions
