"""torch's own attention by its flash kernel: the online softmax, fused, on a CPU and on CUDA.

It refuses value_dim != head_dim and a last axis with gaps; on CUDA also float32 and a mask. It sets masked scores to
-inf before it multiplies them by the scale, which gives NaN where the scale is zero or below; such a scale is refused.
On the CPU that concerns causal calls only, on CUDA all: there scores beyond the last key are masked in the same way.

Source: torch.nn.attention.SDPBackend.FLASH_ATTENTION.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from implementations._contract import Facts
from implementations._sdpa import attend_with
from implementations.fused_qkv import project as project

FACTS = Facts(scores=torch.float32, sums=None, masked_nonfinite="leaks", hides_nan=("cpu",), memory="linear")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention by torch's flash kernel; shapes and errors as in `implementations._contract`."""
    if scale is not None and scale <= 0 and (causal or q.device.type == "cuda"):
        causally = "" if q.device.type == "cuda" else " for a causal call"
        raise NotImplementedError(f"torch's flash kernel gives NaN{causally} with scale {scale}")
    return attend_with(SDPBackend.FLASH_ATTENTION, q, k, v, mask, causal, scale)
