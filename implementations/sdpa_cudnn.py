"""torch's own attention by cuDNN's fused kernel; CUDA only, half types only.

The fastest that torch can call on recent GPUs, and so what other kernels are compared with.

Source: torch.nn.attention.SDPBackend.CUDNN_ATTENTION.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from implementations._contract import Facts
from implementations._sdpa import attend_with, needs_cuda
from implementations.fused_qkv import project as project

FACTS = Facts(scores=torch.float32, sums=torch.float32, masked_nonfinite="leaks", deterministic=None)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention by torch's cudnn kernel; shapes and errors as in `implementations._contract`."""
    return attend_with(SDPBackend.CUDNN_ATTENTION, q, k, v, mask, causal, scale)


def cannot_run(device: torch.device) -> str | None:
    """Why it cannot run on that device, or None."""
    return needs_cuda(SDPBackend.CUDNN_ATTENTION, device)
