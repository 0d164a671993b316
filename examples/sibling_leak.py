"""A kernel with a bug, for the README: a node also sees its siblings."""

import torch

from verify_attn.kernels.base import declare
from verify_attn.reference import request_rows, visible_nodes


@declare(lse=False)
def verify(batch, out, lse):
    """Right but for the mask: siblings share their parent's row, so they are let in too."""
    for r in range(batch.requests):
        first, last = batch.offset_list[r], batch.offset_list[r + 1]
        prefix, nodes = request_rows(batch, r, torch.float32, batch.device)
        visible = visible_nodes(batch, r)
        itself = torch.eye(last - first, dtype=torch.bool, device=batch.device)
        above = visible & ~itself  # the ancestors alone
        leak = (above[:, None] == above[None]).all(-1) & above.any(1)  # equal ancestors: siblings
        seen = visible | leak
        seen = torch.cat([seen.new_ones(last - first, len(prefix)), seen], 1)
        keys = torch.cat([prefix, nodes])
        scores = torch.einsum("nhd,td->nht", batch.q[first:last].float(), keys)
        scores = (scores * batch.softmax_scale).masked_fill(~seen[:, None], -torch.inf)
        weights = torch.nan_to_num(torch.softmax(scores, -1))
        latent = batch.geometry.latent_dim
        out[first:last] = torch.einsum("nht,td->nhd", weights, keys[:, :latent]).to(out.dtype)
