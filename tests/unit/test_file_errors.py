"""What commands say of files that cannot be read or written."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from verify_attn.cli import main
from verify_attn.file_errors import file_error, why
from verify_attn.record import RecordError, read_record, write_record

RECORD = {"schema_version": 1, "cases": []}


@pytest.mark.parametrize(
    ("number", "says", "do"),
    [
        (errno.EACCES, "this user has no right to", "give another path"),
        (errno.ENOSPC, "no space is left on its disk", "free some"),
        (errno.EROFS, "its file system is read-only", "give a path on another"),
        (errno.EISDIR, "it is a folder", "give the path of a file"),
    ],
)
def test_the_rule_and_what_to_do_and_no_number(number: int, says: str, do: str) -> None:
    told = why(OSError(number, os.strerror(number), "/a/b"))
    assert says in told
    assert do in told
    assert told.endswith(f"({os.strerror(number)})")
    assert "Errno" not in told
    assert file_error(OSError(number, os.strerror(number), "/a/b")) == f"/a/b: {told}"


def test_what_it_does_not_know_it_says_in_the_systems_words() -> None:
    assert why(OSError(errno.EPIPE, "Broken pipe")) == "Broken pipe"
    assert why(OSError("a library's own words")) == "a library's own words"
    assert why(ValueError("not UTF-8")) == "not UTF-8"


def test_records(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="a part of its path is a file; give a path through"):
        write_record(tmp_path / "file/r.json", RECORD)
    with pytest.raises(RecordError, match="cannot be read: it is a folder; give the path of a fil"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        ["check", "torch", "--json", "{file}/r.json"],
        ["check", "torch", "--json", "{folder}/" + "n" * 300],
        ["bench", "--quick", "--dry-run", "--json", "{file}/r.json"],
        ["compare", "{folder}", "{folder}"],
        ["history", "{folder}", "--json", "{file}/r.json"],
        ["report", "{file}/run.json"],
        ["run", "--out", "{file}/r"],
        ["run", "--out", "{folder}/" + "n" * 300],
        ["sweep", "--url", "http://h:1", "--floors", "{folder}", "--dry-run"],
        ["sweep", "--url", "http://h:1", "--floors", "{folder}/none", "--dry-run"],
        ["sweep", "--url", "http://h:1", "--against", "{folder}", "--dry-run"],
        ["sweep", "--url", "http://h:1", "--request", "{folder}/none", "--dry-run"],
        ["sweep", "--url", "http://h:1", "--log", "{folder}/" + "n" * 300, "--dry-run"],
        ["serve", "tiny", "--drafter", "replay", "--replay", "{folder}/none"],
    ],
    ids=lambda line: " ".join(line)[:50],
)
def test_no_command_shows_an_errno(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = [word.format(file=tmp_path / "file", folder=tmp_path) for word in line]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert done.output.startswith(("error: ", "Usage: ")), done.output
    assert not re.search(r"\[Errno|Traceback", done.output), done.output


def test_nor_does_a_server_that_is_not_there() -> None:
    done = CliRunner().invoke(main, ["sweep", "--url", "http://127.0.0.1:9", "--contexts", "1k"])
    assert done.exit_code == 4
    assert "no answer from http://127.0.0.1:9" in done.output
    assert "Connect call failed" in done.output
    assert "Errno" not in done.output
