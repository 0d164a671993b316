"""How many tokens each event of a stream carried: counted, confirmed or estimated, never assumed.

Servers send one event a token, one a decode step, or one every so many tokens; with text held back
for a half character, and with an end-of-text token that is counted and never shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from verify_attn.live.absent import Absent
from verify_attn.live.chunk import Chunk
from verify_attn.live.stream import Stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

IDS = "token ids of each event"
RUNNING_USAGE = "the server's running count in each event"
ONE_EACH = "one an event, confirmed by the server's total"
TEXT_SHARE = "the server's total, shared out by length of text"
# Events that may lack the running count before it counts as not granted: the last one, at times.
_MAX_SILENT_SHARE = 0.1


@dataclass(frozen=True)
class Timeline:
    """The token-bearing events of one answer, in order (E of them).

    ``t_s``     [E] seconds from the request's first byte to the read that completed the event
    ``read``    [E] index of that read
    ``tokens``  [E] tokens it carried (fractions where estimated), or Absent
    ``source``  where ``tokens`` come from; ``exact`` unless that is the length of the text
    ``total``   tokens of the whole answer by the server's word, or Absent
    """

    t_s: Floats
    read: Ints
    tokens: Floats | Absent
    source: str
    total: int | Absent

    @property
    def exact(self) -> bool:
        """Are ``tokens`` counts, and not shares of a count?"""
        return not isinstance(self.tokens, Absent) and self.source != TEXT_SHARE


def timeline(stream: Stream, sent_ns: int) -> Timeline:
    """Which events of ``stream`` brought tokens, when, and how many."""
    events = [
        (i, read.t_ns, chunk)
        for i, read in enumerate(stream.reads)
        for chunk in read.chunks
        if chunk.has_choice and not chunk.role_only
    ]
    chunks = [chunk for _, _, chunk in events]
    total = _total(stream, chunks)
    tokens, source = _count(chunks, total, stream)
    if isinstance(tokens, Absent):
        # Still when text came, for the time of the first token.
        keep = [i for i, chunk in enumerate(chunks) if chunk.text_chars]
    else:
        keep = [i for i, count in enumerate(tokens) if count > 0]
        tokens = tokens[keep]
    return Timeline(
        t_s=np.array([(events[i][1] - sent_ns) / 1e9 for i in keep], dtype=np.float64),
        read=np.array([events[i][0] for i in keep], dtype=np.int64),
        tokens=tokens,
        source=source,
        total=total,
    )


def _total(stream: Stream, chunks: list[Chunk]) -> int | Absent:
    by_ids = [chunk.tokens for chunk in chunks if chunk.tokens is not None]
    running = running_count(chunks) is not None
    counted = stream.usage.completion_tokens if stream.usage is not None else None
    if counted is not None and (stream.outcome == "complete" or running):
        return counted
    if by_ids and all(chunk.tokens is not None or not chunk.text_chars for chunk in chunks):
        return sum(by_ids)
    if stream.outcome != "complete":
        return Absent("the answer ended before the server sent its count of tokens")
    return Absent("the server sent no usage: the number of tokens is not known")


def _count(chunks: list[Chunk], total: int | Absent, stream: Stream) -> tuple[Floats | Absent, str]:
    """Tokens of every chunk, from the best source there is."""
    if not chunks:
        return Absent("no event carried a token"), ""
    ids = [chunk.tokens for chunk in chunks]
    if any(ids) and all(
        count is not None or not chunk.text_chars for count, chunk in zip(ids, chunks, strict=True)
    ):
        return np.array([count or 0 for count in ids], dtype=np.float64), IDS
    running = running_count(chunks)
    if running is not None:
        return np.diff(running, prepend=0.0), RUNNING_USAGE
    if isinstance(total, Absent):
        return total, ""
    one_each = _one_each(chunks, total, stream)
    if one_each is not None:
        return one_each, ONE_EACH
    chars = np.array([chunk.text_chars for chunk in chunks], dtype=np.float64)
    with_text = int((chars > 0).sum())
    if with_text == 0:
        return Absent("no event carried any text, so none can be told to hold a token"), ""
    if total < with_text:
        return Absent(f"the server counts {total} tokens, but {with_text} events carried text"), ""
    return chars * (total / chars.sum()), TEXT_SHARE


def running_count(chunks: list[Chunk]) -> Floats | None:
    """The server's running count after each chunk, where it keeps one; None where it does not."""
    counts: list[float] = []
    silent = 0
    last = 0.0
    for chunk in chunks:
        given = chunk.usage.completion_tokens if chunk.usage is not None else None
        if given is None:
            silent += bool(chunk.text_chars)
        elif given < last:
            return None
        else:
            last = float(given)
        counts.append(last)
    with_text = sum(bool(chunk.text_chars) for chunk in chunks)
    enough = with_text >= 2 and silent <= _MAX_SILENT_SHARE * with_text
    return np.array(counts) if enough and last > 0 else None


def _one_each(chunks: list[Chunk], total: int, stream: Stream) -> Floats | None:
    """One token an event, if the total says so; an end token shows only as a finish."""
    text = np.array([bool(chunk.text_chars) for chunk in chunks])
    silent_too = np.array([bool(c.text_chars) or c.finish is None for c in chunks])
    stop = np.array([chunk.finish == "stop" for chunk in chunks])
    for carried in (text, silent_too):
        for counted in (carried, carried | stop):
            # A repeated silence is no confirmation: as many events as tokens, all but a few
            # of them with text.
            if int(counted.sum()) == total and text.sum() >= 0.5 * counted.sum():
                return counted.astype(np.float64)
    return None
