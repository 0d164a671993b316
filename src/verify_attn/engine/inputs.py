"""What a forward pass reads, in device memory that keeps its address.

Everything of a fixed shape lies in one buffer that is written whole at every load, in one transfer:
nothing of an earlier step can be left over, and a captured graph finds it where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from verify_attn.engine.step import Part
from verify_attn.tree import MAX_NODES, DraftTree, mask_words

ALIGN = 16  # int64 words: kernels may load 128 bytes at once, and Triton compiles by alignment
_CHAIN = DraftTree.chain(MAX_NODES)


@dataclass(frozen=True)
class Shape:
    """The shape of a pass and its bounds, padding included.

    ``requests``, ``rows``            R and N
    ``max_nodes``, ``max_prefix_len`` bounds of one request: what a kernel's plan relies on
    ``every``                         logits of every row, or of each request's last alone
    """

    requests: int
    rows: int
    max_nodes: int
    max_prefix_len: int
    every: bool

    def table_pages(self, page_size: int) -> int:
        """Columns of the page table."""
        return -(-(self.max_prefix_len + self.max_nodes) // page_size)


class Inputs:
    """Device tensors of one `Shape`, views of memory that stays; N rows, R requests.

    ``tokens``, ``depths``, ``slots``   [N] int64; a padding row has token 0, depth 0 and the
                                        scratch slot, whose row nobody reads
    ``tree_mask``                       [N, words] int64; padding rows have no bit set
    ``prefix_lens``, ``node_offsets``   [R], [R + 1] int32; a padding request owns no rows
    ``page_table``                      [R, pages] int32
    ``prefix_lens_host``, ``node_offsets_host``   the latest load's, on the CPU
    """

    def __init__(
        self, shape: Shape, page_size: int, scratch_slot: int, device: torch.device
    ) -> None:
        self.shape = shape
        self.page_size = page_size
        self.scratch_slot = scratch_slot
        self.words = mask_words(shape.max_nodes)
        sizes = {
            "tokens": shape.rows,
            "depths": shape.rows,
            "slots": shape.rows,
            "mask": shape.rows * self.words,
            "prefix": -(-shape.requests // 2),
            "offsets": -(-(shape.requests + 1) // 2),
        }
        self._at: dict[str, slice] = {}
        end = 0
        for name, size in sizes.items():
            self._at[name] = slice(end, end + size)
            end += -(-size // ALIGN) * ALIGN
        self._buffer = torch.zeros(end, dtype=torch.int64, device=device)
        self.tokens = self._buffer[self._at["tokens"]]
        self.depths = self._buffer[self._at["depths"]]
        self.slots = self._buffer[self._at["slots"]]
        self.tree_mask = self._buffer[self._at["mask"]].view(shape.rows, self.words)
        self.prefix_lens = self._ints(self._buffer, "prefix", shape.requests)
        self.node_offsets = self._ints(self._buffer, "offsets", shape.requests + 1)
        self.page_table = torch.zeros(
            shape.requests, shape.table_pages(page_size), dtype=torch.int32, device=device
        )
        host = torch.zeros(end, dtype=torch.int64)
        self.prefix_lens_host = self._ints(host, "prefix", shape.requests)
        self.node_offsets_host = self._ints(host, "offsets", shape.requests + 1)

    def _ints(self, buffer: torch.Tensor, name: str, count: int) -> torch.Tensor:
        return buffer[self._at[name]].view(torch.int32)[:count]

    def load(self, parts: Sequence[Part]) -> None:
        """Write the parts in place; as many or fewer requests and rows than the shape has."""
        host = self._staging(self._buffer.shape, torch.int64)
        at = {name: host.numpy()[where] for name, where in self._at.items()}
        mask = at["mask"].reshape(self.shape.rows, self.words)
        prefix, offsets = at["prefix"].view(np.int32), at["offsets"].view(np.int32)
        at["slots"][:] = self.scratch_slot
        pages = 0
        end = 0
        for r, part in enumerate(parts):
            nodes = len(part.tree)
            rows = slice(end, end + nodes)
            depths, bits = _depths_and_bits(part.tree)
            at["tokens"][rows] = part.tokens
            at["depths"][rows] = depths + part.prefix_len
            at["slots"][rows] = slots_of(part, self.page_size)
            mask[rows, : bits.shape[1]] = bits
            end += nodes
            prefix[r], offsets[r + 1] = part.prefix_len, end
            pages = max(pages, pages_of(part, self.page_size))
        offsets[len(parts) + 1 : self.shape.requests + 1] = end
        table = self._staging((len(parts), pages), torch.int32)
        for r, part in enumerate(parts):
            own = pages_of(part, self.page_size)
            table.numpy()[r, :own] = part.table[:own]
        # Pinned memory comes from torch's caching allocator, which waits for the copy itself.
        self._buffer.copy_(host, non_blocking=True)
        self.page_table[: len(parts), :pages].copy_(table, non_blocking=True)
        self.prefix_lens_host = self._ints(host, "prefix", self.shape.requests)
        self.node_offsets_host = self._ints(host, "offsets", self.shape.requests + 1)

    def _staging(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        pinned = self._buffer.device.type == "cuda"
        staging = torch.empty(*shape, dtype=dtype, pin_memory=pinned)
        staging.numpy().fill(0)  # torch would wake its threads for a long table, which takes longer
        return staging


def pages_of(part: Part, page_size: int) -> int:
    """Pages that a part's prefix and nodes lie in."""
    return -(-(part.prefix_len + len(part.tree)) // page_size)


def slots_of(part: Part, page_size: int) -> npt.NDArray[np.int64]:
    """[nodes] where a part's rows are written."""
    position = part.prefix_len + np.arange(len(part.tree))
    slots: npt.NDArray[np.int64] = part.table[position // page_size].astype(np.int64) * page_size
    return slots + position % page_size


def _depths_and_bits(tree: DraftTree) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Depths below the prefix and mask words; a chain's are cut from the longest one's."""
    nodes = len(tree)
    if tree.parents == _CHAIN.parents[:nodes]:
        return np.arange(nodes), _CHAIN.mask_bits[:nodes, : mask_words(nodes)]
    return np.array(tree.depths), tree.mask_bits
