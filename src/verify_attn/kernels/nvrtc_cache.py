"""Compiled kernels on disk: a file an entry, written whole or not at all, checked when read.

The folder is $VERIFY_ATTN_CACHE, else verify-attn in $XDG_CACHE_HOME, else in ~/.cache.  A cache
that cannot be used costs a compilation a process, and is told once; it is never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from verify_attn.whole_file import umask

FOLDER_VARIABLE = "VERIFY_ATTN_CACHE"
# Another layout of the entries is another format: old entries are then just not found.
FORMAT = b"verify-attn build 1"

_log = logging.getLogger(__name__)
_told: set[str] = set()


def cache_folder() -> Path | None:
    """Where entries lie; None for a user without a home, who has none."""
    homeless = not os.path.isabs(os.environ.get("HOME", "/"))  # an empty one would mean /.cache
    if given := os.environ.get(FOLDER_VARIABLE):
        if homeless and given.startswith("~"):
            return None
        return Path(os.path.expanduser(given)).absolute()  # no shell expands a quoted ~
    base = os.environ.get("XDG_CACHE_HOME", "")
    if homeless and not os.path.isabs(base):
        return None
    try:
        # The XDG specification: a relative path is to be ignored.
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "verify-attn"
    except RuntimeError:
        return None


def entry_key(**parts: Any) -> str:
    """A key that differs whenever one of these parts does; they must be JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def user_cache() -> Cache:
    """The cache in `cache_folder`."""
    folder = cache_folder()
    if folder is None:
        _tell("there is no home directory for a kernel cache")
    return Cache(folder)


class Cache:
    """Entries of some JSON (``head``) and some bytes (``body``) in a folder; None: no cache."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The entry, or None if there is none or it is damaged, which is told."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            data = path.read_bytes() if path.is_file() else None
        except FileNotFoundError:
            return None
        except OSError as error:
            _tell(f"the kernel cache {self.folder} cannot be read ({error.strerror})")
            return None
        if data is None:
            return None
        try:
            head, body = _unpacked(key, data)
            return ({**head, "log": str(head["log"])}, body)
        except (ValueError, LookupError, TypeError, RecursionError) as wrong:
            _log.warning("%s is no whole cache entry (%s); it is built anew", path, wrong)
            return None

    def put(self, key: str, head: dict[str, Any], body: bytes) -> None:
        """Write beside the target and rename: whoever reads sees the old entry or the new one."""
        if self.folder is None:
            return
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".building-")
            with os.fdopen(handle, "wb") as file:
                file.write(_packed(key, head, body))
            os.chmod(temporary, 0o644 & ~umask())  # a cache may be filled for others
            os.replace(temporary, self._path(self.folder, key))
            temporary = None
        except OSError as error:
            _tell(f"the kernel cache {self.folder} cannot be written ({error.strerror})")
        finally:  # Ctrl-C too
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / f"{key}.built"


def _tell(what: str) -> None:
    """Once a process: every build would meet the same folder."""
    if what not in _told:
        _told.add(what)
        _log.warning(
            "%s: kernels are compiled anew in every process; set %s to a folder that may be "
            "written", what, FOLDER_VARIABLE,
        )  # fmt: skip


def _packed(key: str, head: dict[str, Any], body: bytes) -> bytes:
    content = json.dumps([key, head]).encode() + b"\n" + body
    return b"\n".join((FORMAT, hashlib.sha256(content).hexdigest().encode(), content))


def _unpacked(key: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    """ValueError says what is wrong with it."""
    form, _, rest = data.partition(b"\n")
    digest, _, content = rest.partition(b"\n")
    if form != FORMAT:
        raise ValueError("it does not begin like one")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError(f"its checksum does not fit its {len(data):,} bytes")
    line, _, body = content.partition(b"\n")
    of, head = json.loads(line)
    if of != key:
        raise ValueError("it is the entry of another build")
    return dict(head), body
