"""Log lines by their keys, and a tail that survives what happens to logs."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance import Acceptance, LogTail, read_lines
from verify_attn.live.acceptance.logs import DecodeLine, PrefillLine, VllmLine, parse_line

OLD = (
    "[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 108, token usage: 0.00, "
    "accept len: 2.17, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 0.39, "
    "#queue-req: 0, "
)
NEW = (
    "[2026-09-01 08:00:00] Decode batch [812], #running-req: 2, #full token: 300, full token "
    "usage: 0.01, mamba usage: 0.20, accept len: 3.25, accept rate: 0.32, cpu graph: False, "
    "gen throughput (token/s): 118.60, #queue-req: 3, est. decode TFLOPS/s: 4.1"
)
PREFILL = (
    "[2025-10-22 10:27:40 TP0] Prefill batch. #new-seq: 1, #new-token: 28, #cached-token: {}, "
    "token usage: 0.00, #running-req: {}, #queue-req: 0, "
)
VLLM = (
    "INFO 11-30 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {}, Accepted "
    "throughput: 9.80 tokens/s, Drafted throughput: 21.20 tokens/s, Accepted: {} tokens, "
    "Drafted: {} tokens, Per-position acceptance rate: 0.667, 0.533, Avg Draft acceptance "
    "rate: 46.2%"
)


def test_sglang_decode_line_of_2025() -> None:
    assert parse_line(OLD) == DecodeLine(1, 2.17, 0.39, 0, True)


def test_sglang_decode_line_of_2026() -> None:
    assert parse_line(NEW) == DecodeLine(2, 3.25, 118.6, 3, False)


def test_sglang_prefill_line() -> None:
    assert parse_line(PREFILL.format(7, 0)) == PrefillLine(28, 7, 0, 0)


def test_vllm_line() -> None:
    assert parse_line(VLLM.format("2.63", 98, 212)) == VllmLine(2.63, 98, 212)
    assert parse_line(VLLM.format("nan", 0, 0)) == VllmLine(None, 0, 0)


def test_a_line_without_speculation() -> None:
    line = OLD.replace("accept len: 2.17, accept rate: 0.54, ", "")
    assert parse_line(line) == DecodeLine(1, None, 0.39, 0, True)
    assert parse_line("INFO: GET /health 200") is None


def test_sglang_11948_first_line_after_idle_is_dropped() -> None:
    later = OLD.replace("2.17", "4.00")
    found = read_lines([PREFILL.format(0, 0), OLD, later, later.replace("4.00", "3.00")])
    assert isinstance(found.acceptance, Acceptance)
    assert found.acceptance.mean_committed == pytest.approx(3.5)
    assert found.acceptance.steps is None
    assert any("1 decode line(s) dropped" in note for note in found.notes)
    assert isinstance(read_lines([OLD]).acceptance, Absent)


def test_idle_in_between_drops_again() -> None:
    later = OLD.replace("2.17", "4.00")
    found = read_lines([OLD, later, PREFILL.format(0, 0), OLD, later])
    assert len(found.decode) == 2


def test_running_requests_of_others() -> None:
    assert read_lines([OLD, OLD]).foreign is None
    assert read_lines([OLD, NEW]).foreign == (
        "the log shows 2 running requests; at most 1 were ours"
    )
    assert read_lines([OLD, NEW], own_running=2).foreign is None


def test_cached_tokens_of_prefill_chunks() -> None:
    assert read_lines([PREFILL.format(7, 0), PREFILL.format(5, 0)]).cached_tokens == 12
    assert isinstance(read_lines([]).cached_tokens, Absent)


def test_vllm_lines_are_weighted_by_drafted_tokens() -> None:
    lines = [VLLM.format("3.00", 200, 300), VLLM.format("2.00", 33, 100), VLLM.format("nan", 0, 0)]
    found = read_lines(lines).acceptance
    assert isinstance(found, Acceptance)
    assert found.mean_committed == pytest.approx(2.75)
    assert (found.accepted_drafts, found.proposed_drafts) == (233, 400)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("DFLASH verify completed. accept_length_per_req=[5]", "bonus excluded"),
        ("DFLASH verify completed. num_correct_drafts_per_req=[5, 6]", "bonus excluded"),
        ("DDTREE verify completed. num_correct_drafts_per_req=[5]", "bonus excluded"),
        ("DFLASH_DDTREE verify completed. commit_lens=[6]", "bonus included"),
    ],
)
def test_once_only_lines_are_notes_and_no_metric(line: str, meaning: str) -> None:
    found = read_lines([line, line])
    assert isinstance(found.acceptance, Absent)
    (note,) = found.notes
    assert meaning in note
    assert "no metric" in note


@pytest.mark.parametrize("value", ["1.2.3", "inf", "-inf", "-2", "9" * 400, "1e999", "x"])
def test_junk_in_a_line_is_no_figure(value: str) -> None:
    found = parse_line(OLD.replace("2.17", value).replace("0.39", value))
    assert isinstance(found, DecodeLine)
    assert found.mean_committed is None
    assert found.tokens_per_s is None


def _tail(path: Path) -> LogTail:
    found = LogTail.open(str(path))
    assert isinstance(found, LogTail), found
    return found


def test_lines_since_a_mark(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before 1\nbefore 2\n")
    with _tail(log) as tail, log.open("a") as out:
        assert tail.since_mark() == []
        assert tail.last() == ["before 1", "before 2"]
        out.write("one\r\ntwo\nhal")
        out.flush()
        assert tail.since_mark() == ["one", "two"]
        assert tail.last(2) == ["two", "hal"]
        out.write("f\n")
        out.flush()
        assert tail.since_mark() == ["one", "two", "half"]
        tail.mark()
        assert tail.since_mark() == []
        assert tail.last(0) == []
        assert tail.notes == []


def test_bad_bytes_are_shown_and_not_raised(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    with _tail(log) as tail:
        log.write_bytes(b"a\xff\xfe\x00b\n\xe2\x82")
        assert tail.since_mark() == ["a\ufffd\ufffd\x00b"]
        assert tail.last() == ["a\ufffd\ufffd\x00b", "\ufffd"]


def test_rotation_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("0\n")
    with _tail(log) as tail:
        with log.open("a") as out:
            out.write("1\n")
        log.rename(tmp_path / "log.1")
        assert tail.since_mark() == ["1"]
        with (tmp_path / "log.1").open("a") as out:
            out.write("2\n")
        log.write_text("3\n")
        assert tail.since_mark() == ["1", "2", "3"]
        assert tail.notes == ["the log was rotated"]
        log.unlink()
        assert tail.since_mark() == ["1", "2", "3"]


@pytest.mark.parametrize("after", ["x\n", "a much longer text than the one that was there\n"])
def test_truncation_is_noticed_even_when_it_grew_again(tmp_path: Path, after: str) -> None:
    log = tmp_path / "log"
    log.write_text("")
    with _tail(log) as tail:
        with log.open("a") as out:
            out.write("first line\n")
        assert tail.since_mark() == ["first line"]
        os.truncate(log, 0)
        with log.open("a") as out:
            out.write(after)
        assert tail.since_mark() == ["first line", after.strip()]
        assert "was cut" in tail.notes[0]


def test_a_log_that_grows_too_fast_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verify_attn.live.acceptance.tail._LOOK_BYTES", 100)
    log = tmp_path / "log"
    log.write_text("")
    with _tail(log) as tail:
        log.write_text("".join(f"line {k:04}\n" for k in range(100)))
        assert tail.since_mark()[-1] == "line 0099"
        assert tail.notes == ["900 bytes of the log left out: it grew too fast"]


def test_what_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo", Path("/dev/zero")):
        assert isinstance(LogTail.open(str(path)), Absent)
    assert isinstance(LogTail.open("a\0b"), Absent)


def test_the_journal_of_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "journalctl"
    fake.write_text('#!/bin/sh\necho "$@"\nexec sleep 60\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tail = LogTail.open("journal:llm.service")
    assert isinstance(tail, LogTail)
    with tail:
        end = time.monotonic() + 10
        while not tail.since_mark() and time.monotonic() < end:
            time.sleep(0.02)
        assert tail.since_mark() == ["--unit=llm.service -f -n 0 -o cat"]
    tail.close()


def test_no_journalctl_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = LogTail.open("journal:llm.service")
    assert isinstance(found, Absent)
    assert "journalctl cannot be started" in found.reason


def test_a_journalctl_that_ends_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "journalctl"
    fake.write_text('#!/bin/sh\necho "no permission" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tail = LogTail.open("journal:llm.service")
    assert isinstance(tail, LogTail)
    with tail:
        end = time.monotonic() + 10
        while not tail.notes and time.monotonic() < end:
            time.sleep(0.02)
            tail.since_mark()
        assert tail.notes == ["journalctl ended with status 1"]
        assert tail.last() == ["no permission"]
