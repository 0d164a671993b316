"""A `VerifyBatch` in the layouts of other people's kernels, and their masks back in ours.

For ``prepare`` and for plain functions: these allocate and may synchronise.  Letters as in
`verify_attn.problem`; further, n nodes and p prefix tokens of one request, and
N' = node_offsets[R], the rows of q that belong to a request.  Results are on the batch's device.

===================  ============================================================================
`full_mask`          SGLang ``TreeMaskMode.FULL_MASK``; FlashInfer ``custom_mask`` before packing
`packed_full_mask`   FlashInfer ``packed_custom_mask``; SGLang ``pack_verify_mask_into``
`tree_only_mask`     SGLang ``TreeMaskMode.QLEN_ONLY``
`packed_mask`        SGLang ``QLEN_ONLY_BITPACKING`` (8, 16, 32), TensorRT-LLM (32), XQA (16)
`kv_indices`         SGLang ``kv_indptr, kv_indices``; FlashInfer's with page_size 1
`node_rows`          SGLang ``k_extend``
===================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from verify_attn.problem import FP8_DTYPES, VerifyBatch
from verify_attn.tree import (
    BoolArray,
    DraftTree,
    TreeError,
    mask_words,
    pack_words,
    unpack_words,
)

Ints = torch.Tensor | Sequence[int]

# Signed, as PyTorch computes with those; ``.view(torch.uint32)`` where a kernel insists.
WORD_DTYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class LayoutError(ValueError):
    """Something that does not fit a layout; the message has the value, the rule and the remedy."""


def full_mask(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefix and tree: (flat bool mask, [R + 1] int64 element offsets).

    Each request's block is row-major ``[n, p + n]``, the prefix columns all True.
    """
    blocks = []
    for prefix_len, visible in zip(batch.prefix_list, _visible(batch), strict=True):
        prefix = torch.ones(len(visible), prefix_len, dtype=torch.bool, device=batch.device)
        blocks.append(torch.cat([prefix, visible], dim=1).flatten())
    return torch.cat(blocks), _offsets([len(b) for b in blocks], torch.int64, batch.device)


def tree_only_mask(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The tree alone: (flat bool mask, [R + 1] int64 element offsets), blocks ``[n, n]``."""
    blocks = [visible.flatten() for visible in _visible(batch)]
    return torch.cat(blocks), _offsets([len(b) for b in blocks], torch.int64, batch.device)


def packed_mask(batch: VerifyBatch, bits: int) -> torch.Tensor:
    """The tree as rows of bits: ``[N, ceil(max_nodes / bits)]``, contiguous; 8, 16, 32 or 64 bits.

    uint8, int16, int32 or int64; node j is bit j % bits of word j // bits, least bit first.  Rows
    from N' on are 0.  XQA pads its uint16 rows to whole 32 bits: ``packed_mask(batch, 32)``, then
    ``.view(torch.uint16)``.
    """
    dtype, columns = _word_dtype(bits), max(1, -(-batch.max_nodes // bits))
    live = torch.arange(batch.rows, device=batch.device) < batch.node_offsets[-1]
    words = torch.where(live[:, None], batch.tree_mask, 0).contiguous()
    return words.view(dtype)[:, :columns].contiguous()


def packed_full_mask(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """`full_mask` as bits: (uint8 bytes, [R + 1] int32 byte offsets), least bit first.

    Only a request begins at a whole byte: its bits run on from row to row.
    """
    flat, indptr = full_mask(batch)
    bits = flat.cpu().numpy()
    packed = [np.packbits(bits[a:b], bitorder="little") for a, b in pairwise(indptr.tolist())]
    offsets = _offsets([len(p) for p in packed], torch.int32, batch.device)
    return torch.from_numpy(np.concatenate(packed)).to(batch.device), offsets


def kv_indices(batch: VerifyBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The prefix alone: ([R + 1] int32 offsets, [sum of p] int64 token slots in token order).

    A slot is ``page * P + row``, whatever the page size: an index into `slot_view`.
    """
    slots = [_slots(batch, r, 0, p) for r, p in enumerate(batch.prefix_list)]
    return _offsets(batch.prefix_list, torch.int32, batch.device), torch.cat(slots)


def node_slots(batch: VerifyBatch) -> torch.Tensor:
    """``[N']`` int64 token slots of the nodes (SGLang's ``out_cache_loc``)."""
    if batch.node_kv is not None:
        raise LayoutError(
            "node_kv is given, so the nodes have no slots in the pool; take node_rows(batch)"
        )
    return torch.cat(
        [_slots(batch, r, p, p + batch.nodes(r)) for r, p in enumerate(batch.prefix_list)]
    )


def node_rows(batch: VerifyBatch) -> torch.Tensor:
    """``[N', D_c + D_r]`` of q's dtype, unscaled: the nodes' own KV rows.

    ``node_kv`` where the batch has it, else a copy out of the pool.
    """
    if batch.node_kv is not None:
        return batch.node_kv[: batch.offset_list[-1]]
    slots = node_slots(batch)
    rows = batch.kv_pool[slots // batch.page_size, slots % batch.page_size].to(batch.q.dtype)
    return rows * batch.kv_scale if batch.kv_pool.dtype in FP8_DTYPES else rows


def slot_view(batch: VerifyBatch) -> torch.Tensor:
    """``[pages * P, D_c + D_r]`` view of the pool by token slot, nothing copied.

    Raises `LayoutError` where there is space between the pages.
    """
    pool, page_size = batch.kv_pool, batch.page_size
    if page_size > 1 and len(pool) > 1 and pool.stride(0) != page_size * pool.stride(1):
        raise LayoutError(
            f"kv_pool has strides {pool.stride()} and page_size {page_size}; token slots need "
            f"pages that follow each other, stride(0) = {page_size * pool.stride(1)}: address "
            "such a pool by page and row"
        )
    return pool.flatten(0, 1)


# -- masks of others as ``tree_mask`` --------------------------------------------------------------


def tree_mask_from_full(
    flat: torch.Tensor, prefix_lens: Ints, node_offsets: Ints, words: int | None = None
) -> torch.Tensor:
    """The inverse of `full_mask`: ``[N', words]`` int64, words as few as fit unless given.

    ``flat`` bool or uint8.  A prefix column that is off is refused: a `VerifyBatch` cannot say it.
    """
    offsets, prefixes = _ints(node_offsets), _ints(prefix_lens)
    sizes = [(b - a, p + b - a) for (a, b), p in zip(pairwise(offsets), prefixes, strict=True)]
    blocks = _blocks(flat, sizes, "n * (prefix_len + n)")
    for request, (prefix_len, block) in enumerate(zip(prefixes, blocks, strict=True)):
        hidden = np.argwhere(~block[:, :prefix_len])
        if hidden.size:
            raise LayoutError(
                f"request {request}, node {hidden[0][0]} hides prefix token {hidden[0][1]}; every "
                f"node sees its whole prefix: check prefix_lens[{request}], here {prefix_len}"
            )
    trees = [block[:, prefix_len:] for prefix_len, block in zip(prefixes, blocks, strict=True)]
    return _packed(trees, words, flat.device)


def tree_mask_from_tree_only(
    flat: torch.Tensor, node_offsets: Ints, words: int | None = None
) -> torch.Tensor:
    """The inverse of `tree_only_mask`: ``[N', words]`` int64.  ``flat`` bool or uint8."""
    sizes = [(b - a, b - a) for a, b in pairwise(_ints(node_offsets))]
    return _packed(_blocks(flat, sizes, "n * n"), words, flat.device)


def tree_mask_from_packed(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `packed_mask`: ``[N, k]`` or ``[N]`` words to ``[N, ceil(k * bits / 64)]``.

    ``rows`` signed or unsigned integers of that many bits.
    """
    dtype = _word_dtype(bits)
    integers = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
    if not integers or rows.dtype.itemsize != dtype.itemsize or rows.ndim not in (1, 2):
        raise LayoutError(
            f"rows is {rows.dtype} of shape {tuple(rows.shape)}; words of {bits} bits are integers "
            f"of {dtype.itemsize} bytes, [N] or [N, words]: give the width of the tensor's dtype"
        )
    rows = rows.contiguous().view(dtype).reshape(len(rows), -1)
    wide = 64 // bits * -(-rows.shape[1] * bits // 64)
    padded = rows.new_zeros(len(rows), wide)
    padded[:, : rows.shape[1]] = rows
    return padded.view(torch.int64)


def tree_mask_from_links(
    first_child: torch.Tensor | Sequence[Sequence[int]],
    next_sibling: torch.Tensor | Sequence[Sequence[int]],
    words: int | None = None,
) -> torch.Tensor:
    """From ``[R, n]`` links (or lists of unequal length), -1 for none: ``[N', words]`` int64.

    SGLang's ``retrieve_next_token`` and ``retrieve_next_sibling``: node indices within a request.
    """
    device = first_child.device if isinstance(first_child, torch.Tensor) else torch.device("cpu")
    trees = []
    for request, (child, sibling) in enumerate(zip(first_child, next_sibling, strict=True)):
        try:
            trees.append(DraftTree.from_links(_ints(child), _ints(sibling)).visible)
        except TreeError as error:
            raise LayoutError(f"request {request}: {error}") from None
    return _packed(trees, words, device)


def _visible(batch: VerifyBatch) -> list[torch.Tensor]:
    """A request's ``[n, n]`` bool block each."""
    total = batch.offset_list[-1]
    bits = unpack_words(batch.tree_mask[:total].cpu().numpy(), max(1, batch.max_nodes))
    rows = torch.from_numpy(bits).to(batch.device)
    return [rows[a:b, : b - a] for a, b in pairwise(batch.offset_list)]


def _slots(batch: VerifyBatch, request: int, start: int, end: int) -> torch.Tensor:
    position = torch.arange(start, end, device=batch.device)
    page = batch.page_table[request].long()[position // batch.page_size]
    return page * batch.page_size + position % batch.page_size


def _offsets(lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(np.cumsum([0, *lengths]), dtype=dtype, device=device)


def _ints(values: Ints) -> list[int]:
    return [int(v) for v in (values.tolist() if isinstance(values, torch.Tensor) else values)]


def _word_dtype(bits: int) -> torch.dtype:
    if bits not in WORD_DTYPES:
        raise LayoutError(f"bits is {bits}; a word has 8, 16, 32 or 64 bits")
    return WORD_DTYPES[bits]


def _blocks(flat: torch.Tensor, sizes: list[tuple[int, int]], formula: str) -> list[BoolArray]:
    ends = np.cumsum([rows * columns for rows, columns in sizes])
    if flat.numel() != ends[-1]:
        raise LayoutError(
            f"the mask has {flat.numel()} elements; the sum of {formula} over the requests is "
            f"{ends[-1]}: check prefix_lens and node_offsets, and cut off an unused tail"
        )
    pieces = np.split(flat.flatten().cpu().numpy() != 0, ends[:-1])
    return [piece.reshape(size) for piece, size in zip(pieces, sizes, strict=True)]


def _packed(trees: Sequence[BoolArray], words: int | None, device: torch.device) -> torch.Tensor:
    most = max(len(tree) for tree in trees)
    if words is not None and words < mask_words(most):
        raise LayoutError(f"words is {words}; {most} nodes need {mask_words(most)} words or more")
    packed = [pack_words(tree, words or mask_words(most)) for tree in trees]
    return torch.from_numpy(np.concatenate(packed)).to(device)
