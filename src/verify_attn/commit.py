"""Which commit a record was made at."""

from __future__ import annotations

import os
import re
import subprocess

_LIMIT_S = 1.0  # no command waits longer for a number that only orders its record
_COMMIT = re.compile(r"[0-9a-f]{40,64}(-dirty)?")
# One call says commit and whether tracked files differ from it.  It takes no lock, and starts no
# file watcher that the repository may name.
_COMMAND = (
    "git", "--no-optional-locks", "-c", "core.fsmonitor=false",
    "describe", "--always", "--dirty", "--abbrev=64", "--exclude=*",
)  # fmt: skip


def current_commit() -> str | None:
    """The commit of the working directory's repository, with ``-dirty`` where tracked files differ
    from it; None without a repository, a commit or git, and where git takes over a second."""
    try:
        asked = subprocess.run(
            _COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S, check=False, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    said = asked.stdout.decode("ascii", "replace").strip()
    return said if asked.returncode == 0 and _COMMIT.fullmatch(said) else None
