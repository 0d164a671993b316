"""One verdict out of records: its exit code, its headline, what was not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.folders import BENCH, RESULTS, folder, run_record, step, swept
from verify_attn.live.causes import CAUSES as NAMED
from verify_attn.report import reasons
from verify_attn.report.folder import read_folder
from verify_attn.report.text import lines
from verify_attn.report.verdict import Verdict, judge

CHECK = RESULTS / "cpu/check.json"


def judged(
    path: Path, run: dict[str, Any] | None = None, **records: Path | dict[str, Any]
) -> Verdict:
    return judge(read_folder(folder(path, run or run_record(), **records)))


def failed_check(kind: str | None = None, text: str | None = None) -> dict[str, Any]:
    """A record of a kernel with one wrong check among right ones."""
    record = json.loads(CHECK.read_text())
    text = text or (
        "oracle: out differs from float64\noff:    3 of 12 elements of out (25.0%), the worst by 9 "
        "times its bound\nlikely: sibling leak: sees its siblings too\n        token positions: 2"
    )
    failure = {"text": text, "case": {"requests": [[0, "star:3"]]}}
    record["cases"] = record["cases"][:5]
    record["cases"][0] |= {
        "id": "mine:k/oracle", "parameters": {"kernel": "mine:k", "check": "oracle"},
        "status": "fail", "reason": text,
        "failures": [
            failure | ({"kind": kind} if kind else {}),
            {"text": "another worker's case", "case": {"requests": [[0, "chain:1"]]}},
        ],
    }  # fmt: skip
    return record


# -- each fault of `serve --inject` --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "code", "headline"),
    [
        ("step-time", 3, "INCONCLUSIVE: decode falls from 68.2 to 10.6 tok/s at 8,192 tokens: "
         "step-time-linear-in-context (low confidence); no floor says whether that is allowed"),
        ("step-time-floors", 1, "FAIL: decode falls from 85.5 to 12.6 tok/s at 8,192 tokens: "
         "step-time-linear-in-context (low confidence); no collapse: sustained 12.63 tok/s, at "
         "most 13.35; floor 62.24 (0.728 of shortest context)"),
        ("out-of-memory", 4, "DEAD: the server died at ctx=8k before the first token: HTTP 500: "
         "the engine died: InjectedOutOfMemoryError: out of memory at 8192 tokens of context "
         "(injected at 6000); decode 141.0 tok/s at 256 tokens before"),
        ("die-in-prefill", 4, "DEAD: the server died at ctx=4k before the first token: Server "
         "disconnected without sending a response; decode 49.4 tok/s at 256 tokens before"),
        ("stall", 3, "INCONCLUSIVE: decode 33.3 tok/s at 256 tokens; stall: 3.08 s between steps "
         "16 and 17, 183 times usual; no floor says whether that is allowed"),
        ("acceptance", 3, "INCONCLUSIVE: decode 49.1 tok/s at 512 tokens; acceptance-falls: "
         "committed tokens a step fall from 4.39 to 1.00 within the answer, the largest change at "
         "token 308 (5.89 to 1.00); also step-time-grows; no floor says whether that is allowed"),
        ("healthy", 0, "PASS: torch, triton-unsplit, triton-split right in 3,296 checks "
         "without a GPU; decode 129.6 to 152.8 tok/s from 256 to 512 tokens of context, held to no "
         "floor"),
    ],
)  # fmt: skip
def test_the_headline_names_the_fault(tmp_path: Path, fault: str, code: int, headline: str) -> None:
    run = run_record({"doctor": 0, "check": 0, "bench": None, "sweep": code})
    verdict = judged(tmp_path, run, check=CHECK, sweep=swept(fault))
    assert (verdict.headline, verdict.exit_code) == (headline, code)
    alone = judge(read_folder(swept(fault)))  # without run.json the record itself says it
    assert alone.exit_code == code
    assert alone.reasons == verdict.reasons


def test_the_deployments_collapse() -> None:
    verdict = judge(read_folder(RESULTS / "h200/collapse.json"))
    assert verdict.headline.startswith(
        "INCONCLUSIVE: decode falls from 112.7 to 1.8 tok/s at 184,679 tokens: "
        "step-time-linear-in-context"
    )
    assert not any(line.startswith("no GPU") for line in verdict.not_tested)


def test_the_worst_point_comes_first_and_is_one_of_its_own_sweep() -> None:
    found = judge(read_folder(RESULTS / "h200/collapse.json")).reasons
    assert [r.case for r in found][:2] == ["triton-unsplit,ctx=184728", "triton-unsplit,ctx=127802"]
    true = next(r for r in found if r.case == "true,triton-unsplit,ctx=11402")
    assert "from 37.1 to 8.9" in true.text  # not from another kernel's or run's shortest


def test_every_cause_has_a_place() -> None:
    assert set(reasons.CAUSES) | {"context-overflow"} == set(NAMED)
    assert set(reasons.SLOWS) <= set(reasons.CAUSES)


# -- kernels -------------------------------------------------------------------------------------


def test_a_wrong_kernel_is_explained(tmp_path: Path) -> None:
    run = run_record({"doctor": 0, "check": 1, "bench": None, "sweep": 3})
    verdict = judged(tmp_path, run, check=failed_check(), sweep=swept("stall"))
    assert verdict.exit_code == 1
    assert verdict.headline == (
        "FAIL: mine:k is wrong: oracle: out differs from float64; off: 3 of 12 elements of out "
        "(25.0%), the worst by 9 times its bound; likely: sibling leak: sees its siblings too"
    )
    assert [(r.step, r.status, r.case) for r in verdict.reasons] == [
        ("check", "fail", "mine:k/oracle"), ("sweep", "inconclusive", "ctx=256"),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), [("hang", "hangs"), ("crash", "crashes")])
def test_a_kernel_that_hangs_or_crashes(tmp_path: Path, kind: str, word: str) -> None:
    record = failed_check(kind, f"oracle: the kernel's process {kind}\ncase:   {{}}")
    verdict = judged(tmp_path, run_record(DONE | {"check": 1}), check=record)
    assert verdict.headline.startswith(f"FAIL: mine:k {word}: oracle: the kernel's process")


@pytest.mark.parametrize(
    ("trace", "told"),
    [('  File "k.py", line 2, in k\n    raise ValueError(7)\nValueError: 7\ncase:   {}',
      "FAIL: mine:k is wrong: oracle: the kernel raised ValueError: 7"),
     ("case:   {}", "FAIL: mine:k is wrong: oracle: the kernel raised")],
)  # fmt: skip
def test_a_kernel_that_raises_says_what(tmp_path: Path, trace: str, told: str) -> None:
    record = failed_check(None, f"oracle: the kernel raised\n{trace}")
    assert judged(tmp_path, run_record(DONE | {"check": 1}), check=record).headline == told


DONE: dict[str, int | None] = {"doctor": 0, "check": 0, "bench": None, "sweep": None}


# -- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "code", "status"),
    [
        ((0, None, 0), 0, "pass"), ((0, 0, 3), 3, "inconclusive"), ((1, 0, 3), 1, "fail"),
        ((1, 0, 4), 4, "dead"), ((1, 0, 2), 2, "fail"), ((3, None, 2), 2, "inconclusive"),
        ((1, 0, 130), 130, "interrupted"), ((0, None, -11), 1, "fail"),
        ((None, None, None), 3, "inconclusive"),
    ],
)  # fmt: skip
def test_the_first_code_that_applies(
    tmp_path: Path, codes: tuple[int | None, ...], code: int, status: str
) -> None:
    run = run_record(dict(zip(("check", "bench", "sweep"), codes, strict=True)))
    for case in run["cases"]:
        case["reason"] = case["reason"] or "it says why"
    check = failed_check() if codes[0] == 1 else CHECK
    verdict = judged(tmp_path, run, check=check, bench=BENCH, sweep=swept("healthy"))
    assert (verdict.exit_code, verdict.status) == (code, status)
    assert verdict.headline.startswith(f"{status.upper()}")


def test_a_record_that_is_worse_than_the_run_says(tmp_path: Path) -> None:
    """Its steps' records can be made again, one by one: no failure hides behind an earlier pass."""
    verdict = judged(tmp_path, check=failed_check(), sweep=swept("healthy"))
    assert (verdict.exit_code, verdict.status) == (1, "fail")
    assert verdict.headline.startswith("FAIL: mine:k is wrong: oracle")
    verdict = judged(tmp_path, check=CHECK, sweep=swept("die-in-prefill"))
    assert (verdict.exit_code, verdict.status) == (4, "dead")


def test_a_better_record_takes_no_failure_back(tmp_path: Path) -> None:
    run = run_record(DONE | {"check": 1, "sweep": None})
    verdict = judged(tmp_path, run, check=CHECK, sweep=swept("healthy"))
    assert (verdict.exit_code, verdict.status) == (1, "fail")
    # What the run did not do is no pass of it, whoever put the record there.
    run = run_record(dict.fromkeys(DONE))
    verdict = judged(tmp_path, run, check=CHECK, sweep=swept("healthy"))
    assert (verdict.exit_code, verdict.status) == (3, "inconclusive")


def test_of_two_records_one_has_executed_nothing(tmp_path: Path) -> None:
    check = json.loads(CHECK.read_text())
    for case in check["cases"]:
        case |= {"status": "skipped", "reason": "no case was drawn"}
    (tmp_path / "check.json").write_text(json.dumps(check))
    (tmp_path / "sweep.json").write_bytes(swept("healthy").read_bytes())
    verdict = judge(read_folder(tmp_path))
    assert verdict.exit_code == 3
    assert verdict.headline.startswith(
        "INCONCLUSIVE: check: nothing was executed; decode 129.6 to 152.8 tok/s"
    )


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    run = run_record({"check": 0, "sweep": 4})
    run["cases"][1]["reason"] = "no answer from http://localhost:1: connection refused"
    verdict = judged(tmp_path, run, check=CHECK)
    assert verdict.exit_code == 4
    assert verdict.headline == (
        "DEAD: sweep: no answer from http://localhost:1: connection refused"
    )


def test_interrupted_says_where_and_what_was_found(tmp_path: Path) -> None:
    run = run_record({"doctor": 0, "check": 1, "sweep": 130}, finished=False)
    run["cases"][2]["reason"] = "interrupted after 12 s"
    verdict = judged(tmp_path, run, check=failed_check())
    assert (verdict.exit_code, verdict.status) == (130, "interrupted")
    assert verdict.headline.startswith(
        "INTERRUPTED in sweep: interrupted after 12 s; so far: mine:k is wrong: oracle"
    )
    assert "sweep: sweep.json is missing" in verdict.not_tested
    assert "bench: not begun" in verdict.not_tested


def test_a_run_that_was_killed_is_no_pass(tmp_path: Path) -> None:
    run = run_record({"doctor": 0, "check": 0}, finished=False, interrupted=False)
    verdict = judged(tmp_path, run, check=CHECK)
    assert (verdict.exit_code, verdict.headline) == (130, "INTERRUPTED after check")


def test_a_check_that_was_stopped(tmp_path: Path) -> None:
    record = json.loads(CHECK.read_text()) | {"stopped_early": "KeyboardInterrupt"}
    record["progress"]["torch"]["examples"] = 17
    (tmp_path / "check.json").write_text(json.dumps(record))
    verdict = judge(read_folder(tmp_path / "check.json"))
    assert verdict.exit_code == 130
    assert "check: torch ran 17 of 500 cases" in verdict.not_tested


# -- not tested ----------------------------------------------------------------------------------


def test_a_kernel_that_was_not_tested_at_all_is_named_first(tmp_path: Path) -> None:
    record = json.loads(CHECK.read_text())
    reasons = ("no case was drawn", "no case was drawn", "needs a GPU, the batch is on cpu")
    for number, reason in enumerate(reasons):
        record["cases"].append(
            {
                "id": f"sm120/check-{number}", "parameters": {"kernel": "sm120"}, "metrics": {},
                "status": "skipped", "reason": reason,
            }
        )  # fmt: skip
    verdict = judged(tmp_path, run_record(), check=record, sweep=swept("die-in-prefill"))
    told = [line for line in verdict.not_tested if "sm120" in line]
    assert told == ["check: sm120 was not tested at all: needs a GPU, the batch is on cpu"]
    assert verdict.not_tested.index(told[0]) < verdict.not_tested.index(
        "check: torch/capture: does not declare capture"
    )


def test_what_was_not_tested(tmp_path: Path) -> None:
    run = run_record()
    run["cases"][-1] = step("sweep", 0, notes=("no --url: the package's own small model",))
    verdict = judged(tmp_path, run, check=CHECK, sweep=swept("die-in-prefill"))
    assert verdict.not_tested[:3] == (
        "no GPU: no kernel was timed; kernels ran on the CPU, Triton's in its interpreter: "
        "arithmetic was tested, not the GPU",
        "doctor: doctor.json is missing",
        "sweep: no --url: the package's own small model",
    )
    assert "check: torch/capture: does not declare capture" in verdict.not_tested
    assert "sweep: no floor was given: decode rates were held to no limit" in verdict.not_tested
    assert "sweep: ctx=6k: the server died at ctx=4k" in verdict.not_tested


def test_a_floor_that_allows_a_cause_is_told(tmp_path: Path) -> None:
    record = json.loads(swept("step-time-floors").read_text())
    for case in record["cases"]:
        case["status"] = "pass"
    verdict = judged(tmp_path, check=CHECK, sweep=record)
    assert verdict.exit_code == 0
    [remark] = verdict.reasons
    assert (remark.status, remark.text[:28]) == ("pass", "step-time-linear-in-context ")


# -- twenty lines --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 80, None])
def test_at_most_twenty_lines(width: int | None) -> None:
    many = tuple(reasons.Reason("check", "fail", f"kernel {i}\nis wrong " * 30) for i in range(40))
    verdict = Verdict("fail", "FAIL: " + "word " * 58, many, ("no\x1b[31m GPU",) * 30, 1)
    told = lines(verdict, ["report: x", "records: y"], width)
    assert len(told) <= 20
    assert told[-2:] == ["report: x", "records: y"]
    few = width is not None
    assert f"  and {37 if few else 33} more reasons" in told
    assert f"and {28 if few else 25} more things were not tested" in told
    assert all(line.isprintable() for line in told)
    if width is not None:
        assert max(map(len, told[:-4])) <= max(width, len("and 25 more that was not tested"))


def test_the_headline_is_not_said_twice(tmp_path: Path) -> None:
    verdict = judged(tmp_path, check=CHECK, sweep=swept("stall"))
    assert sum("183 times usual" in line for line in lines(verdict, [], None)) == 1
