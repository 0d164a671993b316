"""The pytest front of the sweep: run inside pytest, against the truth server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

# In the modules that pytester keeps: numpy cannot be imported a second time in one process.
import verify_attn.live.server_test  # noqa: F401
from tests.live.truth import Decode, Fault, Scenario, Tokenizer, TruthServer

SUITE = ("--pyargs", "verify_attn.live.suite", "-p", "no:cacheprovider", "-p", "no:xdist")
SHORT = ("--verify-attn-contexts", "1000,4000", "--verify-attn-max-tokens", "120")
FAST = Decode(step_s=0.002, committed=4.0, drafts=7)


def floors(tmp_path: Path, *points: tuple[int, float]) -> Path:
    path = tmp_path / "floors.toml"
    path.write_text(
        f'schema_version = 1\n[[floor]]\nname = "mine"\npoints = {[list(p) for p in points]}\n'
    )
    return path


def test_a_test_a_point_and_the_diagnosis_in_the_message(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    slow = Decode(step_s=0.002, per_context_token_s=2e-6, committed=4.0, drafts=7)
    path, record = floors(tmp_path, (1000, 1.0), (4000, 100_000.0)), tmp_path / "record.json"
    with TruthServer(Scenario(decode=slow), pin=False) as server:
        result = pytester.runpytest_subprocess(
            *SUITE, "--verify-attn-server", server.url, *SHORT, "-v",
            "--verify-attn-floors", str(path), "--verify-attn-record", str(record),
        )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert re.search(r"\[ctx=1000\] PASSED", text)
    assert re.search(r"ctx=4000: fail: mine: sustained [\d.e+]+ tok/s, (at most|floor 1e)", text)
    assert "cause: step-time-linear-in-context" in text
    assert ", step time " in text
    kept = json.loads(record.read_text())
    assert [case["status"] for case in kept["cases"]] == ["pass", "fail"]
    assert kept["command"].startswith("pytest ")


def test_death_overflow_and_no_server(pytester: pytest.Pytester) -> None:
    scenario = Scenario(
        decode=FAST, fault=Fault(die_above=2000, die_after=20),
        tokenizer=Tokenizer(context_limit=100_000),
    )  # fmt: skip
    with TruthServer(scenario, pin=False) as server:
        result = pytester.runpytest_subprocess(
            *SUITE, "--verify-attn-server", server.url, *SHORT[:1], "1000,4000,8000,900000",
            *SHORT[2:], "-rs",
        )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1, skipped=2)
    text = result.stdout.str()
    assert "the server died at ctx=4000" in text
    result = pytester.runpytest_inprocess(
        *SUITE, "--verify-attn-server", "http://127.0.0.1:1", *SHORT
    )
    result.assert_outcomes(failed=2)
    assert "no answer from http://127.0.0.1:1" in result.stdout.str()


def test_without_a_server_it_is_skipped_and_with_workers_refused(
    pytester: pytest.Pytester,
) -> None:
    result = pytester.runpytest_inprocess(*SUITE, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no live server was named: give --verify-attn-server URL*"])
    result = pytester.runpytest_subprocess(
        *SUITE[:-2], "-n", "2", "--verify-attn-server", "http://127.0.0.1:1"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*measures one point at a time*"])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--verify-attn-contexts", "1k,many", "'many' is no size"),
        ("--verify-attn-server", "ftp://x", "is no server's URL"),
        ("--verify-attn-floors", "/nowhere.toml", "floors file /nowhere.toml"),
        ("--verify-attn-geometry", "tiny", "--geometry and --gpu go together"),
    ],
)
def test_bad_input_is_said(
    pytester: pytest.Pytester, option: str, value: str, message: str
) -> None:
    given = ["--verify-attn-server", "http://127.0.0.1:1", option, value]
    result = pytester.runpytest_inprocess(*SUITE, *given)
    assert result.ret != 0
    assert message in result.stdout.str() + result.stderr.str()
