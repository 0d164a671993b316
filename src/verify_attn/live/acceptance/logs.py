"""Acceptance and contamination out of a server's log lines, read key by key.

SGLang and vLLM change the frame of their lines with every release and keep the keys, so no line
is matched as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import count, figure, weighted_mean
from verify_attn.live.acceptance.model import Acceptance

_NUMBER = r"\s*(-?\d[\d.]*(?:e[+-]?\d+)?|nan|-?inf)"


@dataclass(frozen=True)
class DecodeLine:
    """One ``Decode batch`` line of SGLang; what it does not say is None.

    It covers the decode steps since the line before (40 by default), of whatever requests ran.
    """

    running: int | None
    # Mean tokens committed a step, bonus included; two decimals.
    mean_committed: float | None
    # Tokens a second of all running requests.
    tokens_per_s: float | None
    queued: int | None
    graph: bool | None


@dataclass(frozen=True)
class PrefillLine:
    """One ``Prefill batch`` line of SGLang: a chunk of prompt tokens."""

    new_tokens: int | None
    # Prompt tokens taken from the prefix cache.
    cached_tokens: int | None
    running: int | None
    queued: int | None


@dataclass(frozen=True)
class VllmLine:
    """One ``SpecDecoding metrics`` line of vLLM: by default the last 10 s."""

    mean_committed: float | None
    accepted_drafts: int | None
    proposed_drafts: int | None


@dataclass(frozen=True)
class LogReading:
    """What a stretch of log says about the request that ran meanwhile."""

    acceptance: Acceptance | Absent
    # Prompt tokens from the prefix cache, summed over the prefill chunks.
    cached_tokens: int | Absent
    # Somebody else's requests ran too: a sentence with the numbers, or None.
    foreign: str | None
    decode: tuple[DecodeLine, ...] = ()
    prefill: tuple[PrefillLine, ...] = ()
    vllm: tuple[VllmLine, ...] = ()
    notes: tuple[str, ...] = field(default=())


def parse_line(line: str) -> DecodeLine | PrefillLine | VllmLine | None:
    """One line, or None where it is none of the three kinds."""
    if "Decode batch" in line:
        graph = re.search(r"\bgraph:\s*(True|False)", line)
        return DecodeLine(
            running=_count(line, "#running-req:"),
            mean_committed=_mean(line, "accept len:"),
            tokens_per_s=_figure(line, "gen throughput (token/s):"),
            queued=_count(line, "#queue-req:"),
            graph=None if graph is None else graph[1] == "True",
        )
    if "Prefill batch" in line:
        return PrefillLine(
            new_tokens=_count(line, "#new-token:"),
            cached_tokens=_count(line, "#cached-token:"),
            running=_count(line, "#running-req:"),
            queued=_count(line, "#queue-req:"),
        )
    if "SpecDecoding metrics" in line:
        return VllmLine(
            mean_committed=_mean(line, "Mean acceptance length:"),
            # ", Accepted:" and not "Accepted throughput:"
            accepted_drafts=_count(line, "Accepted:"),
            proposed_drafts=_count(line, "Drafted:"),
        )
    return None


def read_lines(lines: Iterable[str], *, own_running: int = 1) -> LogReading:
    """Read the lines that a server wrote during one request.

    ``own_running`` is the most requests of ours that ran at once; more of them in a line are
    foreign.
    """
    decode: list[DecodeLine] = []
    prefill: list[PrefillLine] = []
    vllm: list[VllmLine] = []
    notes: list[str] = []
    first_after_idle, dropped = True, 0
    most = 0
    for line in lines:
        note = _once_only(line)
        if note and note not in notes:
            notes.append(note)
        found = parse_line(line)
        if isinstance(found, PrefillLine):
            prefill.append(found)
            most = max(most, found.running or 0)
            # A prefill beside no running request: the server was idle before it.
            first_after_idle = first_after_idle or found.running == 0
        elif isinstance(found, DecodeLine):
            most = max(most, found.running or 0)
            if first_after_idle:
                # Its time spans the idle gap (0.39 tok/s in sglang#11948), and its steps are
                # partly an earlier request's: fewer than 40 steps print no line and roll over.
                dropped += 1
                first_after_idle = False
            else:
                decode.append(found)
        elif isinstance(found, VllmLine):
            vllm.append(found)
    if dropped:
        notes.append(f"{dropped} decode line(s) dropped: the first after an idle server")
    foreign = None
    if most > own_running:
        foreign = f"the log shows {most} running requests; at most {own_running} were ours"
    return LogReading(
        _acceptance(decode, vllm),
        _cached(prefill),
        foreign,
        tuple(decode),
        tuple(prefill),
        tuple(vllm),
        tuple(notes),
    )


def _acceptance(decode: Sequence[DecodeLine], vllm: Sequence[VllmLine]) -> Acceptance | Absent:
    # Lines of SGLang cover equally many forward passes, so requests weight them.
    means = [
        (line.mean_committed, float(line.running or 1))
        for line in decode
        if line.mean_committed is not None
    ]
    mean = weighted_mean(means)
    if mean is not None:
        note = f"mean of {len(means)} log line(s), each rounded to two decimals"
        return Acceptance("SGLang log", "log interval", mean_committed=mean, notes=(note,))
    drafting = [line for line in vllm if line.mean_committed is not None and line.proposed_drafts]
    # The steps of a vLLM line are not printed; with a fixed draft length the drafted tokens are
    # proportional to them.
    mean = weighted_mean(
        [(line.mean_committed or 0, line.proposed_drafts or 0) for line in drafting]
    )
    if mean is not None:
        accepted = [line.accepted_drafts for line in drafting]
        known = [tokens for tokens in accepted if tokens is not None]
        return Acceptance(
            "vLLM log",
            "log interval",
            accepted_drafts=sum(known) if len(known) == len(accepted) else None,
            proposed_drafts=sum(line.proposed_drafts or 0 for line in drafting),
            mean_committed=mean,
            notes=(f"mean of {len(drafting)} log line(s) of 10 s, weighted by drafted tokens",),
        )
    return Absent("no log line with an accept length: speculation is off, or too few steps ran")


def _cached(prefill: Sequence[PrefillLine]) -> int | Absent:
    known = [line.cached_tokens for line in prefill if line.cached_tokens is not None]
    return sum(known) if known else Absent("no prefill line in the log")


# What these lines list, by their keys.  SGLang's DFlash and DDTree log them once, for the first
# verify after start: they tell the code base's convention and are never a metric.
_ONCE = {
    "num_correct_drafts_per_req=": "accepted drafts, bonus excluded",
    "accept_length_per_req=": "accepted drafts, bonus excluded",
    "commit_lens=": "committed tokens, bonus included",
}


def _once_only(line: str) -> str | None:
    if "verify completed" not in line:
        return None
    for key, meaning in _ONCE.items():
        found = re.search(re.escape(key) + r"\[([\d,\s]{0,200})\]", line)
        if found:
            return f"first verify only, no metric: {key}[{found[1].strip()}] ({meaning})"
    return None


def _text(line: str, key: str) -> float | None:
    found = re.search(re.escape(key) + _NUMBER, line)
    if found is None:
        return None
    try:
        return float(found[1])
    except ValueError:  # such as 1.2.3
        return None


def _figure(line: str, key: str) -> float | None:
    return figure(_text(line, key))


def _count(line: str, key: str) -> int | None:
    return count(_text(line, key))


def _mean(line: str, key: str) -> float | None:
    """Tokens a step: nan (nothing drafted) and 0 (no data) are no means."""
    value = _figure(line, key)
    return None if value is None or value < 1 else value
