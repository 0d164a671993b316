"""What a server says about accepted drafts, in words that cannot be off by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from verify_attn.live.absent import Absent
from verify_attn.live.acceptance.figures import share

Scope = Literal["request", "interval", "since start", "log interval"]

# Log lines and some gauges print two decimals.
PRINTED_ROUNDING = 0.011


class NothingDrafted(Absent):
    """The server's own word that no token was proposed: every step commits exactly one."""


@dataclass(frozen=True)
class Acceptance:
    """Verify steps and what they accepted, as far as the source tells.

    Accepted drafts never include the bonus token that a step adds; committed tokens do.  Code
    bases call either of them "accept length", so that name appears nowhere here.
    """

    # Where the figures come from, such as "vLLM /metrics".
    source: str
    # What they cover: this request; the time between two readings; everything since the server
    # started (or its counters were cleared); or whatever the server's last log line covered.
    scope: Scope
    # Verify steps; None where the server gives only a mean.
    steps: int | None = None
    # Draft tokens accepted, bonus tokens not included.
    accepted_drafts: int | None = None
    # Draft tokens proposed.
    proposed_drafts: int | None = None
    # [n] = steps that accepted exactly n drafts.
    histogram: tuple[int, ...] | None = None
    # [k] = share of the steps that accepted at least k + 1 drafts.
    accepted_per_position: tuple[float, ...] | None = None
    # Accepted drafts of each step, in the order of the steps.
    per_step: tuple[int, ...] | None = None
    # Tokens committed a step, bonus included, in the server's own words; may stand alone.
    mean_committed: float | None = None
    # What a reader of these figures must know about them.
    notes: tuple[str, ...] = ()

    @property
    def committed(self) -> int | None:
        """Tokens the steps added: accepted drafts and one bonus token a step.

        An upper bound for the tokens delivered by them: a stop may cut the last step.  The first
        token of an answer comes from the prefill and belongs to no step.
        """
        if self.steps is None or self.accepted_drafts is None:
            return None
        return self.accepted_drafts + self.steps

    @property
    def committed_per_step(self) -> float | None:
        """Mean tokens a step, bonus included: from the counts, else the server's own mean."""
        if self.committed is None or self.steps is None:
            return self.mean_committed
        return share(self.committed, self.steps)

    def committed_over(self, tokens: int) -> float | None:
        """Mean committed tokens a step of an answer of so many tokens, its first one left out.

        The counters of vLLM and llama.cpp leave out the steps for which nothing was drafted (an
        n-gram that was not found): whatever no verify step accounts for came one a step.  Less
        than two steps' worth may be a counter that lags, and is left alone.
        """
        mean = self.committed_per_step
        if self.committed is None or not self.steps or mean is None:
            return mean
        alone = tokens - 1 - self.committed
        widest = 1 + (self.proposed_drafts or self.accepted_drafts or 0) / self.steps
        if self.scope != "interval" or alone <= 2 * widest:
            return mean
        return (tokens - 1) / (self.steps + alone)

    @property
    def problems(self) -> list[str]:
        """Identities these figures break, one sentence each; empty for a sound report."""
        return [*_counts_problems(self), *_position_problems(self), *_mean_problems(self)]

    def as_metrics(self) -> dict[str, Any]:
        """The figures for a JSON record; a key is there only where its figure is known."""
        committed_per_step = self.committed_per_step
        found: dict[str, Any] = {
            "acceptance_source": self.source,
            "acceptance_scope": self.scope,
            "verify_steps": self.steps,
            "accepted_drafts": self.accepted_drafts,
            "proposed_drafts": self.proposed_drafts,
            "committed": self.committed,
            "committed_per_step": committed_per_step,
            "accepted_drafts_per_step": (
                None if committed_per_step is None else max(0.0, committed_per_step - 1)
            ),
            "accepted_drafts_histogram": self.histogram and list(self.histogram),
            "accepted_per_position": (
                self.accepted_per_position and list(self.accepted_per_position)
            ),
            "server_mean_committed": self.mean_committed,
            "acceptance_notes": list(self.notes) or None,
            "acceptance_problems": self.problems or None,
        }
        return {key: value for key, value in found.items() if value is not None}


def _counts_problems(a: Acceptance) -> list[str]:
    found = []
    if (
        a.accepted_drafts is not None
        and a.proposed_drafts is not None
        and a.accepted_drafts > a.proposed_drafts
    ):
        found.append(f"{a.accepted_drafts} drafts accepted of {a.proposed_drafts} proposed")
    if a.steps == 0 and a.accepted_drafts:
        found.append(f"{a.accepted_drafts} drafts accepted in no step")
    for name, steps, accepted in (
        ("histogram", a.histogram and sum(a.histogram), a.histogram and _weighted(a.histogram)),
        ("per-step list", a.per_step and len(a.per_step), a.per_step and sum(a.per_step)),
    ):
        if steps is not None and a.steps is not None and steps != a.steps:
            found.append(f"the {name} holds {steps} steps, the server counts {a.steps}")
        if accepted is not None and a.accepted_drafts is not None and accepted != a.accepted_drafts:
            found.append(
                f"the {name} holds {accepted} accepted drafts, the server counts "
                f"{a.accepted_drafts}"
            )
    return found


def _weighted(histogram: tuple[int, ...]) -> int:
    return sum(n * steps for n, steps in enumerate(histogram))


def _position_problems(a: Acceptance) -> list[str]:
    positions = a.accepted_per_position or ()
    found = [
        f"position {k + 1} accepts more often ({after:.3f}) than position {k} ({before:.3f}), "
        "but a draft is accepted only after the one before it"
        for k, (before, after) in enumerate(pairwise(positions))
        if after > before + 1e-9
    ]
    if positions and positions[0] > 1 + 1e-9:
        found.append(f"position 0 accepts in {positions[0]:.3f} of the steps, more than all")
    if positions and a.steps and a.accepted_drafts is not None:
        total = sum(positions) * a.steps
        if abs(total - a.accepted_drafts) > 0.5:
            found.append(
                f"the positions add up to {total:.0f} accepted drafts, the server counts "
                f"{a.accepted_drafts}"
            )
    return found


def _mean_problems(a: Acceptance) -> list[str]:
    """The server's mean against its counts.

    SGLang divides the answer's tokens by the steps: the prefill's token is in it, and a stop cuts
    the last step.  So the means may differ by one step's worth of tokens; a bonus token left out
    differs by 1, whatever the number of steps.
    """
    if a.mean_committed is None:
        return []
    if a.mean_committed < 1 - PRINTED_ROUNDING:
        return [
            f"the server says {a.mean_committed:g} tokens a step; a step commits at least its bonus"
        ]
    if a.committed is None or not a.steps:
        return []
    widest = len(a.histogram) if a.histogram else (a.proposed_drafts or 0) / a.steps + 1
    ours = a.committed / a.steps
    if abs(ours - a.mean_committed) > PRINTED_ROUNDING + (1 + widest) / a.steps:
        return [f"the server says {a.mean_committed:g} tokens a step, its counts say {ours:g}"]
    return []
