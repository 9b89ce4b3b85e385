"""torch's own attention by its flash kernel: the online softmax, fused, on a CPU and on CUDA.

It refuses value_dim != head_dim and a last axis with gaps; on CUDA also float32 and a mask. What is masked it sets to
-inf before it multiplies by the scale: its causal mask, and on CUDA what lies beyond the last key. So it refuses a
scale of zero or below, on the CPU in a causal call only.

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
