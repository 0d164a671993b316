"""A run's folder in every state that it may be left in."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.report.folders import BENCH, DATA, RESULTS, folder, run_record, swept
from verify_attn.report.folder import STEPS, FolderError, foreign, kind_of, read_folder, read_run
from verify_attn.report.junit import junit
from verify_attn.report.markdown import summary
from verify_attn.report.text import lines
from verify_attn.report.verdict import judge


def test_a_whole_folder(tmp_path: Path) -> None:
    steps = {"check": RESULTS / "cpu/check.json", "sweep": DATA / "healthy.json"}
    found = read_folder(folder(tmp_path, run_record(), **steps))
    assert set(found.steps) == set(STEPS)
    assert found.run is not None
    assert found.steps["check"].problem is None
    assert found.steps["check"].record is not None
    assert (found.steps["bench"].record, found.steps["bench"].problem) == (
        None, "bench.json is missing",
    )  # fmt: skip
    assert read_folder(tmp_path / "run.json") == found


@pytest.mark.parametrize(
    ("file", "kind"),
    [("cpu/check.json", "check"), ("cpu/burst_prose.json", "sweep"),
     ("h200/check_torch_chain.json", "check"), ("h200/collapse.json", "sweep")],
)  # fmt: skip
def test_one_record_alone(file: str, kind: str) -> None:
    found = read_folder(RESULTS / file)
    assert found.alone
    assert [name for name, step in found.steps.items() if step.record] == [kind]


def test_a_bench_record_is_known_by_its_cases() -> None:
    case = {"id": "k | c", "parameters": {"kernel": "k"}, "status": "pass", "reason": None,
            "metrics": {"run_ms": 1.0}}  # fmt: skip
    assert kind_of({"command": "python x.py", "cases": [case]}) == "bench"


def test_no_such_record_or_folder(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="neither the folder of a run nor a record"):
        read_folder(tmp_path / "nothing")
    with pytest.raises(FolderError, match=r"holds no record of a run.*sweep\.json is missing"):
        read_folder(tmp_path)
    with pytest.raises(FolderError, match=r"a record of 'python benchmarks/soak\.py"):
        read_folder(RESULTS / "cpu/soak.json")
    with pytest.raises(FolderError, match="schema_version None"):
        read_folder(RESULTS / "h200/anchors.json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (swept("stall").read_text()[:2000], "sweep.json is no record: "),
        ("", "sweep.json is no record: "),
        ("[]", "sweep.json has schema_version None"),
        (swept("stall").read_text().replace('"schema_version": 1', '"schema_version": 0'),
         "sweep.json has schema_version 0; this version reads 1"),
        (swept("stall").read_text().replace('"id": "ctx=256"', '"id": 7'),
         "sweep.json is damaged: in case 0, id is int"),
        ("[" * 100_000, "sweep.json is no record: "),
    ],
)  # fmt: skip
def test_a_bad_record_is_its_steps_problem(tmp_path: Path, text: str, problem: str) -> None:
    folder(tmp_path, run_record(), check=RESULTS / "cpu/check.json")
    (tmp_path / "sweep.json").write_text(text)
    found = read_folder(tmp_path)
    assert found.steps["sweep"].record is None
    assert problem in str(found.steps["sweep"].problem)
    verdict = judge(found)
    # The run said that its sweep passed; nobody can see that any more.
    assert (verdict.status, verdict.exit_code) == ("inconclusive", 3)
    assert problem in verdict.headline


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    folder(tmp_path, run_record(), check=RESULTS / "cpu/check.json")
    (tmp_path / "sweep.json").write_bytes(b"\xff\xfe\x00")
    assert "is no record" in str(read_folder(tmp_path).steps["sweep"].problem)


def test_a_lost_run_record(tmp_path: Path) -> None:
    folder(tmp_path, None, check=RESULTS / "cpu/check.json", sweep=DATA / "stall.json")
    (tmp_path / "run.json").write_text("{")
    verdict = judge(read_folder(tmp_path))
    assert verdict.exit_code == 3
    assert verdict.not_tested[0].startswith("run: run.json is no record")
    # Had a step crashed without a record, only that file would say so.
    (tmp_path / "sweep.json").write_bytes(swept("healthy").read_bytes())
    verdict = judge(read_folder(tmp_path))
    assert (verdict.status, verdict.exit_code) == ("inconclusive", 3)
    assert verdict.headline.startswith("INCONCLUSIVE: run: run.json is no record")


def test_a_record_of_another_step(tmp_path: Path) -> None:
    check = json.loads((RESULTS / "cpu/check.json").read_text())
    folder(tmp_path, run_record(), check=check)
    (tmp_path / "sweep.json").write_text(json.dumps(check))
    found = read_folder(tmp_path)
    assert found.steps["sweep"].problem == "sweep.json is a record of check"
    assert judge(found).exit_code == 3


OTHERS = {
    "another kernel's": ({"command": "verify-attn check torch --json check.json"}, "made by"),
    "another commit's": ({"commit": "b" * 40}, "made at commit"),
    "another machine's": (
        {"environment": {"gpus": [{"name": "a card"}], "versions": {}}}, "made with"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "says"), OTHERS.values(), ids=OTHERS)
def test_a_record_of_another_run_is_no_pass_of_this_one(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    here = {"gpus": [], "versions": {"torch": "2"}, "triton": "interpreter"}
    run = run_record({"check": 0}) | {"commit": "a" * 40, "environment": here}
    own = json.loads((RESULTS / "cpu/check.json").read_text())
    own |= {"commit": "a" * 40, "environment": here}
    folder(tmp_path, run, check=own)
    assert judge(read_folder(tmp_path)).exit_code == 0
    own = json.loads((tmp_path / "check.json").read_text()) | changed
    (tmp_path / "check.json").write_text(json.dumps(own))
    found = read_folder(tmp_path)
    assert f"check.json is not of this run: it was {says}" in str(found.steps["check"].problem)
    verdict = judge(found)
    assert (verdict.exit_code, verdict.status) == (3, "inconclusive")
    assert "not of this run" in verdict.headline


@pytest.mark.parametrize(
    ("made_by", "of_the_run"),
    [
        ("verify-attn check --json X/check.json --resume",
         "verify-attn check --json /a/check.json"),
        ("verify-attn check k:v --json 'a b/check.json'",
         "verify-attn check k:v --json check.json"),
        ("verify-attn sweep --json [API key]-run/sweep.json --log [API key]/server.log",
         "verify-attn sweep --json key-run/sweep.json --log key/server.log"),
        ("verify-attn sweep --model [API key]-x", "verify-attn sweep --model key-x"),
    ],
)  # fmt: skip
def test_the_same_command_from_elsewhere_is_the_same(made_by: str, of_the_run: str) -> None:
    assert foreign({"command": made_by}, {}, of_the_run) is None
    assert foreign({"command": made_by + " --seed 1"}, {}, of_the_run) is not None
    hidden = {"command": made_by, "commit": "aa[API key]bb"}
    assert foreign(hidden, {"commit": "aa11bb"}, of_the_run) is None
    assert foreign(hidden, {"commit": "ba11bb"}, of_the_run) is not None


def test_a_run_that_failed_is_not_said_to_have_run_nothing(tmp_path: Path) -> None:
    folder(tmp_path, run_record({"check": 1}), check=RESULTS / "cpu/check.json")
    verdict = judge(read_folder(tmp_path))
    assert verdict.exit_code == 1
    assert verdict.headline == (
        "FAIL: check: run.json says that it failed with exit code 1, and check.json shows no "
        "failure"
    )


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("check", lambda r: r["cases"][1].pop("reason"), "in case 1, reason is absent"),
        ("bench", lambda r: r.update(environment={"bench": {"left_out": 5}}), "left_out is int"),
        ("bench", lambda r: r.update(environment={"bench": 5}), "bench is int"),
        ("run", lambda r: r["cases"][0]["metrics"].update(seconds=math.nan),
         "cases[0].metrics.seconds is nan"),
        ("run", lambda r: r.update(schema_version=True), "has schema_version True"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_named(
    tmp_path: Path, name: str, change: Callable[[Any], Any], says: str
) -> None:
    folder(tmp_path, run_record(), check=RESULTS / "cpu/check.json", bench=BENCH)
    record = json.loads((tmp_path / f"{name}.json").read_text())
    change(record)
    (tmp_path / f"{name}.json").write_text(json.dumps(record))
    found = read_folder(tmp_path)
    problem = found.run_problem if name == "run" else found.steps[name].problem
    assert says in str(problem)
    judge(found)
    if name == "run":
        with pytest.raises(FolderError) as raised:
            read_run(tmp_path)
        assert says in str(raised.value)


JUNK = (None, True, -1, 1e308, "", "<script>|`\x1b[31m\ud800", [], [[]], {}, {"a": []}, [None])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "file", [RESULTS / "cpu/check.json", DATA / "acceptance.json", DATA / "step-time-floors.json",
             RESULTS / "h200/check.json"],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_whatever_is_in_a_record_nothing_raises(tmp_path: Path, file: Path, seed: int) -> None:
    """One value of it replaced by something else: a problem of the step, or a verdict."""
    dice, record = random.Random(seed), json.loads(file.read_text())
    record["cases"] = record["cases"][:6]
    for _ in range(60):
        changed = json.loads(json.dumps(record))
        where, key = dice.choice(list(_places(changed)))
        where[key] = dice.choice(JUNK)
        for name in ("check", "sweep"):
            (tmp_path / f"{name}.json").write_text(json.dumps(changed))
        (tmp_path / "run.json").write_text(json.dumps(run_record()))
        found = read_folder(tmp_path)
        verdict = judge(found)
        assert len(lines(verdict, [], 80)) <= 20
        assert "<script>" not in summary(found, verdict)
        junit(found, verdict)


def _places(value: Any) -> Any:
    """Every (container, key) in it."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
