"""`verify-attn run` with scripted steps: which run, with what, and what is kept of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.report.folders import BENCH, RESULTS, swept
from verify_attn import run_command
from verify_attn.environment import Gpu
from verify_attn.record import RecordError
from verify_attn.run_ahead import Ahead
from verify_attn.run_command import run_run
from verify_attn.run_plan import Asked, BadRun, sweep_line
from verify_attn.run_server import Embedded
from verify_attn.run_steps import Ended

RECORDS = {"check": RESULTS / "cpu/check.json", "sweep": swept("healthy"),
           "bench": None, "doctor": None}  # fmt: skip
PLAN = {"check": Ahead("two kernels", 30.0), "sweep": Ahead("at 1k", 90.0)}
EMPTY = {"schema_version": 1, "cases": []}
H200 = Gpu(0, "NVIDIA H200", "u", "580", "9.0", 150 << 30, None, None, None, None)


class Scripted:
    """In place of `Steps`: notes the command lines, leaves records, ends as ``codes`` say."""

    codes: dict[str, int]
    stop_in: str | None
    taken: list[list[str]]

    def __init__(self, inherited: Sequence[int] = ()) -> None:
        self.stopped = False

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def take(self, module: str, arguments: Sequence[str], output: Path) -> Ended:
        step = output.stem
        type(self).taken.append([step, *arguments])
        output.write_text(f"error: {step} says why\n")
        code = self.codes.get(step, 0)
        if code in (0, 1, 3):
            self._record(step, arguments, output.parent)
        self.stopped = step == self.stop_in
        return Ended(130 if self.stopped else code, 2.0, self.stopped, output.read_text())

    def _record(self, step: str, arguments: Sequence[str], folder: Path) -> None:
        """A saved one, as if made here and now by this command."""
        given = RECORDS[step]
        known = BENCH if step == "bench" else EMPTY
        known = known if given is None else json.loads(given.read_text())
        run = json.loads((folder / "run.json").read_text())
        command = ["verify-attn", *([step] if step == "doctor" else arguments)]
        known = {**known, "command": shlex.join(command), "commit": run["commit"],
                 "environment": run["environment"]}  # fmt: skip
        (folder / f"{step}.json").write_text(json.dumps(known))


def report(folder: Any, verdict: Any, against: str | None) -> tuple[str, list[str]]:
    return f"report: with {against} behind", []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Scripted]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "Steps", Scripted)
    monkeypatch.setattr(run_command, "look_ahead", lambda *_: PLAN)
    monkeypatch.setattr("verify_attn.run_written._report", report)
    monkeypatch.setattr(run_command, "gpus", list)
    monkeypatch.setattr(Embedded, "missing", staticmethod(lambda: None))
    Scripted.codes, Scripted.stop_in, Scripted.taken = {}, None, []
    return Scripted


def run(asked: Asked | None = None, resume: bool = False) -> int:
    return run_run(asked or Asked(url="http://h:1"), Path("r"), resume)


def cases() -> dict[str, Any]:
    return {case["id"]: case for case in json.loads(Path("r/run.json").read_text())["cases"]}


def test_all_steps_in_order(steps: type[Scripted], capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(("mine:k",), "http://h:1", 7, "1k,2k", 99, "f.toml", "a.json", "--gpu h200")
    assert run(asked) == 0
    assert steps.taken == [
        ["doctor", "r/doctor.json"],
        ["check", "check", "mine:k", "--examples", "7", "--json", "r/check.json"],
        ["sweep", "sweep", "--url", "http://h:1", "--json", "r/sweep.json", "--contexts", "1k,2k",
         "--floors", "f.toml", "--against", "a.json", "--max-tokens", "99", "--gpu", "h200"],
    ]  # fmt: skip
    found = cases()
    assert list(found) == ["doctor", "check", "bench", "sweep"]
    assert found["bench"]["status"] == "skipped"
    assert found["check"]["parameters"] == {
        "command": "verify-attn check mine:k --examples 7 --json r/check.json",
        "record": "check.json",
    }
    printed = capsys.readouterr()
    assert printed.err == (  # in a pipe plain lines: what is ahead, and how each step ended
        "plan: check: two kernels\nplan: sweep: at 1k\nplan: about 2 min in all\n"
        "doctor: pass, 2 s\ncheck: pass, 2 s\n"
        "bench: skipped: no GPU here: kernels were not timed\nsweep: pass, 2 s\n"
    )
    assert printed.out.startswith("PASS: ")
    assert len(printed.out.splitlines()) <= 20
    assert "report: with a.json behind" in printed.out


def test_with_a_gpu_kernels_are_timed(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "gpus", lambda: ["a GPU"])
    assert run(Asked(("mine:k",), "http://h:1")) == 0
    assert run_run(Asked(url="http://h:1", quick=True), Path("q"), False) == 0
    lines = {(line[0], i > 3): line[1:] for i, line in enumerate(steps.taken)}
    assert lines["bench", False] == ["bench", "mine:k", "--json", "r/bench.json"]
    assert lines["bench", True] == ["bench", "--quick", "--json", "q/bench.json"]
    assert lines["check", False] == ["check", "mine:k", "--json", "r/check.json"]
    assert lines["check", True] == ["check", "--examples", "100", "--json", "q/check.json"]


@pytest.mark.parametrize(
    ("codes", "code", "ran"),
    [
        ({"check": 1}, 1, ["doctor", "check", "sweep"]),  # a wrong kernel ends nothing
        ({"check": 2}, 2, ["doctor", "check"]),  # bad input does
        ({"sweep": 4}, 4, ["doctor", "check", "sweep"]),
        ({"check": -11}, 1, ["doctor", "check", "sweep"]),
        ({"check": 1, "sweep": 4}, 4, ["doctor", "check", "sweep"]),
        ({"sweep": 3}, 3, ["doctor", "check", "sweep"]),
    ],
)  # fmt: skip
def test_how_steps_end(
    steps: type[Scripted], codes: dict[str, int], code: int, ran: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    steps.codes = codes
    assert run() == code
    assert [line[0] for line in steps.taken] == ran
    record = json.loads(Path("r/run.json").read_text())
    assert (record["finished"], record["interrupted"]) == (True, False)
    out = capsys.readouterr().out
    if codes == {"check": 2}:
        assert out.startswith("INCONCLUSIVE: check: check says why")
        assert "not tested: sweep: not begun" in out
    if codes == {"check": -11}:
        assert out.startswith("FAIL: check: it ended with signal 11: check says why")
    if codes == {"sweep": 4}:
        assert out.startswith("DEAD: sweep: sweep says why")


@pytest.mark.parametrize("step", ["doctor", "check", "sweep"])
def test_interrupted_and_resumed(
    steps: type[Scripted], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps.stop_in = step
    assert run() == 130
    assert cases()[step]["reason"] == "interrupted after 2 s"
    assert list(cases())[-1] == step  # nothing was begun after it
    assert f"INTERRUPTED in {step}: interrupted after 2 s" in capsys.readouterr().out
    assert step in Path("r/summary.md").read_text()
    done = [line[0] for line in steps.taken][:-1]
    steps.stop_in, steps.taken = None, []
    assert run(resume=True) == 0
    assert [line[0] for line in steps.taken] == [
        s for s in ("doctor", "check", "sweep") if s not in done
    ]
    check = next((line for line in steps.taken if line[0] == "check"), [])
    assert ("--resume" in check) == (step == "check")  # its own record had begun
    assert run(resume=True) == 0
    assert len(steps.taken) == 3 - len(done)  # nothing more to do


def test_what_resume_runs_again(steps: type[Scripted]) -> None:
    """A dead server's sweep, and a step whose record was half-written since."""
    steps.codes = {"sweep": 4}
    assert run() == 4
    Path("r/check.json").write_text("{")
    steps.codes, steps.taken = {}, []
    assert run(resume=True) == 0
    assert [line[0] for line in steps.taken] == ["check", "sweep"]
    assert "--resume" not in steps.taken[0]
    assert Path("r/check.json.before").read_text() == "{"


def test_resume_at_another_commit(
    steps: type[Scripted], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was changed since is not the one that passed its check."""
    steps.stop_in = "sweep"
    assert run() == 130
    steps.stop_in = None
    record = json.loads(Path("r/run.json").read_text())
    Path("r/run.json").write_text(json.dumps(record | {"commit": "a" * 40}))
    monkeypatch.setattr("verify_attn.record.current_commit", lambda: "b" * 40)
    assert run(resume=True) == 2
    assert f"made at commit {'a' * 40}, here is {'b' * 40}" in capsys.readouterr().err
    monkeypatch.setattr("verify_attn.record.current_commit", lambda: None)  # git was too slow
    assert run(resume=True) == 0


def test_resume_beside_a_record_that_another_run_left(
    steps: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass of another kernel, commit or machine is none of this run."""
    steps.stop_in = "sweep"
    assert run(Asked(kernels=("mine:k",), url="http://h:1")) == 130
    steps.stop_in = None
    own = json.loads(Path("r/check.json").read_text())
    foreign = {**own, "command": own["command"].replace("mine:k", "mine:other")}
    Path("r/check.json").write_text(json.dumps(foreign))
    steps.taken.clear()
    assert run(Asked(kernels=("mine:k",), url="http://h:1"), resume=True) == 0
    assert "check runs again: check.json is not of this run" in capsys.readouterr().err
    assert [taken[0] for taken in steps.taken] == ["check", "sweep"]
    assert "--resume" not in steps.taken[0]
    assert json.loads(Path("r/check.json").read_text())["command"] == own["command"]
    assert json.loads(Path("r/check.json.before").read_text()) == foreign


@pytest.mark.parametrize(
    "option", ["--json x.json", "--json=x.json", "--url http://h", "--dry-run"]
)
def test_what_the_run_itself_gives_the_sweep(option: str) -> None:
    with pytest.raises(BadRun, match=f"{option.split()[0].split('=')[0]} .*; leave it out"):
        sweep_line(Asked(sweep=f"--gpu h200 {option}"), Path("r"), "http://h:1", {})
    assert "h200" in sweep_line(Asked(sweep="--gpu h200"), Path("r"), "http://h:1", {})


def test_resume_of_something_else(
    steps: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(resume=True) == 2
    assert "r: run.json is missing; make a new run with another --out" in capsys.readouterr().err
    assert run() == 0
    assert run(Asked(url="http://h:1", examples=3, contexts="1k"), resume=True) == 2
    assert "which differs in examples, contexts; to resume give the same" in capsys.readouterr().err
    record = json.loads(Path("r/run.json").read_text())
    Path("r/run.json").write_text(json.dumps(record | {"schema_version": 0}))
    assert run(resume=True) == 2
    assert "has schema_version 0; this version reads 1" in capsys.readouterr().err
    record["environment"]["gpus"] = [{"name": "another GPU"}]
    Path("r/run.json").write_text(json.dumps(record))
    assert run(resume=True) == 2
    assert "'another GPU'" in capsys.readouterr().err
    assert len(steps.taken) == 3


def test_folders_that_are_refused(
    steps: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r").mkdir()
    assert run() == 0  # an empty one is none
    assert run() == 2
    assert "r is not empty; --resume goes on with the run in it" in capsys.readouterr().err
    assert run_run(Asked(), Path("r/run.json"), False) == 2
    assert "r/run.json is no folder" in capsys.readouterr().err
    assert run_run(Asked(), Path("r/run.json/sub"), False) == 2
    assert (
        "--out r/run.json/sub cannot be made: a part of its path is a file"
        in capsys.readouterr().err
    )
    assert run_run(Asked(), None, True) == 2
    assert "no run in verify-attn-runs" in capsys.readouterr().err
    assert len(steps.taken) == 3


def test_no_space_left_in_the_middle(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, left = run_command.write_record, [3]

    def full(path: Path, record: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RecordError(f"{path} is not written: no space is left on its disk")
        real(path, record)

    monkeypatch.setattr(run_command, "write_record", full)
    assert run() == 2
    printed = capsys.readouterr()
    assert "no space is left on its disk; what was measured is in r" in printed.err
    assert "torch" in Path("r/summary.md").read_text()
    assert printed.out.startswith("INTERRUPTED after check")


# -- the package's own server --------------------------------------------------------------------


class Served(Embedded):
    """Comes up with the kernels that ``can`` names, and with none."""

    can: tuple[str, ...] = ()
    fits: tuple[str, ...] = ("tiny", "k2.6-rank")

    def start(self, stack: ExitStack, steps: Any) -> str | None:
        from verify_attn.embedded import NotReadyError

        def serving(arguments: list[str], **_: Any) -> Any:
            name = arguments[-1] if "--kernel" in arguments else "default"
            if arguments[0] not in self.fits:
                raise NotReadyError("ended with 2\nerror: 204800 tokens of KV do not fit")
            if name not in (*self.can, "default"):
                raise NotReadyError(f"ended with 2\nerror: {name} has too few heads")
            return ExitStack()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("verify_attn.run_server.serving", serving)
            super().start(stack, steps)
        return "http://own:1"


def test_its_kernel_is_the_first_right_one_that_it_can_run(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_command, "gpus", lambda: ["a GPU"])
    monkeypatch.setattr(run_command, "Embedded", Served)
    monkeypatch.setattr(Served, "can", ("right:b", "right:c"))
    assert run(Asked(("right:a", "right:b", "right:c"))) == 0
    sweep = cases()["sweep"]
    served = "verify-attn serve k2.6-rank --drafter replay --pin 4 --fill-prompts 7 "
    assert sweep["parameters"]["server"] == f"{served}--no-prefix-cache --kernel right:b"
    assert sweep["notes"][1] == (
        "the server cannot run right:a on k2.6-rank: right:a has too few heads"
    )
    assert f"not tested: sweep: {sweep['notes'][1]}" in capsys.readouterr().out  # and no emoji
    assert "--log r/server.log" in sweep["parameters"]["command"]


def test_with_a_gpu_its_own_server_is_swept_at_contexts_worth_the_name(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_command, "gpus", lambda: ["a GPU"])
    monkeypatch.setattr("verify_attn.run_server.gpus", lambda: [H200])
    monkeypatch.setattr(run_command, "Embedded", Served)
    assert run(Asked()) == 0
    command = cases()["sweep"]["parameters"]["command"]
    assert "--contexts 1k,8k,32k,64k,128k,180k --max-tokens 600" in command
    assert "--decode-limit 30 --geometry kimi-k2.6-tp8 --gpu h200" in command
    assert "prefill and acceptance are not measured" in cases()["sweep"]["notes"][0]
    assert run_run(Asked(quick=True, max_tokens=99), Path("q"), False) == 0
    quick = json.loads(Path("q/run.json").read_text())["cases"][-1]["parameters"]["command"]
    assert "--contexts 1k,8k,32k,128k --max-tokens 99 " in quick


def test_on_a_gpu_that_is_too_small_the_small_model_is_served(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "gpus", lambda: ["a GPU"])
    monkeypatch.setattr(run_command, "Embedded", Served)
    monkeypatch.setattr(Served, "fits", ("tiny",))
    assert run() == 0
    assert run_run(Asked(), Path("s"), False) == 0
    sweep = json.loads(Path("s/run.json").read_text())["cases"][-1]
    assert sweep["parameters"]["server"] == "verify-attn serve tiny"
    assert "--contexts 512,1k,2k" in sweep["parameters"]["command"]
    assert sweep["notes"] == [
        "no --url: the package's own small model was served, no server of yours",
        "the server cannot run k2.6-rank: 204800 tokens of KV do not fit",
    ]


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (["a GPU"], "torch failed its check and was not served"),
        ([], "without a GPU the server runs its default kernel, none of those that were named"),
    ],
)
def test_kernels_that_are_not_served_are_named(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch, found: list[str], note: str
) -> None:
    record = json.loads((RESULTS / "cpu/check.json").read_text())
    record["cases"][0] |= {"status": "fail", "reason": "wrong"}
    Path("failed.json").write_text(json.dumps(record))
    monkeypatch.setitem(RECORDS, "check", Path("failed.json"))
    monkeypatch.setattr(run_command, "gpus", lambda: found)
    monkeypatch.setattr(run_command, "Embedded", Served)
    steps.codes = {"check": 1}
    assert run(Asked(("torch",))) == 1
    assert cases()["sweep"]["notes"][1:] == [note]
    model = "k2.6-rank" if found else "tiny"
    assert cases()["sweep"]["parameters"]["server"].startswith(f"verify-attn serve {model}")
    assert "--kernel" not in cases()["sweep"]["parameters"]["server"]


def test_without_its_packages_the_sweep_is_not_tested(
    steps: type[Scripted], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Embedded, "missing", staticmethod(lambda: "it needs fastapi"))
    assert run(Asked()) == 0
    assert "not tested: sweep: it needs fastapi" in capsys.readouterr().out
