"""Server-sent events out of raw bytes, to the HTML standard.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6
"Interpreting an event stream".  The one addition is `Decoder.close`: the standard drops an event
that the stream's end cuts off, and a measurement wants to know of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event.

    ``data``      its data lines, joined by a newline; one empty line gives an empty string
    ``type``      of the ``event`` field, ``message`` where there is none
    ``id``        the last id seen so far
    ``complete``  False: the stream ended before the blank line that would have dispatched it
    """

    data: str
    type: str = "message"
    id: str = ""
    complete: bool = True


class Decoder:
    """Bytes in, events out, whatever the cuts between reads.

    Line ends are CR, LF and CRLF, found in the bytes, so that U+2028 or a character cut in two
    cannot end a line.  Lines are UTF-8; bad bytes become U+FFFD.
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []  # of the line that has not ended yet
        self._skip_lf = False  # the last read ended in CR: an LF to come belongs to it
        self._first_line = True
        self._data: list[str] = []
        self._type = ""
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        if not data:
            return []
        if self._skip_lf and data[0] == 0x0A:
            data = data[1:]
        self._skip_lf = False
        events: list[Event] = []
        start = 0
        for end in _LINE_END.finditer(data):
            line = data[start : end.start()]
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
            start = end.end()
            self._line(line, events)
        if start < len(data):
            self._partial.append(data[start:])
        elif data.endswith(b"\r"):
            self._skip_lf = True
        return events

    def close(self) -> Event | None:
        """The event that the end of the stream cut off, if it had any data."""
        events: list[Event] = []
        if self._partial:
            self._line(b"".join(self._partial), events)
            self._partial.clear()
        self._dispatch(events, complete=False)
        return events[-1] if events else None

    def _line(self, line: bytes, events: list[Event]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events, complete=True)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        # A comment has an empty name; retry and unknown fields do not concern a reader that
        # never reconnects.

    def _dispatch(self, events: list[Event], *, complete: bool) -> None:
        if self._data:
            data = "\n".join(self._data)
            events.append(Event(data, self._type or "message", self._id, complete))
        self._data.clear()
        self._type = ""
