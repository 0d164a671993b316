"""JUnit: a testcase a case, figures as properties, and XML whatever a server said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.report.folders import RESULTS, folder, run_record, swept
from verify_attn.report.folder import read_folder
from verify_attn.report.junit import junit
from verify_attn.report.verdict import judge

CHECK = RESULTS / "cpu/check.json"


def written(path: Path, run: dict[str, Any] | None = None, **records: Any) -> ElementTree.Element:
    found = read_folder(folder(path, run or run_record(), **records))
    return ElementTree.fromstring(junit(found, judge(found)))


def case(root: ElementTree.Element, classname: str, name: str) -> ElementTree.Element:
    [found] = root.findall(f".//testcase[@classname='verify-attn.{classname}'][@name='{name}']")
    return found


def properties(element: ElementTree.Element) -> dict[str, str]:
    return {
        p.attrib["name"]: p.attrib["value"] for p in element.findall("./properties/property")
    }  # fmt: skip


def test_every_case_with_its_figures(tmp_path: Path) -> None:
    root = written(tmp_path, check=CHECK, sweep=swept("healthy"))
    suites = {suite.attrib["name"]: suite.attrib for suite in root}
    # 54 cases and the step itself
    assert suites["verify-attn check"] == {
        "name": "verify-attn check", "tests": "55", "failures": "0", "errors": "0", "skipped": "5",
    }  # fmt: skip
    assert suites["verify-attn bench"]["skipped"] == "1"
    figures = properties(case(root, "sweep", "ctx=512"))
    assert figures["decode_tok_s"] == "129.591"
    assert figures["prompt_tokens"] == "512"
    assert case(root, "check", "torch/capture").find("skipped") is not None
    assert case(root, "check", "check").attrib["time"] == "2.500"
    assert case(root, "run", "verdict").find("failure") is None
    for suite in root:
        for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert len(suite.findall(f"./testcase/{tag}")) == int(suite.attrib[count])


def test_a_failed_floor_fails_its_case_and_the_verdict(tmp_path: Path) -> None:
    run = run_record({"check": 0, "sweep": 1})
    root = written(tmp_path, run, check=CHECK, sweep=swept("step-time-floors"))
    failure = case(root, "sweep", "ctx=8k").find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "fail"
    assert failure.attrib["message"].startswith("no collapse: sustained 12.63 tok/s")
    verdict = case(root, "run", "verdict").find("failure")
    assert verdict is not None
    assert "step-time-linear-in-context" in str(verdict.text)


def test_what_is_inconclusive_or_dead_is_no_pass(tmp_path: Path) -> None:
    root = written(tmp_path, run_record({"sweep": 3}), sweep=swept("stall"))
    assert case(root, "sweep", "ctx=256").find("failure") is not None
    root = written(tmp_path, run_record({"sweep": 4}), sweep=swept("out-of-memory"))
    assert case(root, "sweep", "ctx=8k").find("error") is not None
    assert case(root, "run", "verdict").find("error") is not None


def test_a_step_without_a_record(tmp_path: Path) -> None:
    run = run_record({"check": 0, "bench": -11, "sweep": 4})
    run["cases"][1]["reason"] = "it ended with signal 11"
    run["cases"][2]["reason"] = "no answer from http://x"
    root = written(tmp_path, run, check=CHECK)
    for step, reason in (
        ("bench", "it ended with signal 11"),
        ("sweep", "no answer from http://x"),
    ):
        error = case(root, step, step).find("error")
        assert error is not None
        assert error.text == reason
    assert case(root, "doctor", "doctor").find("skipped") is not None


def test_nothing_executed_is_no_pass(tmp_path: Path) -> None:
    root = written(tmp_path, run_record({"check": None, "sweep": None}))
    assert case(root, "run", "verdict").find("failure") is not None


def test_text_of_others_is_xml_1_0(tmp_path: Path) -> None:
    bad = "\x00\x1b[31m\x0b\ud800\ufffe </testcase> ]]> & \U0001f4a5 ok"
    record = json.loads(swept("stall").read_text())
    record["cases"][0] |= {"id": bad, "reason": bad, "status": "error"}
    record["cases"][0]["metrics"] |= {bad: bad}
    root = written(tmp_path, run_record({"sweep": 1}), sweep=record)
    shown = "\\x00\\x1b[31m\\x0b\\ud800\\ufffe </testcase> ]]> & \U0001f4a5 ok"
    [found] = [c for c in root.iter("testcase") if c.attrib["name"] == shown]
    error = found.find("error")
    assert error is not None
    assert error.text == shown
    assert properties(found)[shown] == shown
