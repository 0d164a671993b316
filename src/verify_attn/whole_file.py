"""Files that are written whole or not at all, so that no failure costs what was there before."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the target and rename, so that a reader never sees half a file.

    A link stays one; what is no regular file (``/dev/stdout``, a pipe) is written to as it is.
    Raises ``OSError`` that names ``path``.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(content)
            return
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
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
            wrong.filename = str(path)  # not the temporary's; of a failed write there is none
            wrong.filename2 = None
        raise


def beside(path: Path) -> tuple[int, str]:
    """A handle and the name of a new file in the same folder, hidden."""
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
