"""All records as one JUnit report: a testcase a case, its figures as properties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from verify_attn.report.folder import STEPS, Folder, Record
from verify_attn.report.verdict import Verdict

# What XML 1.0 has no place for, escaped or not.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# As under pytest: what is inconclusive is a failure to every reader of such files.
TAG = {"fail": "failure", "inconclusive": "failure", "error": "error", "skipped": "skipped"}
VERDICT = {"fail": "fail", "inconclusive": "inconclusive", "dead": "error", "interrupted": "error"}


def junit(folder: Folder, verdict: Verdict) -> bytes:
    """The document; the first suite is the verdict itself, so that nothing executed is no pass."""
    root = ElementTree.Element("testsuites")
    status = VERDICT.get(verdict.status, "pass")
    whole: Record = {
        "id": "verdict", "status": status, "reason": verdict.headline,
        "metrics": {"exit_code": verdict.exit_code},
    }  # fmt: skip
    _suite(root, "run", [whole], {"not tested": "\n".join(verdict.not_tested)})
    for step in STEPS:
        record = folder.steps[step].record
        about = {} if record is None else _about(record)
        cases = [*([] if record is None or step == "doctor" else record["cases"]),
                 *_step_itself(folder, step)]  # fmt: skip
        if cases:
            _suite(root, step, cases, about)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _step_itself(folder: Folder, step: str) -> Iterator[Record]:
    """Where a step has no record, or came to an end that no case of it tells."""
    case, known = folder.case(step), folder.steps[step]
    told = known.record is not None and any(
        c["status"] in ("fail", "error", "inconclusive") for c in known.record["cases"]
    )
    if case is not None and not told:
        if known.record is None and case["status"] == "pass":
            yield case | {"status": "inconclusive", "reason": known.problem}
        else:
            yield case
    elif case is None and known.record is None and known.problem and not folder.alone:
        yield {"id": step, "status": "skipped", "reason": known.problem, "metrics": {}}


def _about(record: Record) -> dict[str, str]:
    """What the suite ran on."""
    environment = record.get("environment", {})
    found = {"command": str(record.get("command", "")), "triton": str(environment.get("triton"))}
    gpus = environment.get("gpus")
    if isinstance(gpus, list):
        found["gpus"] = ", ".join(str(g.get("name")) for g in gpus if isinstance(g, dict)) or "none"
    server = record.get("server", {})
    return found | {name: str(server[name]) for name in ("url", "model") if name in server}


def _suite(
    root: ElementTree.Element, step: str, cases: list[Record], about: dict[str, str]
) -> None:
    tags = [TAG.get(case["status"]) for case in cases]
    counts = {
        "tests": len(cases), "failures": tags.count("failure"), "errors": tags.count("error"),
        "skipped": tags.count("skipped"),
    }  # fmt: skip
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": f"verify-attn {step}", **{k: str(n) for k, n in counts.items()}}
    )
    _properties(suite, about)
    for case, tag in zip(cases, tags, strict=True):
        _testcase(suite, step, case, tag)


def _testcase(suite: ElementTree.Element, step: str, case: Record, tag: str | None) -> None:
    seconds = case["metrics"].get("seconds")
    time = {"time": f"{seconds:.3f}"} if isinstance(seconds, int | float) else {}
    found = ElementTree.SubElement(
        suite, "testcase", {"classname": f"verify-attn.{step}", "name": _xml(case["id"]), **time}
    )
    _properties(found, _figures(case["metrics"]))
    reason = _xml(str(case["reason"] or ""))
    if tag is not None:
        first = reason.split("\n", 1)[0]
        end = ElementTree.SubElement(found, tag, {"message": first, "type": case["status"]})
        end.text = reason
    elif reason:
        ElementTree.SubElement(found, "system-out").text = reason


def _figures(metrics: Record) -> dict[str, str]:
    """The single values among the metrics."""
    return {
        str(name): format(value, ".6g") if isinstance(value, float) else str(value)
        for name, value in metrics.items()
        if isinstance(value, int | float | str)
    }


def _properties(parent: ElementTree.Element, values: dict[str, str]) -> None:
    if not values:
        return
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})


def _xml(text: str) -> str:
    return _NO_XML.sub(lambda bad: bad[0].encode("unicode_escape").decode(), text)
