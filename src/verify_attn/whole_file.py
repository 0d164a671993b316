"""Files that are written whole or not at all, so that no failure costs what was there before."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a reader never sees half a file.

    A link stays one; what is no regular file (``/dev/stdout``, a pipe) is written to as it is.
    Raises ``OSError`` that names ``path``.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = where(path)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask()
        handle, temporary = beside(target)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as wrong:
        if wrong.errno is not None:
            # Not the temporary's name; of a failed write there is none.
            raise type(wrong)(wrong.errno, wrong.strerror, str(path)) from None
        raise


def where(path: Path) -> Path:
    """What a path leads to through its links; raises ``OSError`` where those are a circle."""
    try:
        return path.resolve()
    except RuntimeError:  # until Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def umask() -> int:
    """What is taken from the rights of a new file; it can only be read by setting it."""
    now = os.umask(0o022)
    os.umask(now)
    return now


def beside(path: Path) -> tuple[int, str]:
    """A handle and the name of a new file in the same folder, hidden."""
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
