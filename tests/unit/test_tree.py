"""Draft trees: other projects' vectors, round trips between layouts, the accept walk, errors."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verify_attn.tree import (
    MAX_NODES,
    DraftTree,
    TreeError,
    accept_walk,
    mask_words,
    pack_words,
    unpack_words,
)

several = settings(max_examples=60, deadline=None)
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "tree_vectors.json").read_text())


@st.composite
def draft_trees(draw: st.DrawFn, most_nodes: int = 130) -> DraftTree:
    """Explicit parents where few nodes, all shapes where many."""
    if draw(st.booleans()):
        nodes = draw(st.integers(1, 9))
        return DraftTree((-1, *(draw(st.integers(0, i - 1)) for i in range(1, nodes))))
    nodes = draw(st.one_of(st.sampled_from([63, 64, 65]), st.integers(1, most_nodes)))
    kind = draw(st.sampled_from(["chain", "star", "comb", "random"]))
    seed = (draw(st.integers(0, 999)),) if kind == "random" else ()
    return getattr(DraftTree, kind)(nodes, *seed)


def rows(tree: DraftTree) -> list[str]:
    """The mask as rows such as ``110``."""
    return ["".join("1" if seen else "0" for seen in row) for row in tree.visible]


def ancestors(tree: DraftTree, node: int) -> set[int]:
    """By the definition, parent by parent."""
    return set() if node < 0 else {node} | ancestors(tree, tree.parents[node])


class TestLiteralVectors:
    """Numbers out of other projects' tests."""

    @pytest.mark.parametrize("name", ["eagle_tree", "ngram_tree"])
    def test_trees(self, name: str) -> None:
        vector = VECTORS[name]
        positions = []
        for request, prefix_len in enumerate(vector["prefix_lens"]):
            child, sibling = vector["next_token"][request], vector["next_sibling"][request]
            tree = DraftTree.from_links(child, sibling)
            if "parents" in vector:
                assert list(tree.parents) == vector["parents"][request]
            assert rows(tree) == vector["mask_rows"][request]
            assert tree.links == (tuple(child), tuple(sibling))
            positions += [prefix_len + depth for depth in tree.depths]
        assert positions == vector["positions"]

    def test_ngram_parents(self) -> None:
        visible = [[bit == "1" for bit in row] for row in VECTORS["ngram_tree"]["mask_rows"][0]]
        assert DraftTree.from_visible(visible).parents == (-1, 0, 0, 2)

    def test_packed_full_mask(self) -> None:
        """A chain and a star; positions go by depth and token ids start with the root."""
        vector = VECTORS["packed_full_mask"]
        trees = [DraftTree.chain(3), DraftTree.star(3)]
        assert [list(tree.depths[1:]) for tree in trees] == vector["depths"]
        for request, tree in enumerate(trees):
            positions = [vector["prefix_lens"][request] + depth for depth in tree.depths]
            assert positions == vector["positions"][request]
            ids = [vector["roots"][request], *vector["node_tokens"][request]]
            assert ids == vector["ids"][request]
            assert len(ids) == len(tree)

    def test_greedy_walk(self) -> None:
        """SGLang's outputs, made from the walk: predictions where the walk has been, node indices
        counted over both requests, accepted drafts without the bonus token."""
        vector = VECTORS["greedy_walk"]
        predicts, accept_index, accepted_drafts = [], [], []
        for request, candidates in enumerate(vector["candidates"]):
            links = vector["next_token"][request], vector["next_sibling"][request]
            target = vector["target_predict"][request]
            accepted, bonus = accept_walk(DraftTree.from_links(*links), candidates, target)
            first = request * len(candidates)
            predicts += [t if i in accepted else -1 for i, t in enumerate(target)]
            index = [first + i for i in accepted]
            accept_index.append(index + [-1] * (4 - len(index)))
            accepted_drafts.append(len(accepted) - 1)
            assert bonus == target[accepted[-1]] == 18
        expected = vector["expected"]
        assert predicts == expected["predicts"]
        assert accept_index == expected["accept_index"]
        assert accepted_drafts == expected["accepted_drafts"]

    def test_a_sibling_may_have_the_lower_index(self) -> None:
        vector = VECTORS["greedy_walk"]
        tree = DraftTree.from_links(vector["next_token"][1], vector["next_sibling"][1])
        assert tree.parents == (-1, 0, 1, 2, 0, 4)
        assert tree.links[1] == (-1, 4, -1, -1, -1, -1)  # ours ascend: 1 -> 4

    def test_the_tree_of_the_module(self) -> None:
        tree = DraftTree((-1, 0, 0, 1, 2))
        assert rows(tree) == ["10000", "11000", "10100", "11010", "10101"]
        assert tree.path(4) == (0, 2, 4)


class TestShapes:
    def test_named(self) -> None:
        assert DraftTree.chain(4).parents == (-1, 0, 1, 2)
        assert DraftTree.star(4).parents == (-1, 0, 0, 0)
        assert DraftTree.comb(6).parents == (-1, 0, 0, 2, 2, 4)
        assert DraftTree.random(50, 1) == DraftTree.random(50, 1) != DraftTree.random(50, 2)

    @pytest.mark.parametrize("nodes", [0, -1, MAX_NODES + 1])
    @pytest.mark.parametrize("kind", ["chain", "star", "comb", "random"])
    def test_no_tree_of_that_size(self, kind: str, nodes: int) -> None:
        seed = (0,) if kind == "random" else ()
        with pytest.raises(TreeError, match=f"entries; a tree has 1 to {MAX_NODES}"):
            getattr(DraftTree, kind)(nodes, *seed)

    def test_the_largest(self) -> None:
        tree = DraftTree.chain(MAX_NODES)
        assert tree.mask_bits.shape == (1025, 17)
        assert tree.mask_bits[-1].tolist() == [-1] * 16 + [1]
        assert tree.depths[-1] == 1024


class TestRoundTrips:
    @several
    @given(draft_trees())
    def test_visible_is_self_and_ancestors(self, tree: DraftTree) -> None:
        for node in range(len(tree)):
            seen = set(np.flatnonzero(tree.visible[node]).tolist())
            assert seen == ancestors(tree, node) == set(tree.path(node))
            assert tree.depths[node] == len(seen) - 1

    @several
    @given(draft_trees())
    def test_visible(self, tree: DraftTree) -> None:
        assert DraftTree.from_visible(tree.visible) == tree

    @several
    @given(draft_trees())
    def test_links(self, tree: DraftTree) -> None:
        assert DraftTree.from_links(*tree.links) == tree

    @several
    @given(draft_trees())
    def test_mask_bits(self, tree: DraftTree) -> None:
        words = tree.mask_bits
        assert words.shape == (len(tree), mask_words(len(tree)))
        assert words.dtype == np.int64
        assert np.array_equal(unpack_words(words, len(tree)), tree.visible)
        for node, row in enumerate(words.tolist()):  # by the definition, in whole numbers
            number = sum((word % 2**64) << (64 * i) for i, word in enumerate(row))
            assert number == sum(1 << seen for seen in tree.path(node))

    @several
    @given(draft_trees(), st.integers(0, 3))
    def test_more_words_than_needed_are_zero(self, tree: DraftTree, extra: int) -> None:
        least = mask_words(len(tree))
        wide = pack_words(tree.visible, least + extra)
        assert np.array_equal(wide[:, :least], tree.mask_bits)
        assert not wide[:, least:].any()

    @several
    @given(draft_trees())
    def test_children(self, tree: DraftTree) -> None:
        pairs = {(p, c) for p, kids in enumerate(tree.children) for c in kids}
        assert pairs == {(p, c) for c, p in enumerate(tree.parents) if p >= 0}
        assert all(list(kids) == sorted(kids) for kids in tree.children)

    @pytest.mark.parametrize(("nodes", "words"), [(0, 1), (1, 1), (64, 1), (65, 2), (1025, 17)])
    def test_mask_words(self, nodes: int, words: int) -> None:
        assert mask_words(nodes) == words


class TestAcceptWalk:
    @several
    @given(draft_trees(40), st.data())
    def test_by_the_definition(self, tree: DraftTree, data: st.DataObject) -> None:
        """Three token ids, 0 among them, so that they repeat among siblings and down a path."""
        ids = st.lists(st.integers(0, 2), min_size=len(tree), max_size=len(tree))
        tokens, target = data.draw(ids), data.draw(ids)
        accepted, bonus = accept_walk(tree, tokens, target)
        assert accepted == tree.path(accepted[-1])
        for node, following in pairwise(accepted):
            same = [kid for kid in tree.children[node] if tokens[kid] == target[node]]
            assert following == same[0]
        assert bonus == target[accepted[-1]]
        assert all(tokens[kid] != bonus for kid in tree.children[accepted[-1]])

    def test_token_zero_is_ordinary(self) -> None:
        assert accept_walk(DraftTree.chain(3), [5, 0, 0], [0, 0, 0]) == ((0, 1, 2), 0)
        assert accept_walk(DraftTree.star(3), [0, 7, 0], [0, 8, 9]) == ((0, 2), 9)

    def test_the_first_of_equal_siblings(self) -> None:
        """The other one's child is never reached."""
        tree = DraftTree((-1, 0, 0, 2))
        assert accept_walk(tree, [9, 4, 4, 6], [4, 6, 6, 1]) == ((0, 1), 6)

    def test_the_root_token_is_not_looked_at(self) -> None:
        tree = DraftTree.chain(2)
        assert accept_walk(tree, [-7, 3], [3, 4]) == accept_walk(tree, [3, 3], [3, 4])

    def test_nothing_accepted_still_commits_the_bonus(self) -> None:
        assert accept_walk(DraftTree.star(3), [0, 1, 2], [3, 1, 2]) == ((0,), 3)
        assert accept_walk(DraftTree((-1,)), [0], [0]) == ((0,), 0)

    def test_lengths(self) -> None:
        with pytest.raises(TreeError, match="node_tokens has 1 entries; the tree has 2 nodes"):
            accept_walk(DraftTree.chain(2), [1], [1, 2])
        with pytest.raises(TreeError, match="target_tokens has 3 entries; the tree has 2 nodes"):
            accept_walk(DraftTree.chain(2), [1, 2], [1, 2, 3])


class TestErrors:
    """Messages name index, value and rule."""

    @pytest.mark.parametrize(
        ("parents", "message"),
        [
            ((), "parents has 0 entries; a tree has 1 to 1025"),
            ((0,), "parents[0] is 0; node 0 is the root: it must be -1"),
            ((-1, -1), "parents[1] is -1; a parent's index must lie in 0..0"),
            ((-1, 0, 2), "parents[2] is 2; a parent's index must lie in 0..1"),
            (
                (-1, 3, 0, 0),
                "parents[1] is 3; a parent's index must lie in 0..0, below its",
            ),
        ],
    )
    def test_parents(self, parents: tuple[int, ...], message: str) -> None:
        with pytest.raises(TreeError, match=re.escape(message)):
            DraftTree(parents)

    @pytest.mark.parametrize(
        ("child", "sibling", "message"),
        [
            ([], [], "first_child is empty"),
            ([-1, -1], [-1], "first_child has 2 entries and next_sibling 1"),
            ([7, -1], [-1, -1], "node 0 links to 7; a link must lead to a node of 0..1"),
            ([-2, -1], [-1, -1], "node 0 links to -2"),
            ([1, 0], [-1, -1], "node 1 links to 0"),  # a circle through the root
            ([1, -1], [-1, 1], "node 0 links to 1"),  # its own sibling
            ([1, 2, -1], [-1, 2, -1], "node 1 links to 2"),  # two links to one node
            ([1, -1, -1], [-1, -1, -1], "node 2 is reached by no link"),
            ([2, -1, 1], [-1, -1, -1], "parents[1] is 2"),  # a child before its parent
        ],
    )
    def test_links(self, child: list[int], sibling: list[int], message: str) -> None:
        with pytest.raises(TreeError, match=re.escape(message)):
            DraftTree.from_links(child, sibling)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (["1"] * 2, "visible has shape (2, 1); it must be square"),
            (["0"], "row 0 of the mask shows nodes []"),
            (["10", "10"], "row 1 of the mask shows nodes [0]"),  # not itself
            (["11", "11"], "row 0 of the mask shows nodes [0, 1]"),  # a later node
            (["10", "01"], "parents[1] is -1"),  # a second root
            (["100", "110", "011"], "row 2 of the mask shows nodes [1, 2]; a node sees itself and "
             "its ancestors, here [0, 1, 2]"),
            (["100", "110", "111", ], None),
        ],
    )  # fmt: skip
    def test_visible(self, mask: list[str], message: str | None) -> None:
        visible = [[bit == "1" for bit in row] for row in mask]
        if message is None:
            assert DraftTree.from_visible(visible) == DraftTree.chain(len(mask))
            return
        with pytest.raises(TreeError, match=re.escape(message)):
            DraftTree.from_visible(visible)
