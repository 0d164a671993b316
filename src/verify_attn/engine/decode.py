"""The verify loop: prefill in chunks, then draft, verify, accept, commit.

Between steps a request's state is: ``tokens``, prompt and committed, whose last is the root of the
next tree; and ``held.length`` rows in the pool, which are all of them but the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from verify_attn.engine.cache import Cache, Held
from verify_attn.engine.drafters.base import Drafted, Drafter, Proposal
from verify_attn.engine.sampling import Sampling, argmax, sample
from verify_attn.engine.step import Moves, Output, Part, Runner
from verify_attn.tree import DraftTree, accept_walk


@dataclass(eq=False)
class Running:
    """A request that has pages."""

    key: int
    tokens: list[int]
    prompt_tokens: int
    held: Held
    sampling: Sampling
    committed: list[int] = field(default_factory=list)  # tokens of each verify step
    proposed_drafts: int = 0

    @property
    def in_prefill(self) -> bool:
        """Its first token is not there yet."""
        return len(self.tokens) == self.prompt_tokens


@runtime_checkable
class Forcing(Protocol):
    """A drafter that may say itself what a step commits; what it commits is not the target's."""

    def forced(self, request: Drafted, proposal: Proposal) -> tuple[tuple[int, ...], int] | None:
        """(accepted nodes, bonus token), or None to let the target decide."""


@dataclass(frozen=True)
class Step:
    """What a verify step made of one request."""

    tokens: tuple[int, ...]  # committed: accepted drafts and the bonus token
    proposed: int  # drafted nodes


class Decoder:
    """Ties a runner, the page bookkeeping and a drafter together."""

    def __init__(self, runner: Runner, cache: Cache, drafter: Drafter, budget: int) -> None:
        self.runner = runner
        self.cache = cache
        self.drafter = drafter
        self.budget = budget

    def prefill(self, request: Running, most: int) -> int:
        """Compute up to ``most`` prompt tokens; the last chunk gives the first token.

        Returns how many were computed.
        """
        start = request.held.length
        end = min(request.prompt_tokens, start + most)
        self.cache.room(request.held, end)
        part = Part(
            request.tokens[start:end], DraftTree.chain(end - start), request.held.table, start
        )
        output = self.runner.forward([part], every=False)
        self.cache.commit(request.held, range(end - start))  # a chain: nothing moves
        self.drafter.observe(request, start, output.features)
        if end == request.prompt_tokens:
            request.tokens.append(self._choices(output, [request], [1], [[end]])[0][0])
        return end - start

    def fill(self, request: Running, seed: int) -> int:
        """Random rows for the prompt but its last token, instead of computing them."""
        rows = request.prompt_tokens - 1
        self.cache.room(request.held, rows)
        self.runner.fill(request.held.table, rows, seed)
        new = range(rows - request.held.length)
        self.cache.commit(request.held, new)
        return len(new)

    def step(self, requests: Sequence[Running]) -> list[Step]:
        """One verify step of every request."""
        proposals = self.drafter.propose(requests, self.budget)
        parts = []
        for request, proposal in zip(requests, proposals, strict=True):
            length = request.held.length
            self.cache.room(request.held, length + len(proposal.tree))
            tokens = [request.tokens[-1], *proposal.tokens]
            parts.append(Part(tokens, proposal.tree, request.held.table, length))
        output = self.runner.forward(parts, every=True)
        targets = self._choices(
            output, requests, [len(part.tree) for part in parts],
            # The choice after a node is the token one past the node's depth.
            [[p.prefix_len + depth + 1 for depth in p.tree.depths] for p in parts],
        )  # fmt: skip
        steps, moves, first = [], list[Moves](), 0
        for request, proposal, target in zip(requests, proposals, targets, strict=True):
            accepted, bonus = self._walk(request, proposal, target)
            nodes = len(proposal.tree)
            # The accepted nodes' rows, not the first so many: on a branch they differ.
            rows = output.features[first : first + nodes]
            self.drafter.observe(request, request.held.length, rows[list(accepted)])
            first += nodes
            moves.append(self.cache.commit(request.held, accepted))
            self.cache.trim(request.held)
            committed = (*(proposal.tokens[node - 1] for node in accepted[1:]), bonus)
            request.tokens.extend(committed)
            request.committed.append(len(committed))
            request.proposed_drafts += nodes - 1
            steps.append(Step(committed, nodes - 1))
        self.move(moves)
        return steps

    def move(self, moves: Sequence[Moves]) -> None:
        """All of them in one launch; none where nothing moves."""
        if any(map(len, moves)):
            self.runner.move(
                Moves(
                    np.concatenate([m.sources for m in moves]),
                    np.concatenate([m.targets for m in moves]),
                )
            )

    def release(self, request: Running) -> None:
        """The request is over: its pages go to the prefix cache or free."""
        self.drafter.forget(request)
        self.cache.release(request.held, request.tokens[: request.held.length])

    def _walk(
        self, request: Running, proposal: Proposal, target: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        if isinstance(self.drafter, Forcing):
            outcome = self.drafter.forced(request, proposal)
            if outcome is not None:
                return outcome
        # The root's token is not looked at.
        return accept_walk(proposal.tree, (0, *proposal.tokens), target)

    def _choices(
        self, output: Output, requests: Sequence[Running], counts: Sequence[int],
        positions: Sequence[Sequence[int]],
    ) -> list[list[int]]:  # fmt: skip
        """The target's choice after each of a request's nodes."""
        greedy = argmax(output.logits)
        choices, first = [], 0
        for request, count, where in zip(requests, counts, positions, strict=True):
            last = first + count
            if request.sampling.temperature > 0:
                choices.append(sample(output.logits[first:last], where, request.sampling))
            else:
                choices.append(greedy[first:last])
            first = last
        return choices
