"""Cases: everything about a `VerifyBatch` in a few readable words, and the batch made from them.

A case names shapes, tree, page layout and a data seed; tensors are filled from the seed on the
device.  It prints as one line of JSON, which is how a failure is reproduced.  The same case holds
the same shapes and pages everywhere, but a GPU and a CPU draw different numbers from one seed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from verify_attn.ddtree import ddtree
from verify_attn.geometry import AttentionGeometry, preset
from verify_attn.paging import FifoAllocator, churn
from verify_attn.problem import VerifyBatch
from verify_attn.tree import DraftTree, TreeError, mask_words, pack_words
from verify_attn.values import fill_values

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LAYOUTS = ("contiguous", "reversed", "shuffled", "churned", "interleaved")
VALUES = ("planted", "equal", "large", "dominant")
Q_LAYOUTS = ("contiguous", "strided", "offset")
POOL_LAYOUTS = ("packed", "row-stride", "page-stride")

# Written where nothing may be read: a page id that no pool has.  (FlashMLA's tests do the same.)
WILD_PAGE = 2_147_480_000


class CaseError(ValueError):
    """A case that cannot be built; the message names field, value and rule."""


@dataclass(frozen=True)
class Case:
    """One generated problem.

    ``requests``      (prefix_len, tree) pairs; a tree is ``chain:N``, ``star:N``, ``comb:N``,
                      ``random:N:SEED``, ``ddtree:BUDGET:SEED``, ``padding:N`` (rows without bits)
                      or its parents as a list, ``[-1,0,0]``
    ``geometry``      preset name, optionally ``/heads``: ``kimi-k2.6-tp8/3``
    ``layout``        where a request's pages lie in the pool
    ``shared_pages``  leading pages that all requests share with the first, where their prefixes
                      are long enough
    ``tail_rows``     undefined rows of q after the last request's
    ``q``, ``pool``   strides of q and of the pool
    ``node_kv``       the nodes' rows come apart from the pool
    ``slack``         how much looser than the lengths the host bounds are, in tokens
    ``values``        the numbers (see `verify_attn.values`)
    ``high_slots``    pages lie past 2^31 elements into the pool
    """

    requests: tuple[tuple[int, str], ...]
    geometry: str = "tiny"
    dtype: str = "float32"
    page_size: int = 1
    layout: str = "contiguous"
    shared_pages: int = 0
    tail_rows: int = 0
    q: str = "contiguous"
    pool: str = "packed"
    node_kv: bool = False
    slack: int = 0
    values: str = "planted"
    high_slots: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("dtype", tuple(DTYPES)), ("layout", LAYOUTS), ("values", VALUES),
            ("q", Q_LAYOUTS), ("pool", POOL_LAYOUTS),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise CaseError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )
        for name, least in (
            ("page_size", 1), ("shared_pages", 0), ("tail_rows", 0), ("slack", 0), ("seed", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise CaseError(f"{name} is {value!r}; it must be a whole number from {least} up")
        if not self.requests:
            raise CaseError("requests is empty; a case has at least one (prefix_len, tree)")
        for i, (prefix_len, tree) in enumerate(self.requests):
            if prefix_len < 0:
                raise CaseError(f"requests[{i}] has prefix_len {prefix_len}; it must be 0 or more")
            tree_rows(tree)

    def changed(self, **values: Any) -> Case:
        """A copy with other values."""
        return replace(self, **values)

    @property
    def attention_geometry(self) -> AttentionGeometry:
        name, _, heads = self.geometry.partition("/")
        return preset(name).with_heads(int(heads)) if heads else preset(name)

    @property
    def tokens(self) -> int:
        """Prefix tokens of the longest request."""
        return max(prefix_len for prefix_len, _ in self.requests)

    def to_json(self) -> str:
        """One line; fields at their default are left out."""
        given = asdict(self)
        defaults = {f.name: f.default for f in fields(self)}
        kept = {k: v for k, v in given.items() if v != defaults[k]}
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
            pairs = tuple((int(length), str(tree)) for length, tree in given.pop("requests"))
        except (TypeError, ValueError):
            raise CaseError("requests is a list of [prefix_len, tree] pairs") from None
        try:
            return cls(pairs, **given)
        except TypeError as error:
            raise CaseError(f"a field of the case has the wrong type: {error}") from None


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


@dataclass(frozen=True, eq=False)
class Layout:
    """Pages of each request and of the pool, before any tensor is made."""

    tables: list[np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=list)
    pages: int = 0


def lay_out(case: Case, rng: np.random.Generator) -> Layout:
    """Choose every request's pages.  The pool keeps some spare ones, which nobody may read."""
    page = case.page_size
    nodes = [0 if case.node_kv else tree_rows(tree)[0] for _, tree in case.requests]
    counts = [-(-(p + n) // page) for (p, _), n in zip(case.requests, nodes, strict=True)]
    shared = [min(case.shared_pages, p // page, case.requests[0][0] // page)
              for p, _ in case.requests]  # fmt: skip
    own = [c - (s if r else 0) for r, (c, s) in enumerate(zip(counts, shared, strict=True))]
    used = sum(own)
    pages = used + 3 + used // 4
    ids = _page_order(case.layout, own, pages, rng)
    tables: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    start = 0
    for request, count in enumerate(own):
        mine = ids[start : start + count]
        start += count
        tables.append(
            mine if request == 0 else np.concatenate([tables[0][: shared[request]], mine])
        )
    return Layout(tables, pages)


def _page_order(
    layout: str, own: list[int], pages: int, rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Page ids, first all of request 0's in token order, then request 1's ..."""
    used = sum(own)
    if layout == "contiguous":
        return np.arange(1, used + 1)
    if layout == "reversed":
        return np.arange(used, 0, -1)
    if layout == "shuffled":
        return rng.permutation(pages)[:used]
    if layout == "churned":
        allocator = FifoAllocator(pages)
        churn(allocator, rng, load=0.8, steps=40)
        return np.concatenate([allocator.allocate(count) for count in own]).astype(np.int64)
    # interleaved: the first pages of all requests, then all their second pages ...
    order = sorted((i, r) for r, count in enumerate(own) for i in range(count))
    at = {key: 1 + n for n, key in enumerate(order)}
    return np.array([at[i, r] for r, count in enumerate(own) for i in range(count)], dtype=np.int64)


def build(case: Case, device: torch.device | str = "cpu") -> VerifyBatch:
    """The batch of a case, everything that must not be read poisoned with NaN or wild ids."""
    device = torch.device(device)
    geometry, dtype = case.attention_geometry, DTYPES[case.dtype]
    rng = np.random.default_rng(case.seed)
    layout = lay_out(case, rng)
    prefix = np.array([p for p, _ in case.requests], dtype=np.int32)
    trees = [tree_rows(tree) for _, tree in case.requests]
    offsets = np.cumsum([0] + [n for n, _ in trees]).astype(np.int32)
    rows = int(offsets[-1]) + case.tail_rows
    most = max(n for n, _ in trees)
    pages_wide = max(len(t) for t in layout.tables) + case.slack // case.page_size

    table = np.full((len(prefix), max(1, pages_wide)), WILD_PAGE, dtype=np.int32)
    base, pages = _high_base(case, geometry) if case.high_slots else 0, layout.pages
    for request, ids in enumerate(layout.tables):
        table[request, : len(ids)] = ids + base
    words = mask_words(most)
    mask = np.full((rows, words), -1, dtype=np.int64)  # tail rows: any bits
    for request, (count, tree) in enumerate(trees):
        bits = np.zeros((count, count), dtype=np.bool_) if tree is None else tree.visible
        mask[offsets[request] : offsets[request + 1]] = pack_words(bits, words)

    pool = _strided_pool(case, geometry, base + pages, dtype, device)
    node_kv = None
    if case.node_kv:
        node_kv = torch.full((rows, geometry.qk_dim), torch.nan, dtype=dtype, device=device)
    batch = VerifyBatch(
        geometry=geometry,
        q=_strided_q(case, geometry, rows, dtype, device),
        kv_pool=pool,
        page_table=torch.from_numpy(table).to(device),
        prefix_lens=torch.from_numpy(prefix).to(device),
        node_offsets=torch.from_numpy(offsets).to(device),
        tree_mask=torch.from_numpy(mask).to(device),
        softmax_scale=geometry.softmax_scale,
        max_prefix_len=int(prefix.max()) + case.slack,
        max_nodes=most,
        node_kv=node_kv,
        prefix_lens_host=torch.from_numpy(prefix.copy()),
        node_offsets_host=torch.from_numpy(offsets.copy()),
    )
    fill_values(batch, case.values, case.seed, rng)
    return batch


def _strided_q(
    case: Case, geometry: AttentionGeometry, rows: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """q, or a view of a larger tensor; NaN all over, so that what lies between is poison."""
    heads, wide = geometry.heads, geometry.qk_dim
    if case.q == "contiguous":
        return torch.full((rows, heads, wide), torch.nan, dtype=dtype, device=device)
    if case.q == "strided":
        whole = torch.full((rows, heads + 1, wide + 16), torch.nan, dtype=dtype, device=device)
        return whole[:, 1:, 8 : 8 + wide]
    flat = torch.full((1 + rows * heads * wide,), torch.nan, dtype=dtype, device=device)
    return flat[1:].view(rows, heads, wide)  # not even 4-byte aligned


def _strided_pool(
    case: Case, geometry: AttentionGeometry, pages: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    wide, page = geometry.qk_dim, case.page_size
    extra_rows = 1 if case.pool == "page-stride" else 0
    extra_dims = 16 if case.pool == "row-stride" else 0
    shape = (pages, page + extra_rows, wide + extra_dims)
    if case.high_slots and device.type == "cpu":
        # Gigabytes that are never touched cost nothing until they are written.
        whole = torch.empty(shape, dtype=dtype, device=device)
        whole[: min(pages, 64)] = torch.nan
        whole[-layout_pages(case) :] = torch.nan
    else:
        whole = torch.full(shape, torch.nan, dtype=dtype, device=device)
    return whole[:, :page, :wide]


def layout_pages(case: Case) -> int:
    """Pages of the pool that the case's layout spans."""
    return lay_out(case, np.random.default_rng(case.seed)).pages


def _high_base(case: Case, geometry: AttentionGeometry) -> int:
    """The first page whose offset is past 2^31 elements."""
    row = geometry.qk_dim + (16 if case.pool == "row-stride" else 0)
    rows = case.page_size + (1 if case.pool == "page-stride" else 0)
    return -(-(2**31) // (row * rows)) + 1
