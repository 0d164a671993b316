"""Tracebacks that show the user's own code, without the harness around it.

Imports nothing heavy: the side that watches the workers uses it too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from itertools import dropwhile

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_FAULT_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line \d+ in ')  # as faulthandler writes it


def _hypothesis() -> str:
    spec = importlib.util.find_spec("hypothesis")
    return os.path.dirname(spec.origin) + os.sep if spec and spec.origin else _OURS


def _harness(filename: str) -> bool:
    return filename.startswith((_OURS, _hypothesis(), "<frozen"))


def _around(filename: str) -> bool:
    """Is this what stands between the harness and the user's first line?"""
    stdlib = filename.startswith(_STDLIB) and "-packages" not in filename
    return _harness(filename) or stdlib


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's first line on, without this package and Hypothesis."""
    frames = traceback.extract_tb(error.__traceback__)
    users = dropwhile(lambda frame: _around(frame.filename), frames)
    shown = [frame for frame in users if not _harness(frame.filename)]
    lines = traceback.format_list(shown) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def last_words(log: str, most: int = 12) -> list[str]:
    """The last lines of a dead worker's log, without the harness's part of a fault's stack."""
    return list(_of_interest(log.splitlines()))[-most:]


def _of_interest(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        frame = _FAULT_FRAME.match(line)
        if line.strip() and not (
            line.startswith("Extension modules: ") or (frame and _around(frame["file"]))
        ):
            yield line
