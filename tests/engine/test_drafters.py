"""Drafters that need no weights: prompt lookup and replay; and spoiled drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_attn.engine.drafters.ngram import DEPTH, KEY_TOKENS, NgramDrafter, tree_of
from verify_attn.engine.drafters.none import NoDrafter
from verify_attn.engine.drafters.replay import ReplayDrafter, ReplayError
from verify_attn.engine.faults import FaultError, Faults, WrongDrafts
from verify_attn.tree import accept_walk


@dataclass
class Text:
    tokens: list[int]
    prompt_tokens: int = 1
    key: int = field(default=0)


def paths(proposal):
    tree = proposal.tree
    return {tuple(proposal.tokens[n - 1] for n in tree.path(i)[1:]) for i in range(len(tree))}


def ngram(tokens, budget):
    return NgramDrafter().propose([Text(tokens)], budget)[0]


class TestNgram:
    def test_what_followed_is_proposed(self):
        text = list(b"the cat sat. the cat")
        proposal = ngram(text, 5)
        assert bytes(proposal.tokens) == b" sat."
        assert proposal.tree.parents == (-1, 0, 1, 2, 3, 4)

    def test_two_continuations_branch_and_the_longer_match_comes_first(self):
        text = list(b"a red hat, the red cap, the red")
        assert bytes(b"".join(bytes((t,)) for t in ngram(text, 4).tokens)) == b" cap"
        branched = paths(ngram(text, 20))
        assert tuple(b" cap") in branched
        assert tuple(b" hat") in branched

    def test_nothing_seen_before_is_the_root_alone(self):
        assert len(ngram(list(range(50)), 8).tree) == 1
        assert len(ngram([7] * (KEY_TOKENS - 1), 8).tree) == 1

    @given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(0, 20))
    def test_any_text(self, tokens: list[int], budget: int):
        proposal = ngram(tokens, budget)
        assert len(proposal.tokens) == len(proposal.tree) - 1 <= budget
        assert len(paths(proposal)) == len(proposal.tree)  # no sibling twice
        assert max(proposal.tree.depths) <= DEPTH
        for path in paths(proposal):  # each did follow the last tokens somewhere before
            if path:
                needle = (*tokens[-KEY_TOKENS:], *path)
                size = len(needle)
                places = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
                assert needle in places

    @given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.integers(1, 10))
    def test_growing_is_the_same_as_starting_late(self, tokens: list[int], budget: int):
        drafter = NgramDrafter()
        for end in range(1, len(tokens) + 1):
            grown = drafter.propose([Text(tokens[:end])], budget)[0]
        assert grown == ngram(tokens, budget)

    def test_requests_do_not_mix_and_are_forgotten(self):
        drafter = NgramDrafter()
        one, other = Text(list(b"abcdX abcd"), key=1), Text(list(b"abcdY abcd"), key=2)
        first, second = drafter.propose([one, other], 1)
        assert (first.tokens, second.tokens) == ((ord("X"),), (ord("Y"),))
        drafter.forget(one)
        again = Text(list(b"abcdZ abcd"), key=1)
        assert drafter.propose([again], 1)[0].tokens == (ord("Z"),)

    def test_tree_of_shares_beginnings(self):
        proposal = tree_of([(1, 2, 3), (1, 2, 4), (5,)], 10)
        assert proposal.tree.parents == (-1, 0, 1, 2, 2, 0)
        assert proposal.tokens == (1, 2, 3, 4, 5)


class TestReplay:
    def test_the_record_is_a_path_and_decoys_fill_the_budget(self):
        proposal = ReplayDrafter(range(100), 256).propose([Text([9, 0, 1], 1)], 31)[0]
        assert len(proposal.tree) == 32
        assert tuple(range(2, 17)) in paths(proposal)
        assert len(paths(proposal)) == 32
        target = [0] * 32
        for node in range(15):  # the record goes on from where the request is
            target[node] = 2 + node
        assert accept_walk(proposal.tree, (0, *proposal.tokens), target)[0] == tuple(range(16))

    @given(st.integers(0, 60), st.integers(2, 40), st.integers(0, 5))
    def test_any_budget(self, budget: int, vocabulary: int, generated: int):
        text = Text([1] * (1 + generated), 1)
        proposal = ReplayDrafter([0, 1, 1], vocabulary).propose([text], budget)[0]
        assert len(proposal.tree) == budget + 1
        assert all(0 <= token < vocabulary for token in proposal.tokens)

    def test_corruption_is_a_rate(self):
        drafter = ReplayDrafter([5], 1000, corrupt=0.25, seed=1)
        wrong = total = 0
        for generated in range(200):
            proposal = drafter.propose([Text([5] * (1 + generated), 1)], 15)[0]
            wrong += sum(token != 5 for token in proposal.tokens)
            total += 15
        assert 0.22 < wrong / total < 0.28

    def test_pin_commits_the_record(self):
        drafter = ReplayDrafter(list(range(50)), 256, pin=4)
        request = Text([9, 0], 1)  # one generated: the record's first
        proposal = drafter.propose([request], 31)[0]
        accepted, bonus = drafter.forced(request, proposal)
        assert accepted == (0, 1, 2, 3)
        assert [*(proposal.tokens[n - 1] for n in accepted[1:]), bonus] == [1, 2, 3, 4]
        assert ReplayDrafter([1], 9).forced(request, proposal) is None

    @pytest.mark.parametrize(
        ("given", "text"),
        [({"record": []}, "empty"), ({"corrupt": 1.5}, "0..1"), ({"pin": 0}, "pin is 0"),
         ({"pin": 17}, "pin is 17"), ({"record": [300]}, "vocabulary")],
    )  # fmt: skip
    def test_refused(self, given, text):
        with pytest.raises(ReplayError, match=text):
            ReplayDrafter(given.pop("record", [1]), 256, **given)

    def test_a_pin_needs_its_drafts_in_the_budget(self):
        with pytest.raises(ReplayError, match="budget 2"):
            ReplayDrafter([1], 9, pin=4).propose([Text([1])], 2)


class TestFaults:
    def test_none_is_the_root(self):
        assert len(NoDrafter().propose([Text([1])], 9)[0].tree) == 1

    def test_spoiled_from_there_on(self):
        drafter = WrongDrafts(ReplayDrafter([7], 256), 2, 256)
        before = drafter.propose([Text([1, 7], 1)], 3)[0]
        after = drafter.propose([Text([1, 7, 7], 1)], 3)[0]
        assert before.tokens == (7, 7, 7)
        assert 7 not in after.tokens

    def test_parsed(self):
        faults = Faults.parse(["acceptance=200", "stall=5:2.5", "step-time=1.5"])
        assert (faults.acceptance, faults.stall, faults.step_time_ms) == (200, (5, 2.5), 1.5)

    @pytest.mark.parametrize(
        "text",
        ["", "stall=3", "acceptance=-1", "step-time=nan", "melt=1", "stall=1:-2", "acceptance"],
    )
    def test_what_there_is_is_said(self, text: str):
        with pytest.raises(FaultError, match="die-in-prefill=TOKENS"):
            Faults.parse([text])
