"""The lines a server writes while it is measured: a log file, or a unit of the journal."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO

from verify_attn.file_errors import why
from verify_attn.live.absent import Absent

# Read back at the start, so that a death during the first point still has lines to show.
_BEFORE_BYTES = 64 * 1024
# One look reads no more than this: a log that grows faster has its middle left out, and says so.
_LOOK_BYTES = 8 * 1024 * 1024
_KEPT_LINES = 20_000
# The bytes before our place, compared on each look: a file that was cut and has grown past our
# place again is no shorter than it was.
_PRINT_BYTES = 64


class LogTail:
    """Follows one log.  Nothing runs in between: the file is read when lines are asked for.

    ``mark()`` forgets what came before; ``since_mark()`` gives the whole lines written since;
    ``last()`` gives the last lines, marked or not, for the report of a death.
    """

    def __init__(self, path: Path) -> None:
        """Use `open`; this raises OSError where the file cannot be read."""
        self._path = path
        self._follower: subprocess.Popen[bytes] | None = None
        # What a reader of the lines must know: rotations, truncations, bytes left out.
        self.notes: list[str] = []
        self._recent: deque[str] = deque(maxlen=_KEPT_LINES)
        self._since: deque[str] = deque(maxlen=_KEPT_LINES)
        self._partial = b""
        self._print = b""
        self._file: IO[bytes] = path.open("rb")
        self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - _BEFORE_BYTES))
        self.mark()

    @classmethod
    def open(cls, source: str) -> LogTail | Absent:
        """A path, or ``journal:UNIT`` for the journal of a systemd unit; `Absent` says why not."""
        unit = source.removeprefix("journal:")
        if unit == source:
            try:
                # A FIFO would block for ever, a device never end.
                if not Path(source).is_file():
                    return Absent(f"no log: {source} is no regular file")
                return cls(Path(source))
            except (OSError, ValueError) as error:
                return Absent(f"no log: {why(error)}")
        return cls._open_journal(unit)

    @classmethod
    def _open_journal(cls, unit: str) -> LogTail | Absent:
        # The journal is followed into a file without a name to others, and that file is read as
        # any log is: a pipe that nobody reads would stop journalctl.
        handle, name = tempfile.mkstemp(prefix="verify-attn-journal-")
        tail = cls(Path(name))  # before the follower, so that all it writes is after the mark
        try:
            tail._follower = subprocess.Popen(
                ["journalctl", f"--unit={unit}", "-f", "-n", "0", "-o", "cat"],
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
            )
        except (OSError, ValueError) as error:
            tail.close()
            Path(name).unlink(missing_ok=True)
            return Absent(f"no log: journalctl cannot be started: {why(error)}")
        finally:
            os.close(handle)
        return tail

    def mark(self) -> None:
        """From here on, `since_mark` is about what is written now."""
        self._look()
        self._since.clear()

    def since_mark(self) -> list[str]:
        """The whole lines written since the mark; a line without its end comes later."""
        self._look()
        if len(self._since) == _KEPT_LINES:
            self._note(f"only the last {_KEPT_LINES} lines since a mark are kept")
        return list(self._since)

    def last(self, lines: int = 50) -> list[str]:
        """The last lines there are, the unfinished one included."""
        self._look()
        kept = list(self._recent)
        if self._partial:
            kept.append(_decoded(self._partial))
        return kept[-lines:] if lines > 0 else []

    def close(self) -> None:
        """Close the file and end the follower."""
        self._file.close()
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()
            self._follower = None
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> LogTail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _look(self) -> None:
        try:
            if self._was_cut():
                self._note("the log was cut; what was written just before may be missing")
                self._file.seek(0)
                self._partial = self._print = b""
            self._read()
            if self._was_replaced():
                # The old file was read to its end above; the new one is read from its start.
                new = self._path.open("rb")
                self._file.close()
                self._file = new
                self._partial = self._print = b""
                self._note("the log was rotated")
                self._read()
        except OSError as error:
            self._note(f"the log cannot be read: {why(error)}")
        if self._follower is not None and self._follower.poll() is not None:
            self._note(f"journalctl ended with status {self._follower.returncode}")

    def _was_cut(self) -> bool:
        at = self._file.tell()
        if os.fstat(self._file.fileno()).st_size < at:
            return True
        self._file.seek(at - len(self._print))
        same = self._file.read(len(self._print)) == self._print
        self._file.seek(at)
        return not same

    def _was_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # between the two renames of a rotation, or gone for good
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _read(self) -> None:
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        if left > _LOOK_BYTES:
            self._note(f"{left - _LOOK_BYTES} bytes of the log left out: it grew too fast")
            self._file.seek(left - _LOOK_BYTES, os.SEEK_CUR)
            self._partial = b""
        fresh = self._file.read(_LOOK_BYTES)
        self._print = (self._print + fresh)[-_PRINT_BYTES:]
        *whole, self._partial = (self._partial + fresh).split(b"\n")
        for raw in whole:
            line = _decoded(raw)
            self._recent.append(line)
            self._since.append(line)
        # A line without an end would grow for ever.
        self._partial = self._partial[-_LOOK_BYTES:]

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\r")
