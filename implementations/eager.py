"""Attention as the article writes it: softmax(Q K^T / sqrt(d)) V, one line for each step.

Three projections, the whole (queries, keys) score matrix, a softmax over its rows, a weighted sum of the
values. Every later backend changes one of these steps. Memory and traffic grow with queries x keys.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2; the article's 2.1 to 2.6, 3.1 and 3.2.
"""

import torch
from torch import Tensor, nn

from implementations._contract import Facts, check, default_scale, visibility

FACTS = Facts(scores=None, sums=torch.float32, masked_nonfinite="leaks", deterministic=True, memory="quadratic")


def project(x: Tensor, weight: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Three matrix products, one for each of W_Q, W_K and W_V, which are row slices of the packed weight.

    x       (batch, seq, d_model)
    weight  ((heads + 2 kv_heads) head_dim, d_model)
    returns q (batch, heads, seq, head_dim) and k, v (batch, kv_heads, seq, head_dim)
    """
    head_dim = weight.shape[0] // (heads + 2 * kv_heads)
    w_q, w_k, w_v = weight.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    q = nn.functional.linear(x, w_q).unflatten(-1, (heads, head_dim))  # (batch, seq, heads, head_dim)
    k = nn.functional.linear(x, w_k).unflatten(-1, (kv_heads, head_dim))
    v = nn.functional.linear(x, w_v).unflatten(-1, (kv_heads, head_dim))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention with the score matrix in memory; shapes and errors as in `implementations._contract`."""
    check(q, k, v, mask)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    visible = visibility(q, k, mask, causal)

    # Scaled before the product: in float16 it may pass 65504 where the scores themselves do not.
    query = q * (default_scale(q) if scale is None else scale)
    scores = query @ k.transpose(-2, -1)  # (batch, heads, queries, keys)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
    if visible is not None:
        # A row with no key to see is 0/0 here. Filling, unlike nan_to_num, also stops its gradient.
        weights = weights.masked_fill(~visible, 0.0)
    return weights @ v
