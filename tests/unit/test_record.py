"""Run records: whole or not at all, and never read as something that they are not."""

import json
import math
import os

import pytest

from verify_attn.record import (
    STATUSES,
    RecordError,
    check_writable,
    exit_code,
    new_record,
    read_record,
    write_record,
)


def record(**case):
    return new_record(["verify-attn", "check", "my kernels:f"]) | {
        "cases": [{"id": "k/oracle", "status": "pass", "metrics": {}} | case]
    }


def test_round_trip(tmp_path):
    path = tmp_path / "new" / "directory" / "r.json"
    write_record(path, record())
    again = read_record(path)
    assert again["command"] == "verify-attn check 'my kernels:f'"
    assert again["schema_version"] == 1
    assert {"gpus", "triton", "versions"} <= set(again["environment"])
    assert os.listdir(path.parent) == ["r.json"]


@pytest.mark.parametrize("bad", [{"metrics": {"ms": math.nan}}, {"metrics": {"ms": math.inf}}])
def test_nan_is_refused_and_the_old_record_stays(tmp_path, bad):
    path = tmp_path / "r.json"
    write_record(path, record(reason="old"))
    with pytest.raises(RecordError, match=r"r\.json"):
        write_record(path, record(**bad))
    assert read_record(path)["cases"][0]["reason"] == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_failing_write_leaves_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_record(path, record(reason="old"))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, match="No space left"):
        write_record(path, record(reason="new"))
    assert read_record(path)["cases"][0]["reason"] == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_ctrl_c_while_writing_leaves_the_old_record(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_record(path, record(reason="old"))

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "chmod", stop)
    with pytest.raises(KeyboardInterrupt):
        write_record(path, record(reason="new"))
    assert read_record(path)["cases"][0]["reason"] == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_an_open_status_is_refused(tmp_path):
    with pytest.raises(RecordError, match="'passed'"):
        write_record(tmp_path / "r.json", record(status="passed"))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is no record"),
        (b"{", "is no record"),
        (b"\xff\xfe\x00", "is no record"),
        (b"[]", "schema_version None"),
        (b'{"cases": []}', "schema_version None"),
        (b'{"schema_version": 2, "cases": []}', "schema_version 2; this version reads 1"),
        (b'{"schema_version": 1}', "no list of cases"),
        (b'{"schema_version": 1, "cases": [3]}', "no list of cases"),
        (b'{"schema_version": 1, "cases": [{"status": "passed"}]}', "no list of cases"),
    ],
)
def test_what_is_no_record(tmp_path, content, says):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=says) as error:
        read_record(path)
    assert str(path) in str(error.value)


def test_a_record_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="no record at"):
        read_record(tmp_path / "r.json")
    with pytest.raises(RecordError, match="cannot be read: it is a folder"):
        read_record(tmp_path)


def test_check_writable(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("something")
    check_writable(path)
    assert path.read_text() == "something"
    assert os.listdir(tmp_path) == ["r.json"]
    for bad, says in (
        (tmp_path, "no regular file"),
        ("/dev/null", "no regular file"),
        (path / "below", "no record can be written"),
    ):
        with pytest.raises(RecordError, match=says):
            check_writable(type(path)(bad))
    assert not os.path.isfile("/dev/null")


# 130, 2, 4, 1, 3, 0: the first that applies.  2 and 4 are no case's.
@pytest.mark.parametrize(
    ("statuses", "interrupted", "code"),
    [
        (["pass"], False, 0),
        (["pass", "skipped"], False, 0),
        (["skipped"], False, 3),
        ([], False, 3),
        (["pass", "inconclusive"], False, 3),
        (["inconclusive", "fail"], False, 1),
        (["pass", "error", "skipped"], False, 1),
        (["pass"], True, 130),
        (["fail"], True, 130),
        ([], True, 130),
    ],
)
def test_exit_code(statuses, interrupted, code):
    assert set(statuses) <= set(STATUSES)
    assert exit_code([{"status": s} for s in statuses], interrupted) == code


def test_the_record_is_plain_json(tmp_path):
    write_record(tmp_path / "r.json", record(reason="é\udc80"))
    assert json.loads((tmp_path / "r.json").read_bytes())["cases"][0]["reason"] == "é\udc80"
