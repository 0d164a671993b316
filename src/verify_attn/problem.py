"""`VerifyBatch`: the one value every verify kernel takes.

For each request, every node of its draft tree attends to the whole paged prefix and, within the
tree, to itself and its ancestors.  Dimension letters: R requests, N nodes of all requests
together, H heads, D_c latent, D_r rope, P page_size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from verify_attn.geometry import AttentionGeometry

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, eq=False)
class VerifyBatch:
    """Tree-verify attention over a paged latent KV pool.  Any strides, last dimension contiguous.

    ``q``             [N, H, D_c + D_r] floating point
    ``kv_pool``       [pages, P, D_c + D_r]; the value is the first D_c of a row
    ``kv_scale``      a pool row times this is the real row; 1.0 unless the pool is fp8
    ``node_kv``       [N, D_c + D_r], the nodes' own rows, unscaled; None: they are in the pool
    ``page_table``    [R, max_pages] int32; entries past a request's last page are undefined
    ``prefix_lens``   [R] int32, committed tokens before the tree
    ``node_offsets``  [R + 1] int32; request r's nodes are rows node_offsets[r]..[r + 1]
    ``tree_mask``     [N, words] int64; node j of the same request is bit j % 64 of word j // 64.
                      A row without bits is padding: it sees the prefix alone
    ``softmax_scale`` factor on q . k
    ``max_prefix_len``, ``max_nodes``   host bounds of one request: what a plan may rely on
    ``prefix_lens_host``, ``node_offsets_host``   CPU copies for ``prepare``, or None

    Node i of request r lies at token position ``prefix_lens[r] + i`` (unless in ``node_kv``).
    Rows from ``node_offsets[R]`` on are padding whose output is undefined.
    """

    geometry: AttentionGeometry
    q: torch.Tensor
    kv_pool: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    node_offsets: torch.Tensor
    tree_mask: torch.Tensor
    softmax_scale: float
    max_prefix_len: int
    max_nodes: int
    kv_scale: float = 1.0
    node_kv: torch.Tensor | None = None
    prefix_lens_host: torch.Tensor | None = None
    node_offsets_host: torch.Tensor | None = None

    @property
    def requests(self) -> int:
        """R."""
        return int(self.prefix_lens.shape[0])

    @property
    def rows(self) -> int:
        """Rows of q, trailing padding rows included."""
        return int(self.q.shape[0])

    @property
    def page_size(self) -> int:
        """P."""
        return int(self.kv_pool.shape[1])

    @property
    def device(self) -> torch.device:
        return self.q.device

    @property
    def latent_pool(self) -> torch.Tensor:
        """[pages, P, D_c] view of the pool: the values."""
        return self.kv_pool[..., : self.geometry.latent_dim]

    @property
    def rope_pool(self) -> torch.Tensor:
        """[pages, P, D_r] view of the pool: the rotary part of the keys."""
        return self.kv_pool[..., self.geometry.latent_dim :]

    @cached_property
    def prefix_list(self) -> list[int]:
        """The prefix lengths on the host; synchronises where there is no host copy."""
        source = self.prefix_lens if self.prefix_lens_host is None else self.prefix_lens_host
        return [int(v) for v in source.tolist()]

    @cached_property
    def offset_list(self) -> list[int]:
        """The node offsets on the host; synchronises where there is no host copy."""
        source = self.node_offsets if self.node_offsets_host is None else self.node_offsets_host
        return [int(v) for v in source.tolist()]

    def nodes(self, request: int) -> int:
        """Nodes of one request."""
        return self.offset_list[request + 1] - self.offset_list[request]

    def stored_tokens(self, request: int) -> int:
        """Token positions of one request that the pool holds: prefix, and tree unless node_kv."""
        tree = 0 if self.node_kv is not None else self.nodes(request)
        return self.prefix_list[request] + tree

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Unset ``out [N, H, D_c]`` of q's dtype and ``lse [N, H]`` float32."""
        shape = (self.rows, self.geometry.heads)
        out = torch.empty(
            (*shape, self.geometry.latent_dim), dtype=self.q.dtype, device=self.device
        )
        return out, torch.empty(shape, dtype=torch.float32, device=self.device)

    def with_fields(self, **fields: Any) -> VerifyBatch:
        """A copy with other values; cached host lists are made anew."""
        return replace(self, **fields)

    def validate(self) -> None:
        """Check every rule above; raises `BatchError` naming field, index, value and rule.

        Reads device tensors, so it synchronises: for tests and for the edges of a program.
        """
        from verify_attn.validation import validate_batch

        validate_batch(self)
