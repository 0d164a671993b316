"""One verdict out of all records: what is wrong, what was not tested, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verify_attn.record import (
    BAD_USAGE,
    FAILED,
    INCONCLUSIVE,
    INTERRUPTED,
    PASSED,
    SERVER_DEAD,
    exit_code,
)
from verify_attn.report.folder import Folder, Record, record_name
from verify_attn.report.passed import passed_text
from verify_attn.report.reasons import Reason, bench_reasons, check_reasons, sweep_reasons
from verify_attn.report.untested import not_tested

__all__ = ["Reason", "Verdict", "judge"]

ORDER = (INTERRUPTED, BAD_USAGE, SERVER_DEAD, FAILED, INCONCLUSIVE, PASSED)
STATUS = {
    INTERRUPTED: "interrupted", BAD_USAGE: "inconclusive", SERVER_DEAD: "dead", FAILED: "fail",
    INCONCLUSIVE: "inconclusive", PASSED: "pass",
}  # fmt: skip
JUDGED: dict[str, Callable[[Record], list[Reason]]] = {
    "doctor": lambda record: [], "check": check_reasons, "bench": bench_reasons,
    "sweep": sweep_reasons,
}  # fmt: skip
HEADLINE = 300  # characters; the reasons have the whole text


@dataclass(frozen=True)
class Verdict:
    """``status``: pass, fail, inconclusive, dead or interrupted.  ``headline``: one line.
    ``reasons``: the most important first."""

    status: str
    headline: str
    reasons: tuple[Reason, ...]
    not_tested: tuple[str, ...]
    exit_code: int


def judge(folder: Folder) -> Verdict:
    """The verdict; the first exit code that applies, in the order of the commands' contract."""
    codes, reasons = {}, []
    for step in JUDGED:
        codes[step] = _code(folder, step)
        reasons += [(_rank(reason, codes[step]), reason) for reason in _reasons(folder, step)]
    if folder.run_lost:  # what it would tell of a step that crashed or was cut off is not known
        reasons.append((2, Reason("run", "inconclusive", f"run: {folder.run_problem}")))
    ordered = tuple(reason for _, reason in sorted(reasons, key=lambda item: item[0]))
    found = {code for code in codes.values() if code is not None}
    if _cut_off(folder):
        found.add(INTERRUPTED)
    if folder.run_lost:
        found.add(INCONCLUSIVE)
    code = next((c for c in ORDER if c in found), INCONCLUSIVE)
    status = STATUS[code]
    if code == BAD_USAGE and any(r.status == "fail" for r in ordered):
        status = "fail"
    headline = _headline(folder, status, ordered, codes)
    return Verdict(status, headline, ordered, tuple(not_tested(folder)), code)


def _code(folder: Folder, step: str) -> int | None:
    """The exit code of a step; None where it was not taken.  Where the run and the step's record
    do not say the same, the worse: the record may have been written again since."""
    record, told = folder.steps[step].record, _told(folder, step)
    if told not in (None, PASSED, INCONCLUSIVE):
        return told
    seen = None if record is None or step == "doctor" else _code_of(record)
    if told is None and seen == PASSED and folder.case(step) is not None:
        return None  # a record that this run did not make is no pass of it
    return next((code for code in ORDER if code in (told, seen)), None)


def _told(folder: Folder, step: str) -> int | None:
    """As the run tells, or the folder where there is no run record."""
    case, record = folder.case(step), folder.steps[step].record
    if case is not None:
        if case["status"] == "skipped":
            return None
        code = case.get("exit_code")
        if code is None:
            return INTERRUPTED
        if step == "doctor" and code == PASSED:
            return None  # what it found is no test that was passed
        if record is None and code == PASSED:
            return INCONCLUSIVE  # what passed cannot be seen any more
        return code if code in ORDER else FAILED
    if step == "doctor" or record is not None:
        return None
    lost = folder.run is None and not folder.alone and not _missing(folder, step)
    return INCONCLUSIVE if lost else None


def _missing(folder: Folder, step: str) -> bool:
    return str(folder.steps[step].problem).endswith("is missing")


def _code_of(record: Record) -> int:
    """As the command that wrote it ended, by what it holds."""
    server = record.get("server", {})
    early = record.get("stopped_early")
    if record.get("interrupted") is True or early == "KeyboardInterrupt":
        return INTERRUPTED
    if early is not None:  # a kernel that cannot be run, a record that cannot be written
        return BAD_USAGE
    return SERVER_DEAD if server.get("died_at") else exit_code(record["cases"])


def _cut_off(folder: Folder) -> bool:
    """Was the run stopped before its end, by Ctrl-C or by anything that left it no time?"""
    run = folder.run
    return run is not None and (run.get("interrupted") is True or run.get("finished") is not True)


def _reasons(folder: Folder, step: str) -> list[Reason]:
    """Of one step: of its record, and of the step itself where that has no whole record."""
    case, record = folder.case(step), folder.steps[step].record
    lost = record is None and not folder.alone and not (case is None and _missing(folder, step))
    lost = lost and step != "doctor"
    if record is not None:
        found = JUDGED[step](record)
    elif lost and (case is None or case["status"] in ("pass", "fail")):
        return [Reason(step, "inconclusive", f"{step}: {folder.steps[step].problem}")]
    else:
        found = []
    told = any(reason.status != "pass" for reason in found) or (
        case is not None and case.get("exit_code") == INTERRUPTED  # the headline says it
    )
    if case is not None and case["status"] in ("error", "inconclusive") and not told:
        found.append(Reason(step, case["status"], f"{step}: {case['reason']}"))
    elif case is not None and case["status"] == "fail" and not told:
        found.append(Reason(step, "fail", f"{step}: {case['reason'] or _unseen(step, case)}"))
    return found


def _unseen(step: str, case: Record) -> str:
    return (
        f"run.json says that it failed with exit code {case.get('exit_code')}, and "
        f"{record_name(step)} shows no failure"
    )


def _rank(reason: Reason, code: int | None) -> int:
    """Bad input, death, failures, doubts, remarks; within one the steps' order stays."""
    if code in (BAD_USAGE, SERVER_DEAD) and reason.status == "error":
        return 0
    return {"fail": 1, "error": 1, "inconclusive": 2}.get(reason.status, 3)


def _headline(
    folder: Folder, status: str, reasons: tuple[Reason, ...], codes: dict[str, int | None]
) -> str:
    serious = [r for r in reasons if r.status != "pass"]
    if status == "interrupted":
        told = f"INTERRUPTED {_where(folder, codes)}"
        told += f"; so far: {serious[0].text}" if serious else ""
    elif serious:
        told = f"{status.upper()}: {serious[0].text}"
    elif status == "pass":
        told = f"PASS: {passed_text(folder)}"
    else:
        empty = [step for step, code in codes.items() if code == INCONCLUSIVE]
        rest = passed_text(folder)
        told = f"{status.upper()}: nothing was executed"
        if empty and rest:
            told = f"{status.upper()}: {', '.join(empty)}: nothing was executed; {rest}"
    told = " ".join(told.split())
    return told if len(told) <= HEADLINE else f"{told[: HEADLINE - 1]}…"


def _where(folder: Folder, codes: dict[str, int | None]) -> str:
    for step, code in codes.items():
        if code == INTERRUPTED:
            case = folder.case(step)
            said = "" if case is None or not case["reason"] else f": {case['reason']}"
            return f"in {step}{said}"
    done = [step for step in codes if folder.case(step) is not None]
    return f"after {done[-1]}" if done else "before the first step ended"
