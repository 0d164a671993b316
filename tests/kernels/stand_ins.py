"""Other projects' modules in plain PyTorch: their signatures and their semantics, on the CPU.

An adapter that hands over the wrong index, scale or logarithm gets wrong numbers from these, as it
would from the real kernel.  Signatures are those of flashinfer-python 0.5.3, sgl-flash-mla 1.0.0
and sglang 0.5.10, 0.5.16 and 0.5.23; tests compare them to the source where it is installed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


def attend(
    q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor, scale: float, weights: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, H, D] over k [t, D], ``seen`` [n, t]: [n, H, D] with values all D wide, lse [n, H].

    ``weights``: the dtype that softmax weights are rounded to, if any.
    """
    scores = scale * torch.einsum("nhd,td->nht", q.float(), k.float())
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    top = scores.amax(2, keepdim=True)
    p = torch.exp(scores - top)
    total = p.sum(2, keepdim=True)
    p = p if weights is None else p.to(weights).float()
    return torch.einsum("nht,td->nhd", p, k.float()) / total, (top + total.log())[..., 0]


def bottom_right(queries: int, tokens: int) -> torch.Tensor:
    """Causal: the last query sees every token."""
    return torch.ones(queries, tokens, dtype=torch.bool).tril(tokens - queries)


class BatchMLAPagedAttentionWrapper:
    """FlashInfer's, in the mode that keeps to the caller's buffers."""

    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ):
        assert use_cuda_graph, "the other mode is not stood in for"
        assert backend in ("fa2", "fa3")
        assert float_workspace_buffer.dtype == torch.uint8
        self.buffers = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)

    def plan(
        self,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_len_arr,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        use_profiler=False,
    ):
        given = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        assert all(tensor.dtype == torch.int32 for tensor in given)
        for buffer, tensor in zip(self.buffers, given, strict=True):
            buffer[: len(tensor)].copy_(tensor)
        self.host = [tensor.tolist() for tensor in (qo_indptr, kv_indptr, kv_len_arr)]
        self.heads, self.widths = num_heads, (head_dim_ckv, head_dim_kpe)
        self.page_size, self.causal, self.sm_scale = page_size, causal, sm_scale
        self.dtypes = (q_data_type, kv_data_type)

    def run(
        self,
        q_nope,
        q_pe,
        ckv_cache,
        kpe_cache,
        out=None,
        lse=None,
        return_lse=False,
        profiler_buffer=None,
        kv_len=None,
        page_table=None,
        return_lse_base_on_e=False,
    ):
        assert out.shape == q_nope.shape
        assert (q_nope.dtype, ckv_cache.dtype) == self.dtypes
        assert (q_nope.shape[-1], q_pe.shape[-1]) == self.widths
        assert q_nope.shape[1] == self.heads
        assert ckv_cache.shape[1] == self.page_size
        queries, pages, lengths = self.host
        q = torch.cat([q_nope, q_pe], -1)
        for r, length in enumerate(lengths):
            rows = slice(queries[r], queries[r + 1])
            token = torch.arange(length)
            page = self.buffers[2][pages[r] + token // self.page_size].long()
            k = torch.cat([c[page, token % self.page_size] for c in (ckv_cache, kpe_cache)], -1)
            n = queries[r + 1] - queries[r]
            seen = bottom_right(n, length) if self.causal else torch.ones(n, length).bool()
            o, log_sum = attend(q[rows], k, seen, self.sm_scale)
            out[rows] = o[..., : self.widths[0]].to(out.dtype)
            if return_lse:
                lse[rows] = log_sum if return_lse_base_on_e else log_sum / math.log(2.0)
        return (out, lse) if return_lse else out


@dataclass
class FlashMLASchedMeta:
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


class FlashMla:
    """The module `flash_mla`; the schedule holds the lengths that it was made for."""

    weights = torch.float8_e4m3fn  # what its fp8 kernel rounds the softmax weights to

    def get_mla_metadata(self, *args, **kwargs):
        return FlashMLASchedMeta(), None

    def get_mla_decoding_metadata(
        self,
        seqlens_k,
        num_q_tokens_per_head_k,
        h_k,
        h_q=None,
        is_fp8_kvcache=False,
        topk=None,
        use_legacy=False,
    ):
        assert use_legacy
        assert topk is None
        assert seqlens_k.dtype == torch.int32
        tiles = torch.tensor([[num_q_tokens_per_head_k, h_k, is_fp8_kvcache]], dtype=torch.int32)
        return tiles, torch.cat([seqlens_k.new_zeros(1), seqlens_k.cumsum(0, dtype=torch.int32)])

    def flash_mla_with_kvcache(
        self,
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        tile_scheduler_metadata,
        num_splits=None,
        softmax_scale=None,
        causal=False,
        is_fp8_kvcache=None,
        indices=None,
        attn_sink=None,
        extra_k_cache=None,
        extra_indices_in_kvcache=None,
        topk_length=None,
        extra_topk_length=None,
        enable_batch_invariant=False,
        use_legacy=False,
        kv_format=None,
        descale_q=None,
        descale_k=None,
    ):
        assert use_legacy
        assert num_splits is None
        assert q.dtype == k_cache.dtype
        assert k_cache.shape[1:3] == (64, 1)
        assert block_table.dtype == cache_seqlens.dtype == torch.int32
        fp8 = bool(is_fp8_kvcache)
        assert (descale_q is None, descale_k is None) == (not fp8, not fp8)
        assert not fp8 or (descale_q.shape, descale_k.shape) == ((1,), (1,))
        requests, n, heads, _ = q.shape
        planned = tile_scheduler_metadata
        assert planned.tile_scheduler_metadata.tolist() == [[n * heads, 1, fp8]]
        made_for = planned.num_splits.diff().tolist()
        q, k = q.float(), k_cache[:, :, 0].float()
        if fp8:
            q, k = q * descale_q, k * descale_k
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        out = torch.empty(requests, n, heads, head_dim_v, dtype=torch.bfloat16)
        lse = torch.empty(requests, heads, n)
        for r in range(requests):
            token = torch.arange(min(made_for[r], int(cache_seqlens[r])))
            rows = k[block_table[r, token // 64].long(), token % 64]
            seen = torch.ones(n, len(token)).bool()
            if causal and n > 1:
                seen = bottom_right(n, int(cache_seqlens[r]))[:, : len(token)]
            o, log_sum = attend(q[r], rows, seen, scale, self.weights if fp8 else None)
            out[r], lse[r] = o[..., :head_dim_v], log_sum.T
        return out, lse


class SGLang:
    """Base of the modules below: what every version's function does with the same arguments."""

    def attend(self, a: dict[str, Any]) -> None:
        assert a["is_causal"] is True
        assert a["skip_prefix_custom_mask"] is True
        assert (a["k_scale"], a["v_scale"]) == (1.0, 1.0)
        queries, prefixes, blocks = (
            a[n].tolist() for n in ("qo_indptr", "kv_indptr", "mask_indptr")
        )
        for r in range(len(queries) - 1):
            rows, n = slice(queries[r], queries[r + 1]), queries[r + 1] - queries[r]
            prefix = a["kv_indices"][prefixes[r] : prefixes[r + 1]]
            keys = torch.cat([a["k_buffer"][prefix, 0], a["k_extend"][rows, 0]])
            seen = a["custom_mask"][blocks[r] : blocks[r + 1]].view(n, len(keys))
            o, log_sum = attend(a["q_extend"][rows], keys, seen, a["sm_scale"])
            values = a["v_extend"].shape[-1]
            a["o_extend"][rows] = o[..., :values].to(a["o_extend"].dtype)
            if a.get("lse_extend") is not None:
                a["lse_extend"][rows] = log_sum


class SGLang0510(SGLang):
    def extend_attention_fwd(
        self, q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr,
        kv_indices, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale,
        sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True, sliding_window_size=-1,
        sinks=None, window_kv_offsets=None, xai_temperature_len=-1,
    ):  # fmt: skip
        self.attend(locals())


class SGLang0516(SGLang):
    def extend_attention_fwd(
        self, q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr,
        kv_indices, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale,
        sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True, sliding_window_size=-1,
        sinks=None, window_kv_offsets=None, xai_temperature_len=-1, lse_extend=None,
        skip_prefix=False, skip_extend=False, page_size=1, score_mod=None, aux_tensors=None,
    ):  # fmt: skip
        self.attend(locals())


class SGLang0523(SGLang):
    def extend_attention_fwd(
        self, q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr,
        kv_indices, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale,
        sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True, sliding_window_size=-1,
        sinks=None, window_kv_offsets=None, xai_temperature_len=-1, lse_extend=None,
        skip_prefix=False, skip_extend=False, page_size=1, score_mod=None, aux_tensors=None,
        extend_seq_lens_cpu=None, identity_kv_indices=False,
    ):  # fmt: skip
        self.attend(locals())

    def verify_shared_kv_fwd(
        self, q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr,
        kv_indices, custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale,
        sm_scale=None, logit_cap=0.0, skip_prefix_custom_mask=True, sliding_window_size=-1,
        sinks=None, window_kv_offsets=None, xai_temperature_len=-1, max_bs=None,
    ):  # fmt: skip
        self.attend(locals())
        return True
