"""torch.nn.functional.scaled_dot_product_attention held to one named kernel, never whatever torch picks.

torch differs from the contract in two places, and both are bridged here for every kernel alike: its causal flag is
anchored top-left, so it is used only where the two corners coincide and is a mask elsewhere; and what a fully masked
row gives depends on the kernel, so such a row attends to every key and is then set to zero.

Source: torch.nn.attention.sdpa_kernel and its documentation.
"""

import warnings

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from implementations._contract import check, visibility

# How torch, and what it calls, say that a kernel does not take an input.
_REFUSALS = (
    "No available kernel",
    "No viable backend",
    "cutlassF: no kernel",
    "is not correctly aligned",
    "cuDNN Frontend error",
)

# The fused kernels for CUDA have an axis of their grid for each (pytorch/pytorch#142228, pytorch/pytorch#146704).
_MOST_ON_AN_AXIS = 65_535

# What the fused kernels for CUDA read at a time.
_ALIGNED_BYTES = 16


def attend_with(
    kernel: SDPBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """Attention by that kernel; shapes and errors as in `implementations._contract`.

    Raises NotImplementedError with torch's own reasons where the kernel does not take the input.
    """
    check(q, k, v, mask)
    reason = needs_cuda(kernel, q.device)
    if reason:
        raise NotImplementedError(reason)
    if 0 in (q.shape[0], q.shape[2], k.shape[2]):
        # torch answers these without asking any kernel.
        raise NotImplementedError(f"torch does not hand empty inputs to its {_name(kernel)} kernel")
    fused_on_cuda = q.device.type == "cuda" and kernel is not SDPBackend.MATH
    if fused_on_cuda and not all(map(is_aligned, (q, k, v))):
        # torch does not check, and after one misaligned access every call of the process on that device fails.
        reason = f"reads {_ALIGNED_BYTES} bytes at a time; rows of q, k or v begin between them"
        raise NotImplementedError(f"torch's {_name(kernel)} kernel for CUDA {reason}")
    if fused_on_cuda and max(q.shape[:2]) > _MOST_ON_AN_AXIS:
        reason = f"takes up to {_MOST_ON_AN_AXIS} samples and heads; given {q.shape[0]} and {q.shape[1]}"
        raise NotImplementedError(f"torch's {_name(kernel)} kernel for CUDA {reason}")
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]  # torch's CPU kernel wants at least two axes
    corners_coincide = causal and mask is None and q.shape[2] == k.shape[2]
    visible = None if corners_coincide else visibility(q, k, mask, causal)
    fully_masked = attended = None
    if visible is not None:
        fully_masked = ~visible.any(dim=-1, keepdim=True)
        attended = visible | fully_masked
        if fused_on_cuda:
            # They do not take a last axis of stride 0.
            attended = attended.expand(*attended.shape[:-1], k.shape[2]).contiguous()
    with warnings.catch_warnings(record=True) as reasons, sdpa_kernel(kernel):
        warnings.simplefilter("always")
        try:
            out = torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=attended,
                is_causal=corners_coincide,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        except RuntimeError as error:
            if not any(words in str(error) for words in _REFUSALS):
                raise
            # The reasons come as warnings: a heading and then one sentence for each; each names a source line.
            sentences = [str(w.message).partition(" (Triggered internally")[0] for w in reasons]
            given = "; ".join(s for s in sentences if s and not s.endswith("because:"))
            raise NotImplementedError(f"torch's {_name(kernel)} kernel does not take this: {given or error}") from error
    return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)


def needs_cuda(kernel: SDPBackend, device: torch.device) -> str | None:
    """Why the kernel cannot run on that device, or None."""
    if kernel in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION) and device.type != "cuda":
        return f"torch has its {_name(kernel)} kernel for CUDA only, not for {device.type}"
    return None


def is_aligned(tensor: Tensor) -> bool:
    """Whether a read of 16 bytes may begin at each row of the last axis, or torch copies the tensor before it reads.

    It copies a tensor whose rows are no multiple of 16 bytes wide.
    """
    size = tensor.element_size()
    if tensor.shape[-1] * size % _ALIGNED_BYTES:
        return True
    steps = [stride for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if length > 1]
    return not any(step * size % _ALIGNED_BYTES for step in (tensor.storage_offset(), *steps))


def _name(kernel: SDPBackend) -> str:
    return kernel.name.removesuffix("_ATTENTION").lower()
