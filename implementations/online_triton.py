"""The online softmax as fused Triton kernels, forward and backward.

A program holds one block of queries on chip, reads the keys block by block, and corrects what it has summed whenever
a block brings a larger score: the score matrix never reaches memory. The backward pass computes each piece of the
weights again from the scores and the row's log-sum-exp, in one kernel that owns blocks of queries (dQ) and one that
owns blocks of keys (dK, dV), so no two programs add to one place and the same call gives the same bits. Memory grows
with the sequence; Q K^T is computed once in the forward pass and twice more in the backward pass.

Source: Milakov and Gimelshein 2018, arXiv 1805.02867; Dao 2023, arXiv 2307.08691; the article's 2.4.
"""

import torch
from torch import Tensor

from implementations._contract import Facts
from implementations._triton_attention import attend_fused
from implementations._triton_attention import cannot_run as cannot_run
from implementations.fused_qkv import project as project

FACTS = Facts(scores=torch.float32, sums=torch.float32, masked_nonfinite="leaks", deterministic=True, memory="linear")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention in one pass over the keys, in one kernel; shapes and errors as in `implementations._contract`."""
    return attend_fused("online", q, k, v, mask, causal, scale)
