"""Cases: everything about a `VerifyBatch` in a few readable words, and the batch made from them.

A case names shapes, tree, page layout and a data seed; tensors are filled from the seed on the
device.  It prints as one line of JSON, which is how a failure is reproduced.  The same case holds
the same shapes and pages everywhere, but a GPU and a CPU draw different numbers from one seed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch

from verify_attn.assemble import (
    KV_DTYPES,
    LAYOUTS,
    POOL_LAYOUTS,
    Q_LAYOUTS,
    TABLE_LAYOUTS,
    Arrangement,
    Content,
    assemble,
)
from verify_attn.ddtree import ddtree
from verify_attn.geometry import AttentionGeometry, preset
from verify_attn.problem import VerifyBatch
from verify_attn.tree import BoolArray, DraftTree, TreeError
from verify_attn.values import VALUES, make_contents

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


MAX_TAIL_ROWS = 4096


class CaseError(ValueError):
    """A case that cannot be built; the message names field, value and rule."""


@dataclass(frozen=True)
class Case(Arrangement):
    """One generated problem: contents and, inherited, their arrangement.

    ``requests``      (prefix_len, tree) pairs; a tree is ``chain:N``, ``star:N``, ``comb:N``,
                      ``random:N:SEED``, ``ddtree:BUDGET:SEED``, ``padding:N`` (rows without bits)
                      or its parents as a list, ``[-1,0,0]``; ``+K`` behind it adds K padding rows
    ``geometry``      preset name, optionally ``/heads``: ``kimi-k2.6-tp8/3``
    ``values``        the numbers (see `verify_attn.values`), drawn from ``seed``
    """

    requests: tuple[tuple[int, str], ...]
    geometry: str = "tiny"
    dtype: str = "float32"
    values: str = "planted"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("dtype", tuple(DTYPES)), ("layout", LAYOUTS), ("values", VALUES),
            ("q", Q_LAYOUTS), ("pool", POOL_LAYOUTS), ("tables", TABLE_LAYOUTS),
            ("kv_dtype", tuple(KV_DTYPES)),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                shown = ", ".join(each or "empty" for each in allowed)
                raise CaseError(f"{name} is {getattr(self, name)!r}; it must be one of {shown}")
        for name, least in (
            ("page_size", 1), ("shared_pages", 0), ("tail_rows", 0), ("slack", 0),
            ("node_slack", 0), ("seed", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise CaseError(f"{name} is {value!r}; it must be a whole number from {least} up")
        for name in ("node_kv", "host_copies", "high_slots"):
            if not isinstance(getattr(self, name), bool):
                raise CaseError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if self.tail_rows > MAX_TAIL_ROWS:
            raise CaseError(f"tail_rows is {self.tail_rows}; at most {MAX_TAIL_ROWS}")
        try:
            _ = self.attention_geometry
        except ValueError as error:
            raise CaseError(f"geometry is {self.geometry!r}: {error}") from None
        if not self.requests:
            raise CaseError("requests is empty; a case has at least one (prefix_len, tree)")
        for i, (prefix_len, _) in enumerate(self.requests):
            if type(prefix_len) is not int or prefix_len < 0:
                raise CaseError(
                    f"requests[{i}] has prefix_len {prefix_len!r}; it must be a whole number from "
                    "0 up"
                )
        for tree in dict.fromkeys(tree for _, tree in self.requests):
            visible_rows(tree)

    @property
    def attention_geometry(self) -> AttentionGeometry:
        name, _, heads = self.geometry.partition("/")
        return preset(name).with_heads(int(heads)) if heads else preset(name)

    @property
    def arrangement(self) -> Arrangement:
        """The fields that say how contents lie in memory."""
        return Arrangement(**{f.name: getattr(self, f.name) for f in fields(Arrangement)})

    @property
    def tokens(self) -> int:
        """Prefix tokens of the longest request."""
        return max(prefix_len for prefix_len, _ in self.requests)

    @property
    def pool_dtype(self) -> torch.dtype:
        """Of the KV pool: ``kv_dtype``, or q's."""
        return KV_DTYPES[self.kv_dtype] or DTYPES[self.dtype]

    def to_json(self) -> str:
        """One line; fields at their default are left out."""
        given = asdict(self)
        defaults = {f.name: f.default for f in fields(self)}
        kept = {"requests": given.pop("requests")}
        kept |= {k: v for k, v in given.items() if v != defaults[k]}
        return json.dumps(kept, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The inverse of `to_json`; raises `CaseError` for anything else."""
        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise CaseError(f"the case is not JSON ({error}): {text[:200]!r}") from None
        names = [f.name for f in fields(cls)]
        if not isinstance(given, dict) or set(given) - set(names) or "requests" not in given:
            raise CaseError(
                f"a case is a JSON object with requests and any of {', '.join(names)}; "
                f"given: {text[:200]}"
            )
        try:
            pairs = tuple((length, _tree_text(tree)) for length, tree in given.pop("requests"))
        except (TypeError, ValueError):
            raise CaseError("requests is a list of [prefix_len, tree] pairs") from None
        try:
            return cls(pairs, **given)
        except TypeError as error:
            raise CaseError(f"a field of the case has the wrong type: {error}") from None


def _tree_text(tree: object) -> str:
    """A tree may be given as JSON's own list of parents too."""
    return json.dumps(tree, separators=(",", ":")) if isinstance(tree, list) else str(tree)


def visible_rows(text: str) -> BoolArray:
    """[n, n]: which nodes each row of a case's tree sees."""
    tree_text, plus, padding = text.partition("+")
    if plus and not (padding.isdecimal() and int(padding) >= 1):
        raise CaseError(
            f"tree {text[:80]!r} adds {padding!r} padding rows; at least 1 is asked for"
        )
    nodes, tree = tree_rows(tree_text)
    rows = nodes + int(padding or 0)
    visible = np.zeros((rows, rows), dtype=np.bool_)
    if tree is not None:
        visible[:nodes, :nodes] = tree.visible
    return visible


def tree_rows(text: str) -> tuple[int, DraftTree | None]:
    """(nodes, tree) of a case's tree; the tree is None where all its rows are padding."""
    try:
        if text.startswith("["):
            tree = DraftTree(tuple(int(p) for p in json.loads(text)))
            return len(tree), tree
        kind, *numbers = text.split(":")
        sizes = [int(n) for n in numbers]
        if kind == "padding" and len(sizes) == 1 and sizes[0] >= 1:
            return sizes[0], None
        if kind in ("chain", "star", "comb") and len(sizes) == 1 and sizes[0] >= 1:
            tree = getattr(DraftTree, kind)(sizes[0])
        elif kind == "random" and len(sizes) == 2 and sizes[0] >= 1:
            tree = DraftTree.random(sizes[0], sizes[1])
        elif kind == "ddtree" and len(sizes) == 2:
            tree = _random_ddtree(*sizes)
        else:
            raise CaseError(
                f"tree is {text!r}; it must be chain:N, star:N, comb:N, random:N:SEED, "
                "ddtree:BUDGET:SEED, padding:N with N >= 1, or a list of parents such as [-1,0,0]"
            )
    except (TreeError, json.JSONDecodeError) as error:
        raise CaseError(f"tree {text[:80]!r}: {error}") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, CaseError):
            raise
        raise CaseError(f"tree {text[:80]!r} holds something that is no whole number") from None
    return len(tree), tree


def _random_ddtree(budget: int, seed: int) -> DraftTree:
    """A DDTree from random distributions: 15 positions (block size 16), some flat, some peaked."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(15, 64)) * rng.uniform(0.5, 4.0)
    return ddtree(logits, budget).tree


def build(case: Case, device: torch.device | str = "cpu") -> VerifyBatch:
    """The batch of a case: its contents, arranged."""
    return assemble(case.attention_geometry, contents(case, device), case.arrangement)


def contents(case: Case, device: torch.device | str = "cpu") -> list[Content]:
    """q, KV rows and visible nodes of each request, from the seed."""
    return make_contents(
        case.attention_geometry,
        [prefix_len for prefix_len, _ in case.requests],
        [visible_rows(tree) for _, tree in case.requests],
        kind=case.values,
        arrangement=case.arrangement,
        dtype=DTYPES[case.dtype],
        device=torch.device(device),
    )
