"""One matrix product for Q, K and V instead of three; the attention itself is eager's.

W_Q, W_K and W_V lie under one another in the packed weight, so one product with it gives all three side by
side, and a split of the result is a view: x is read once and one larger product keeps the machine busier.

Source: the article's 2.1.
"""

from torch import Tensor, nn

from implementations.eager import FACTS as FACTS
from implementations.eager import attend as attend


def project(x: Tensor, weight: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """One matrix product with the packed weight, then a split into heads; shapes as `eager.project`."""
    head_dim = weight.shape[0] // (heads + 2 * kv_heads)
    qkv = nn.functional.linear(x, weight).unflatten(-1, (heads + 2 * kv_heads, head_dim))
    q, k, v = qkv.transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    return q, k, v
