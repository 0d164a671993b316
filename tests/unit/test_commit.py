"""A record's commit: what git says of the working directory, or nothing, and never late."""

import os
import subprocess
import time

import pytest

from verify_attn.commit import current_commit
from verify_attn.record import new_record


def git(*words):
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "repository"
    path.mkdir()
    monkeypatch.chdir(path)
    git("init", "-q")
    (path / "file").write_text("1")
    return path


def test_commit_and_dirt(repository, monkeypatch):
    assert current_commit() is None  # no commit yet
    git("add", "file")
    git("commit", "-qm", "one")
    git("tag", "-a", "v1", "-m", "no name of a commit")
    head = git("rev-parse", "HEAD")
    assert current_commit() == head
    (repository / "untracked").write_text("a record, say")
    assert current_commit() == head
    (repository / "file").write_text("2")
    assert current_commit() == f"{head}-dirty"
    (repository / "below").mkdir()
    monkeypatch.chdir(repository / "below")
    assert new_record(["verify-attn"])["commit"] == f"{head}-dirty"


def test_no_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    assert current_commit() is None
    assert new_record(["verify-attn"])["commit"] is None


def test_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert current_commit() is None


@pytest.mark.parametrize("says", ["sleep 30", "echo something else", "echo $0; exit 1", "kill $$"])
def test_a_git_that_is_slow_or_odd(tmp_path, monkeypatch, says):
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    start = time.monotonic()
    assert current_commit() is None
    assert time.monotonic() - start < 20  # of the 30 that it would have slept
