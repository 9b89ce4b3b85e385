"""torch's own attention by its math kernel: products and a softmax in C++, the whole score matrix in memory.

The half types are converted to float32 first, so its scores live there.

Source: torch.nn.attention.SDPBackend.MATH.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from implementations._contract import Facts
from implementations._sdpa import attend_with
from implementations.fused_qkv import project as project

FACTS = Facts(
    scores=torch.float32, sums=torch.float32, masked_nonfinite="leaks", deterministic=True, memory="quadratic"
)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention by torch's math kernel; shapes and errors as in `implementations._contract`."""
    return attend_with(SDPBackend.MATH, q, k, v, mask, causal, scale)
