"""Why a file cannot be read or written, for whoever has to mend it."""

from __future__ import annotations

import errno

_WHY = {
    errno.EACCES: "this user has no right to; change the rights, or give another path",
    errno.EPERM: "this user has no right to; change the rights, or give another path",
    errno.EROFS: "its file system is read-only; give a path on another",
    errno.ENOSPC: "no space is left on its disk; free some, or give a path on another",
    errno.EDQUOT: "this user's quota of its disk is used up; free some, or give a path on another",
    errno.EFBIG: "it would be larger than files may be here; raise that limit (ulimit -f), or "
                 "give a path elsewhere",
    errno.ENOENT: "there is no such file or folder; give the path of one that is there",
    errno.EEXIST: "a part of its path is a file; give a path through folders",
    errno.ENOTDIR: "a part of its path is a file; give a path through folders",
    errno.EISDIR: "it is a folder; give the path of a file",
    errno.ENAMETOOLONG: "the name is longer than names may be; give a shorter one",
    errno.ELOOP: "its links lead in a circle; give a path that ends",
    errno.EMFILE: "this process has too many files open; raise that limit (ulimit -n)",
    errno.EIO: "its disk fails (input/output error); give a path on another",
}  # fmt: skip


def why(error: BaseException) -> str:
    """The rule that was met and what to do; another error's own words as they are."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    known = _WHY.get(error.errno)
    # The system's word stays, since people search for it.
    word = error.strerror or errno.errorcode.get(error.errno, "unknown error")
    return word if known is None else f"{known} ({word})"


def file_error(error: OSError) -> str:
    """With the path, where the error has it: of a file that nobody named before."""
    return why(error) if error.filename is None else f"{error.filename}: {why(error)}"
