"""Softmax in one pass over blocks of keys: the running maximum corrects what was summed before it was known.

Each row keeps the largest score so far, the sum of exponentials relative to it, and the output not yet divided by
that sum. When a block brings a larger score, sum and output are multiplied by exp(old maximum - new maximum), as if
the new maximum had been known from the start. Memory grows with the sequence; Q K^T is computed once.

Source: Milakov and Gimelshein 2018, arXiv 1805.02867; Rabe and Staats 2021, arXiv 2112.05682; the article's 2.4.
"""

import torch
from torch import Tensor

from implementations._blocks import KeyBlocks, attend_in_blocks
from implementations._contract import Facts
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
    """Attention in one pass over the keys; shapes and errors as in `implementations._contract`."""
    return attend_in_blocks(_one_pass, q, k, v, mask, causal, scale)


def _one_pass(blocks: KeyBlocks) -> tuple[Tensor, Tensor]:
    running_max = blocks.filled(1, float("-inf"))
    running_sum = blocks.filled(1, 0.0)
    output = blocks.filled(blocks.value.shape[-1], 0.0)
    for scores, value, _ in blocks:
        new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
        # While a row has met masked keys only, its maximum is -inf, and -inf - -inf NaN; any finite shift gives zeros.
        shift = new_max.masked_fill(new_max == float("-inf"), 0.0)
        weights = scores.sub_(shift).exp_()
        correction = (running_max - shift).exp_()
        running_sum.mul_(correction).add_(weights.sum(dim=-1, keepdim=True))
        output.mul_(correction).baddbmm_(weights, value)
        running_max = new_max
    return output / running_sum.masked_fill(running_sum == 0.0, 1.0), running_max + running_sum.log()
