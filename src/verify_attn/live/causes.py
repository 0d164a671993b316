"""The causes that a diagnosis may name: a closed list, each with what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CAUSES = {
    "acceptance-falls": "fewer tokens are committed a step: the drafter is right less often",
    "step-time-grows": "a step takes longer late in the generation than early in it",
    "step-time-linear-in-context": "a step takes time in proportion to the context: attention "
    "that does not split the KV, or reads it far below the memory's rate",
    "step-time-superlinear": "a step's time grows faster than the context",
    "prefill-superlinear": "prefill grows faster than the linear and quadratic part that fit the "
    "shorter prompts",
    "prefill-in-decode": "a pause right after the first token: prefill that the decode figure of "
    "other methods would contain",
    "prefix-cache-hit": "the prompt was answered out of the prefix cache: its prefill is not one",
    "proxy-buffering": "something between the engine and here holds events back",
    "chunk-interval": "the server sends an event every so many tokens, not every step",
    "fake-streaming": "the answer was generated whole before any of it was sent",
    "stall-then-burst": "silence, then tokens faster than they are made: they were held back",
    "stall": "the stream paused far longer than a step takes",
    "early-stop": "the answer ended before the asked number of tokens",
    "usage-missing": "the server does not count its tokens, so no rate can be known",
    "counts-disagree": "the server's counts of tokens contradict each other or what was asked, so "
    "the rate may be wrong by as much",
    "foreign-traffic": "the server worked for others during the measurement",
    "warm-up": "the first request was far slower than the next of its size; it is left out",
    "request-failed": "the request failed",
    "stream-truncated": "the stream ended in the middle of the answer",
    "server-death": "the server stopped answering",
    "context-overflow": "the prompt is longer than the server's context",
}
HIGH, MEDIUM, LOW = "high", "medium", "low"


@dataclass(frozen=True)
class Finding:
    """A cause with its evidence.

    ``confidence``  ``high`` (it was counted or said by the server), ``medium`` (statistics of
                    this run), ``low`` (one of several explanations)
    ``points``      ids of the points that show it
    """

    cause: str
    confidence: str
    evidence: str
    points: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        assert self.cause in CAUSES, self.cause
        assert self.confidence in (HIGH, MEDIUM, LOW), self.confidence

    @property
    def line(self) -> str:
        """One line of text."""
        return f"{self.cause} ({self.confidence}): {self.evidence}"

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "cause": self.cause, "meaning": CAUSES[self.cause], "confidence": self.confidence,
            "evidence": self.evidence, "points": list(self.points),
        }  # fmt: skip
