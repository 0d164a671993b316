"""From the contents of requests to a `VerifyBatch`: pages chosen, rows placed, the rest poisoned.

The same contents can be assembled in many arrangements (other page sizes, other pages, alone or
in a batch, with padding); attention must not notice.  What may not be read is poison: NaN in rows
and page tails that no token owns and between strided rows, wild ids in unused table entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from verify_attn.geometry import AttentionGeometry
from verify_attn.paging import FifoAllocator, churn
from verify_attn.problem import FP8_DTYPES, VerifyBatch
from verify_attn.tree import BoolArray, mask_words, pack_words

LAYOUTS = ("contiguous", "reversed", "shuffled", "churned", "interleaved")
Q_LAYOUTS = ("contiguous", "strided", "offset")
POOL_LAYOUTS = ("packed", "row-stride", "page-stride")
TABLE_LAYOUTS = ("packed", "strided")
KV_DTYPES = {"": None, "float8_e4m3fn": torch.float8_e4m3fn}
# Of an fp8 pool.  Rows are some 0.4 a dimension and up to 28: in e4m3 (2^-6 to 448 at full
# precision) 16 times that.  A power of two, so that what the pool holds is exact in q's dtype too.
KV_SCALE = 2.0**-4
WILD_PAGE = 2_147_480_000  # no pool has this page
SPARE_PAGES = 3

Pages = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Content:
    """One request, free of any layout.

    ``q`` [n, H, D], ``prefix`` [prefix_len, D], ``nodes`` [n, D] (the nodes' KV rows),
    ``visible`` [n, n] bool (a padding row is all false).
    """

    q: torch.Tensor
    prefix: torch.Tensor
    nodes: torch.Tensor
    visible: BoolArray


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How contents lie in memory.

    ``layout``        where a request's pages lie in the pool
    ``shared_pages``  leading pages that all requests share with the first, where their prefixes
                      are long enough
    ``tail_rows``     undefined rows of q after the last request's
    ``q``, ``pool``   strides of q and of the pool
    ``node_kv``       the nodes' rows come apart from the pool
    ``slack``, ``node_slack``   how much looser than the lengths the host bounds are, in tokens
                      and in nodes
    ``tables``        strides of the page table, the tree mask and ``node_kv``
    ``host_copies``   lengths and offsets come on the host too
    ``high_slots``    pages lie past 2^31 elements into the pool
    ``kv_dtype``      of the pool: an fp8 type, or empty for q's.  With fp8, q holds only numbers
                      that fp8 holds too, so that a kernel may take its products in it
    ``seed``          of the pages chosen
    """

    page_size: int = 1
    layout: str = "contiguous"
    shared_pages: int = 0
    tail_rows: int = 0
    q: str = "contiguous"
    pool: str = "packed"
    node_kv: bool = False
    slack: int = 0
    node_slack: int = 0
    tables: str = "packed"
    host_copies: bool = True
    high_slots: bool = False
    kv_dtype: str = ""
    seed: int = 0

    def changed(self, **values: Any) -> Self:
        """A copy with other values."""
        return replace(self, **values)


def shared_pages(wanted: int, page_size: int, prefix_lens: list[int]) -> list[int]:
    """Leading pages that each request shares with the first: wholly inside both prefixes."""
    return [min(wanted, length // page_size, prefix_lens[0] // page_size) for length in prefix_lens]


def lay_out(
    how: Arrangement, prefix_lens: list[int], nodes: list[int], rng: np.random.Generator
) -> tuple[list[Pages], int]:
    """Page ids of each request in token order, and the pages that the pool needs."""
    page = how.page_size
    stored = [0 if how.node_kv else n for n in nodes]
    counts = [-(-(p + n) // page) for p, n in zip(prefix_lens, stored, strict=True)]
    shared = shared_pages(how.shared_pages, page, prefix_lens)
    own = [count - (shared[r] if r else 0) for r, count in enumerate(counts)]
    pages = sum(counts) + SPARE_PAGES + sum(counts) // 4  # enough without sharing too
    ids = _page_order(how.layout, own, pages, rng)
    tables: list[Pages] = []
    start = 0
    for request, count in enumerate(own):
        mine = ids[start : start + count]
        start += count
        leading = tables[0][: shared[request]] if request else mine[:0]
        tables.append(np.concatenate([leading, mine]))
    return tables, pages


def _page_order(layout: str, own: list[int], pages: int, rng: np.random.Generator) -> Pages:
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
    index = np.concatenate([np.arange(count) for count in own])
    order = np.argsort(index, kind="stable")
    ids = np.empty(used, dtype=np.int64)
    ids[order] = np.arange(1, used + 1)
    return ids


def assemble(
    geometry: AttentionGeometry,
    contents: list[Content],
    how: Arrangement,
    like: VerifyBatch | None = None,
) -> VerifyBatch:
    """Put contents into a batch.

    ``like`` makes the shapes and bounds those of another batch, for kernels that plan once per
    shape and bounds; the contents must fit into them.
    """
    device, dtype = contents[0].q.device, contents[0].q.dtype
    rng = np.random.default_rng(how.seed)
    prefix_lens = [len(c.prefix) for c in contents]
    nodes = [len(c.q) for c in contents]
    tables, pages = lay_out(how, prefix_lens, nodes, rng)
    shared = shared_pages(how.shared_pages, how.page_size, prefix_lens)
    offsets = np.cumsum([0, *nodes]).astype(np.int32)
    rows = int(offsets[-1]) + how.tail_rows
    wide = max(1, max(len(t) for t in tables) + how.slack // how.page_size)
    bounds = (max(prefix_lens) + how.slack, max(nodes) + how.node_slack)
    base = _high_base(how, geometry) if how.high_slots else 0
    if like is not None:
        rows, wide = like.rows, like.page_table.shape[1]
        bounds = (like.max_prefix_len, like.max_nodes)
        pages = like.kv_pool.shape[0] - base

    words = mask_words(bounds[1])
    table = _empty(how, (len(contents), wide), WILD_PAGE, torch.int32)
    mask = _empty(how, (rows, words), -1, torch.int64)  # rows of no request: any bits
    for request, content in enumerate(contents):
        table[request, : len(tables[request])] = torch.from_numpy(tables[request] + base)
        bits = torch.from_numpy(pack_words(content.visible, words))
        mask[offsets[request] : offsets[request + 1]] = bits

    q = _empty_q(how, geometry, rows, dtype, device)
    pool_dtype = KV_DTYPES[how.kv_dtype] or dtype
    pool = _empty_pool(how, geometry, base, pages, pool_dtype, device)
    node_kv = None
    if how.node_kv:
        node_kv = _empty(how, (rows, geometry.qk_dim), torch.nan, dtype, device)
    for request, content in enumerate(contents):
        own = slice(int(offsets[request]), int(offsets[request + 1]))
        q[own] = content.q
        stored = content.prefix
        if node_kv is not None:
            node_kv[own] = content.nodes
        else:
            stored = torch.cat([content.prefix, content.nodes])
        start = shared[request] * how.page_size if request else 0  # the first request's rows
        if start < len(stored):
            position = torch.arange(start, len(stored), device=device)
            ids = torch.from_numpy(tables[request] + base).to(device)
            _store(pool, ids[position // how.page_size], position % how.page_size, stored[start:])

    prefix = np.array(prefix_lens, dtype=np.int32)
    return VerifyBatch(
        geometry=geometry,
        q=q,
        kv_pool=pool,
        page_table=_moved(table, device),
        prefix_lens=torch.from_numpy(prefix).to(device, copy=True),
        node_offsets=torch.from_numpy(offsets).to(device, copy=True),
        tree_mask=_moved(mask, device),
        softmax_scale=geometry.softmax_scale,
        max_prefix_len=bounds[0],
        max_nodes=bounds[1],
        kv_scale=KV_SCALE if how.kv_dtype else 1.0,
        node_kv=node_kv,
        prefix_lens_host=torch.from_numpy(prefix) if how.host_copies else None,
        node_offsets_host=torch.from_numpy(offsets) if how.host_copies else None,
    )


def _empty(
    how: Arrangement,
    shape: tuple[int, int],
    poison: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Rows of a table, or the middle of longer rows; poison all over."""
    rows, wide = shape
    if how.tables == "packed":
        return torch.full((rows, wide), poison, dtype=dtype, device=device)
    return torch.full((rows, wide + 16), poison, dtype=dtype, device=device)[:, 8 : 8 + wide]


def _moved(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A table on another device, at the same strides."""
    if device.type == "cpu":
        return table
    whole = table if table._base is None else table._base
    return whole.to(device).as_strided(table.shape, table.stride(), table.storage_offset())


def _empty_q(
    how: Arrangement, geometry: AttentionGeometry, rows: int, dtype: torch.dtype, device: Any
) -> torch.Tensor:
    """q, or a view of a larger tensor; NaN all over, so that what lies between is poison."""
    heads, wide = geometry.heads, geometry.qk_dim
    if how.q == "contiguous":
        return torch.full((rows, heads, wide), torch.nan, dtype=dtype, device=device)
    if how.q == "strided":
        whole = torch.full((rows, heads + 1, wide + 16), torch.nan, dtype=dtype, device=device)
        return whole[:, 1:, 8 : 8 + wide]
    flat = torch.full((1 + rows * heads * wide,), torch.nan, dtype=dtype, device=device)
    return flat[1:].view(rows, heads, wide)  # the first element is not even 4-byte aligned


def _page_shape(how: Arrangement, geometry: AttentionGeometry) -> tuple[int, int]:
    """Rows and dims that a page takes in memory, gaps included."""
    extra_rows = 1 if how.pool == "page-stride" else 0
    extra_dims = 16 if how.pool == "row-stride" else 0
    return how.page_size + extra_rows, geometry.qk_dim + extra_dims


def _empty_pool(
    how: Arrangement,
    geometry: AttentionGeometry,
    base: int,
    pages: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    shape = (base + pages, *_page_shape(how, geometry))
    if base and device.type == "cpu":
        # Gigabytes cost nothing until they are written, so only both ends are poisoned.
        whole = torch.empty(shape, dtype=dtype, device=device)
        whole[:64] = torch.nan
        whole[base:] = torch.nan
    else:
        whole = torch.full(shape, torch.nan, dtype=dtype, device=device)
    return whole[:, : how.page_size, : geometry.qk_dim]


def _store(
    pool: torch.Tensor, pages: torch.Tensor, rows: torch.Tensor, values: torch.Tensor
) -> None:
    """Put rows into the pool; into an fp8 pool as bytes, since not every torch indexes fp8."""
    if pool.dtype in FP8_DTYPES:
        values = quantised(values, pool.dtype, KV_SCALE).view(torch.uint8)
        pool = pool.view(torch.uint8)
    pool[pages, rows] = values


def quantised(values: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """``values / scale`` in fp8, saturating: some versions of torch make NaN of what is larger."""
    most = torch.finfo(dtype).max
    return (values.float() / scale).clamp(-most, most).to(dtype)


def _high_base(how: Arrangement, geometry: AttentionGeometry) -> int:
    """The first page whose offset is past 2^31 elements."""
    rows, dims = _page_shape(how, geometry)
    return int(-(-(2**31) // (rows * dims)) + 1)
