"""Softmax in two passes over blocks of keys, without the score matrix.

The first pass finds each row's maximum and its sum of exponentials, which are the two numbers a softmax needs to
know of the whole row. The second computes the scores again and adds up the weights, now final, times the values.
Memory grows with the sequence; the product Q K^T is computed twice.

Source: the article's 2.4.
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
    """Attention in two passes over the keys; shapes and errors as in `implementations._contract`."""
    return attend_in_blocks(_two_passes, q, k, v, mask, causal, scale)


def _two_passes(blocks: KeyBlocks) -> tuple[Tensor, Tensor]:
    row_max = blocks.filled(1, float("-inf"))
    row_sum = blocks.filled(1, 0.0)
    for scores, _, _ in blocks:
        new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))
        # While a row has met masked keys only, its maximum is -inf, and -inf - -inf NaN; any finite shift gives zeros.
        shift = new_max.masked_fill(new_max == float("-inf"), 0.0)
        row_sum = row_sum * (row_max - shift).exp() + scores.sub_(shift).exp_().sum(dim=-1, keepdim=True)
        row_max = new_max

    shift = row_max.masked_fill(row_max == float("-inf"), 0.0)
    total = row_sum.masked_fill(row_sum == 0.0, 1.0)
    output = blocks.filled(blocks.value.shape[-1], 0.0)
    for scores, value, _ in blocks:
        weights = scores.sub_(shift).exp_().div_(total)
        output.baddbmm_(weights, value)
    return output, row_max + row_sum.log()
