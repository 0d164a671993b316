"""Outputs that are written whole or not at all, where a disk is full or a path is no file."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from verify_attn.file_errors import file_error
from verify_attn.record import RecordError, check_writable
from verify_attn.whole_file import write_whole


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow past 4,096 bytes: as a full disk, it fails in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_files")
def test_what_was_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_bytes(b"good" * 500)
    with pytest.raises(OSError, match="too large") as raised:
        write_whole(out, b"x" * 5000)
    assert file_error(raised.value).startswith(f"{out}: it would be larger than files may be here")
    assert out.read_bytes() == b"good" * 500
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_link_stays_one_and_rights_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_new_file_has_the_rights_that_the_user_gives(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "mine", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o600


def test_links_that_lead_nowhere_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("/proc/nosuch/x.json")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("away", "circle"):
        with pytest.raises(RecordError, match=f"no record can be written to .*{name}"):
            check_writable(tmp_path / name)
        with pytest.raises(OSError, match=name):
            write_whole(tmp_path / name, b"x")


def test_a_pipe_by_the_name_of_its_handle(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write_whole(Path(f"/dev/fd/{writer}"), b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)


def test_what_is_no_regular_file_is_written_to(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), b"x")
    with pytest.raises(OSError, match="No space left"):
        write_whole(Path("/dev/full"), b"x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    with pytest.raises(OSError, match="Is a directory"):
        write_whole(tmp_path, b"x")
