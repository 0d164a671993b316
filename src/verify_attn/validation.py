"""The rules of a `VerifyBatch`, each broken rule named with field, index, value and rule."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt
import torch

from verify_attn.geometry import AttentionGeometry
from verify_attn.problem import FP8_DTYPES, VerifyBatch
from verify_attn.tree import mask_words, unpack_words

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TENSORS = (
    "q", "kv_pool", "page_table", "prefix_lens", "node_offsets", "tree_mask", "node_kv",
    "prefix_lens_host", "node_offsets_host",
)  # fmt: skip
OPTIONAL = ("node_kv", "prefix_lens_host", "node_offsets_host")
Ints = npt.NDArray[np.int64]


class BatchError(ValueError):
    """A `VerifyBatch` that breaks a rule."""


def validate_batch(batch: VerifyBatch) -> None:
    """Raise `BatchError` at the first broken rule; shapes come first, then values."""
    _types(batch)
    _shapes(batch)
    prefix, offsets = _lengths(batch)
    _mask(batch, offsets)
    _pages(batch, prefix, offsets)


def _need(condition: bool, field: str, given: object, rule: str) -> None:
    if not condition:
        raise BatchError(f"{field} is {given}; {rule}")


def _types(batch: VerifyBatch) -> None:
    for names, kind, rule in (
        (("geometry",), AttentionGeometry, "it must be an AttentionGeometry"),
        (TENSORS, torch.Tensor, "it must be a torch.Tensor"),
        (("softmax_scale", "kv_scale"), Real, "it must be a number on the host"),
        (("max_prefix_len", "max_nodes"), Integral, "it must be a whole number on the host"),
    ):
        for name in names:
            value = getattr(batch, name)
            if value is None and name in OPTIONAL:
                continue
            _need(isinstance(value, kind), name, f"a {type(value).__name__}", rule)


def _shapes(batch: VerifyBatch) -> None:
    geometry = batch.geometry
    wide = geometry.qk_dim
    requests = batch.prefix_lens.shape[0] if batch.prefix_lens.ndim else 0
    shape = tuple(batch.q.shape)
    _need(
        len(shape) == 3 and shape[1:] == (geometry.heads, wide),
        "q.shape", shape, f"it must be [N, {geometry.heads}, {wide}] (heads, D_c + D_r)",
    )  # fmt: skip
    shape = tuple(batch.kv_pool.shape)
    _need(
        len(shape) == 3 and shape[2] == wide and min(shape[:2]) >= 1,
        "kv_pool.shape", shape, f"it must be [pages, page_size, {wide}], none of them 0",
    )  # fmt: skip
    if batch.node_kv is not None:
        shape = tuple(batch.node_kv.shape)
        _need(
            shape == (batch.rows, wide), "node_kv.shape", shape, f"it must be {(batch.rows, wide)}"
        )
        _need(
            batch.node_kv.dtype == batch.q.dtype,
            "node_kv.dtype", batch.node_kv.dtype, f"it must be q's, {batch.q.dtype}",
        )  # fmt: skip
    _need(requests >= 1, "prefix_lens.shape", tuple(batch.prefix_lens.shape), "[R] with R >= 1")
    for field, tensor, dims, dtype in (
        ("page_table", batch.page_table, (requests, None), torch.int32),
        ("prefix_lens", batch.prefix_lens, (requests,), torch.int32),
        ("node_offsets", batch.node_offsets, (requests + 1,), torch.int32),
        ("tree_mask", batch.tree_mask, (batch.rows, None), torch.int64),
        ("prefix_lens_host", batch.prefix_lens_host, (requests,), torch.int32),
        ("node_offsets_host", batch.node_offsets_host, (requests + 1,), torch.int32),
    ):
        if tensor is None:
            continue
        fits = tensor.ndim == len(dims) and all(
            want in (None, have) for want, have in zip(dims, tensor.shape, strict=True)
        )
        _need(fits, f"{field}.shape", tuple(tensor.shape), f"it must be {dims} (None: any)")
        _need(tensor.dtype == dtype, f"{field}.dtype", tensor.dtype, f"it must be {dtype}")
        wanted = torch.device("cpu") if field.endswith("_host") else batch.device
        _need(tensor.device == wanted, f"{field}.device", tensor.device, f"it must be {wanted}")
        _strides(field, tensor)
    for field, tensor in (("q", batch.q), ("kv_pool", batch.kv_pool), ("node_kv", batch.node_kv)):
        if tensor is not None:
            _need(
                tensor.device == batch.device, f"{field}.device", tensor.device, "all on one device"
            )
            _strides(field, tensor)
    _need(batch.q.dtype in FLOATS, "q.dtype", batch.q.dtype, f"it must be one of {FLOATS}")
    fp8 = batch.kv_pool.dtype in FP8_DTYPES
    _need(
        fp8 or batch.kv_pool.dtype == batch.q.dtype,
        "kv_pool.dtype", batch.kv_pool.dtype, "it must be q's, or an fp8 type",
    )  # fmt: skip
    scale = batch.kv_scale
    _need(math.isfinite(scale) and scale > 0, "kv_scale", scale, "it must be positive and finite")
    _need(fp8 or scale == 1.0, "kv_scale", scale, "it must be 1.0: the pool is not fp8")
    scale = batch.softmax_scale
    _need(
        math.isfinite(scale) and scale > 0, "softmax_scale", scale, "it must be positive and finite"
    )


def _strides(field: str, tensor: torch.Tensor) -> None:
    last = tensor.stride(-1) if tensor.shape[-1] > 1 else 1  # a dimension of 1 is never stepped
    _need(last == 1, f"{field}.stride", tensor.stride(), "the last must be 1")


def _lengths(batch: VerifyBatch) -> tuple[Ints, Ints]:
    prefix = batch.prefix_lens.cpu().numpy().astype(np.int64)
    offsets = batch.node_offsets.cpu().numpy().astype(np.int64)
    for field, host, device in (
        ("prefix_lens_host", batch.prefix_lens_host, prefix),
        ("node_offsets_host", batch.node_offsets_host, offsets),
    ):
        if host is not None:
            _all(host.numpy() == device, field, host.numpy(), "it must equal the device's copy")
    _all(prefix >= 0, "prefix_lens", prefix, "a length must not be negative")
    _need(offsets[0] == 0, "node_offsets[0]", offsets[0], "it must be 0")
    _all(np.diff(offsets) >= 0, "node_offsets", offsets[1:], "offsets must not fall", shift=1)
    _need(
        offsets[-1] <= batch.rows,
        f"node_offsets[{batch.requests}]", offsets[-1], f"it must be at most q's {batch.rows} rows",
    )  # fmt: skip
    _need(
        batch.max_prefix_len >= prefix.max(initial=0),
        "max_prefix_len", batch.max_prefix_len, f"prefix_lens holds {prefix.max(initial=0)}",
    )  # fmt: skip
    most = int(np.diff(offsets).max(initial=0))
    _need(batch.max_nodes >= most, "max_nodes", batch.max_nodes, f"a request has {most} nodes")
    words = batch.tree_mask.shape[1]
    _need(
        words >= mask_words(batch.max_nodes),
        "tree_mask.shape", tuple(batch.tree_mask.shape),
        f"max_nodes {batch.max_nodes} needs {mask_words(batch.max_nodes)} words a row",
    )  # fmt: skip
    return prefix, offsets


def _all(good: npt.ArrayLike, field: str, values: Ints, rule: str, shift: int = 0) -> None:
    wrong = np.flatnonzero(~np.asarray(good))
    if wrong.size:
        i = int(wrong[0])
        raise BatchError(f"{field}[{i + shift}] is {values[i]}; {rule}")


def _mask(batch: VerifyBatch, offsets: Ints) -> None:
    bits = batch.tree_mask.cpu().numpy()
    width = bits.shape[1] * 64
    for request in range(batch.requests):
        start, end = int(offsets[request]), int(offsets[request + 1])
        nodes = end - start
        rows = unpack_words(bits[start:end], width)
        for i, row in enumerate(rows):
            shown = np.flatnonzero(row)
            if not shown.size:
                continue  # padding
            where = f"tree_mask[{start + i}] (request {request}, node {i})"
            if shown[-1] >= nodes:
                raise BatchError(
                    f"{where} sets bit {shown[-1]}; the request has {nodes} nodes: bits at or "
                    "above the node count must be 0"
                )
            if shown[-1] != i:
                late = shown[-1] > i
                raise BatchError(
                    f"{where} sets bit {shown[-1]}"
                    + ("; a parent's index must be below its child's" if late else f" but not {i}")
                    + "; a node sees itself and its ancestors: put the nodes in topological order"
                )
            parent = int(shown[-2]) if shown.size > 1 else -1
            if parent < 0 < i:
                raise BatchError(
                    f"{where} shows node {i} alone; only node 0 is a root: every other node sees "
                    "its parent too"
                )
            path = np.zeros_like(row) if parent < 0 else rows[parent].copy()
            path[i] = True
            if not np.array_equal(path, row):
                raise BatchError(
                    f"{where} shows nodes {shown.tolist()}; its parent {parent} shows "
                    f"{np.flatnonzero(rows[parent]).tolist()}: a node sees its parent's nodes and "
                    "itself, no others"
                )


def _pages(batch: VerifyBatch, prefix: Ints, offsets: Ints) -> None:
    table = batch.page_table.cpu().numpy().astype(np.int64)
    page_size, pages = batch.page_size, batch.kv_pool.shape[0]
    nodes = np.diff(offsets) if batch.node_kv is None else np.zeros_like(prefix)
    owner = np.full(pages, -1, dtype=np.int64)  # last request seen in a page
    shareable = np.zeros(pages, dtype=np.bool_)  # wholly inside that request's prefix
    for request in range(batch.requests):
        tokens = int(prefix[request] + nodes[request])
        used = -(-tokens // page_size)
        if used > table.shape[1]:
            raise BatchError(
                f"prefix_lens[{request}] + nodes is {tokens} tokens, {used} pages of {page_size}; "
                f"page_table has room for {table.shape[1]}: lengths must fit the page table"
            )
        ids = table[request, :used]
        _all((ids >= 0) & (ids < pages), f"page_table[{request}]", ids,
             f"the pool has pages 0..{pages - 1}")  # fmt: skip
        unique, first = np.unique(ids, return_index=True)
        if unique.size < ids.size:
            twice = int(np.setdiff1d(np.arange(ids.size), first)[0])
            raise BatchError(
                f"page_table[{request}][{twice}] is {ids[twice]}, which the request uses already; "
                "a slot may hold one token of a request"
            )
        inside = (np.arange(used) + 1) * page_size <= prefix[request]
        shared = owner[ids] >= 0
        bad = np.flatnonzero(shared & ~(inside & shareable[ids]))
        if bad.size:
            i = int(bad[0])
            raise BatchError(
                f"page_table[{request}][{i}] is {ids[i]}, a page of request {owner[ids[i]]} too; a "
                "shared page must lie wholly inside both prefixes"
            )
        shareable[ids] = np.where(shared, shareable[ids] & inside, inside)
        owner[ids] = request
