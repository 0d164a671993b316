"""The cache of builds: what changes a build, what is damaged, who else writes, who may not."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kernels.small_cuda import SMALL
from verify_attn.kernels import nvrtc as module
from verify_attn.kernels import nvrtc_cache
from verify_attn.kernels.nvrtc import Nvrtc, build, nvrtc
from verify_attn.kernels.nvrtc_cache import Cache, cache_folder, entry_key, user_cache

ROOT = Path(__file__).parents[2]
DEFAULT = {"source": SMALL, "name": "small.cu", "arch": "sm_90", "defines": {"STEPS": 4}}


def made(cache, **changed):
    return build(**(DEFAULT | changed), cache=cache)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "kernels")


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(nvrtc_cache, "_told", set())


def test_a_second_build_is_the_first_one_read(cache):
    first, second = made(cache), made(cache)
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.log) == (second.cubin, second.log)
    assert second.resources({"multiply": (4, 0)})["multiply"].registers > 0
    assert len(list(cache.folder.iterdir())) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"source": SMALL + "\n"}, {"arch": "sm_80"}, {"defines": {"STEPS": 2}}, {"name": "b.cu"},
        {"options": {"max_register_count": 64}},
    ],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_whatever_changes_a_build_is_in_its_key(cache, changed):
    made(cache)
    assert not made(cache, **changed).cached
    assert made(cache).cached


@pytest.mark.parametrize("field", ["version", "size_bytes"])
def test_another_compiler_builds_anew(cache, monkeypatch, field):
    made(cache)
    here = nvrtc()
    other = {"version": (here.version[0], here.version[1] + 1), "size_bytes": 1}
    fields = {name: getattr(here, name) for name in here.__dataclass_fields__}
    changed = Nvrtc(**(fields | {field: other[field]}))
    monkeypatch.setattr(module, "nvrtc", lambda: changed)
    assert not made(cache).cached


def test_what_does_not_compile_is_not_kept(cache):
    with pytest.raises(module.BuildError):
        made(cache, source="nonsense")
    assert not cache.folder.exists()


# -- damage ----------------------------------------------------------------------------------------


def test_an_entry_cut_short_anywhere_or_changed_anywhere_is_none(tmp_path, caplog):
    cache = Cache(tmp_path)
    cache.put("k", {"log": "a\nb"}, b"\x7fELF\n\0body")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert cache.get("k") == ({"log": "a\nb"}, b"\x7fELF\n\0body")
    for at in range(len(whole)):
        path.write_bytes(whole[:at])
        assert cache.get("k") is None, f"cut to {at} bytes"
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.get("k") is None, f"byte {at} changed"
    assert "is no whole cache entry" in caplog.text


def test_the_entry_of_another_build_is_none(tmp_path):
    cache = Cache(tmp_path)
    cache.put("a", {}, b"1")
    (tmp_path / "a.built").rename(tmp_path / "b.built")
    assert cache.get("b") is None


def test_a_damaged_entry_is_built_anew_and_replaced(cache, caplog):
    first = made(cache)
    (path,) = cache.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    again = made(cache)
    assert not again.cached
    assert again.cubin == first.cubin
    assert "checksum does not fit" in caplog.text
    assert made(cache).cached


DEEP = b"[" * 100_000  # JSON that no parser here ends


@pytest.mark.parametrize("content", [b"", DEEP], ids=["no log", "deep"])
def test_an_entry_of_another_form_is_built_anew(cache, content):
    first = made(cache)
    (path,) = cache.folder.iterdir()
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = b"\n".join((nvrtc_cache.FORMAT, digest, content))
    path.write_bytes(whole if content else nvrtc_cache._packed(path.stem, {}, b"body"))
    again = made(cache)
    assert (again.cached, again.cubin) == (False, first.cubin)
    assert made(cache).cached


def test_a_pipe_is_no_entry_and_is_not_waited_for(tmp_path):
    cache = Cache(tmp_path)
    os.mkfifo(tmp_path / "k.built")
    signal.alarm(5)  # ends a read that waits for a writer, and this process with it
    try:
        assert cache.get("k") is None
    finally:
        signal.alarm(0)
    cache.put("k", {"log": ""}, b"body")
    assert cache.get("k") == ({"log": ""}, b"body")


# -- two processes ---------------------------------------------------------------------------------

BUILDER = """
import hashlib, json, sys, time
from pathlib import Path
from tests.kernels.small_cuda import SMALL
from verify_attn.kernels.nvrtc import build, nvrtc
from verify_attn.kernels.nvrtc_cache import Cache
nvrtc()
(Path(sys.argv[2]) / sys.argv[3]).touch()
while len(list(Path(sys.argv[2]).iterdir())) < 2:  # both are here
    time.sleep(0.001)
built = build(SMALL, "small.cu", "sm_90", {"STEPS": 4}, cache=Cache(Path(sys.argv[1])))
print(json.dumps([built.cached, hashlib.sha256(built.cubin).hexdigest()]))
"""
WRITER = """
import sys
from pathlib import Path
from verify_attn.kernels.nvrtc_cache import Cache
cache = Cache(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    cache.put("k", {"log": "x"}, b"y" * 3_000_000)
"""


def start(code, *arguments):
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def test_two_processes_build_at_once(cache, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    both = [start(BUILDER, cache.folder, here, name) for name in ("one", "two")]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len({digest for _, digest in answers}) == 1
    assert len(list(cache.folder.iterdir())) == 1, "no temporary file is left"
    assert made(cache).cached


def test_a_reader_never_sees_half_of_what_another_process_writes(tmp_path, caplog):
    with start(WRITER, tmp_path) as writer:
        try:
            writer.stdout.readline()
            reader, until = Cache(tmp_path), time.monotonic() + 20
            while reader.get("k") is None:
                assert time.monotonic() < until
            for _ in range(150):
                head, body = reader.get("k")
                assert (head, len(body)) == ({"log": "x"}, 3_000_000)
        finally:
            writer.kill()
    assert caplog.text == ""
    # Killed in the midst of it, most likely: what is left of its file is never taken for an entry.
    assert Cache(tmp_path).get("k") is not None


# -- folders that cannot be used -------------------------------------------------------------------


def unusable(tmp_path, kind):
    folder = tmp_path / "folder"
    if kind == "a file":
        folder.write_text("in the way")
    elif kind == "below a file":
        folder.write_text("in the way")
        folder = folder / "kernels"
    else:
        folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", ["a file", "below a file", "read-only"])
def test_without_a_usable_folder_it_is_built_and_said_once(tmp_path, monkeypatch, caplog, kind):
    folder = unusable(tmp_path, kind)
    if kind == "read-only":  # root may write anywhere, so the system's answer is played

        def refuses(**_):
            raise PermissionError(13, "Permission denied", str(folder))

        monkeypatch.setattr(nvrtc_cache.tempfile, "mkstemp", refuses)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        built = made(Cache(folder))
        assert built.cubin
        assert not built.cached
    told = [record.getMessage() for record in caplog.records]
    assert sum("cannot be written" in line for line in told) == 1
    assert len(told) == len(set(told))
    for line in told:
        assert str(folder) in line
        assert "set VERIFY_ATTN_CACHE to a folder that may be written" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_a_folder_that_is_really_read_only(tmp_path, caplog):
    tmp_path.chmod(0o500)
    try:
        assert not made(Cache(tmp_path)).cached
    finally:
        tmp_path.chmod(0o700)
    assert "Permission denied" in caplog.text


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nvrtc_cache.os, "replace", full)
    cache = Cache(tmp_path)
    cache.put("k", {}, b"body")
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(nvrtc_cache.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Cache(tmp_path).put("k", {"log": ""}, b"body")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_others_may_read_what_the_umask_lets_them(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        Cache(tmp_path).put("k", {"log": ""}, b"body")
        assert os.umask(umask) == umask, "it is as it was"
    finally:
        os.umask(before)
    assert (tmp_path / "k.built").stat().st_mode & 0o777 == mode


# -- where it lies ---------------------------------------------------------------------------------


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("VERIFY_ATTN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "verify-attn"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "verify-attn"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_folder() == Path("/var/cache/me/verify-attn")
    monkeypatch.setenv("VERIFY_ATTN_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("VERIFY_ATTN_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_a_build_uses_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("VERIFY_ATTN_CACHE", str(tmp_path / "mine"))
    assert not build(**DEFAULT).cached
    assert build(**DEFAULT).cached
    assert len(list((tmp_path / "mine").iterdir())) == 1


def test_a_user_without_a_home_has_no_cache(monkeypatch, caplog):
    monkeypatch.delenv("VERIFY_ATTN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(nvrtc_cache.Path, "home", homeless)
    assert user_cache().get("k") is None
    user_cache().put("k", {}, b"")
    assert caplog.text.count("there is no home directory") == 1


def test_an_empty_home_is_none(monkeypatch):
    monkeypatch.delenv("VERIFY_ATTN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        assert cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert cache_folder() == Path("/var/cache/me/verify-attn")
    monkeypatch.setenv("VERIFY_ATTN_CACHE", "~/mine")
    assert cache_folder() is None


def test_keys_differ_by_every_part():
    keys = {entry_key(a=1, b=2), entry_key(a=2, b=1), entry_key(a=1), entry_key(a="1", b=2)}
    assert len(keys) == 4
    assert entry_key(a=1, b=2) == entry_key(b=2, a=1)
