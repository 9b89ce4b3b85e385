"""How a kernel is launched: the tensors as it takes them, the grid, and the constants that it is compiled for."""

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from implementations._triton_kernels import INTERPRETED, forward_kernel, grad_kv_kernel, grad_q_kernel
from implementations._triton_tuning import TuningKey, tile_for

KERNEL_FUNCTIONS: dict[str, Any] = {
    "online": forward_kernel,
    "two_pass": forward_kernel,
    "grad_q": grad_q_kernel,
    "grad_kv": grad_kv_kernel,
}


class Inputs(NamedTuple):
    """What every kernel takes; shapes as in `implementations._contract`, the mask with 4 axes."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool
    scale: float


class View(NamedTuple):
    """A 4-D tensor as the kernels take it: every layout is read where it lies, nothing is copied."""

    data: Tensor
    stride: tuple[int, ...]


def view(tensor: Tensor) -> View:
    """The tensor with its strides."""
    return View(tensor, tensor.stride())


def launch(name: str, inputs: Inputs, *own: View | Tensor) -> None:
    """Launches the kernel of that name in KERNEL_FUNCTIONS; `own` is what this kernel alone takes."""
    q, k, v, mask, causal, scale = inputs
    if mask is not None:
        # An axis of 1 gets a stride of 0: no mask is written out in full.
        mask = mask.expand(*q.shape[:3], k.shape[2]).view(torch.uint8)
    arguments = (
        view(q),
        view(k),
        view(v),
        None if mask is None else view(mask),
        *own,
        scale,
        q.shape[1],
        k.shape[1],
        q.shape[2],
        k.shape[2],
    )
    constants = {
        "CAUSAL": causal,
        "DIM": q.shape[3],
        "VALUE_DIM": v.shape[3],
        "DIM_TILE": _padded(q.shape[3]),
        "VALUE_TILE": _padded(v.shape[3]),
        # Fused, "scaled score - maximum" is one multiply-add of the unrounded product where no select stands between:
        # it is not 0 at the maximum itself and overflows exp2 once scores are huge; and blocks inside and at the edge
        # of a mask would round differently.
        "enable_fp_fusion": False,
    }
    if name in ("online", "two_pass"):
        constants["TWO_PASS"] = name == "two_pass"
    tuning_key = TuningKey(_architecture(q.device), name, q.dtype, q.shape[3], v.shape[3], causal, mask is not None)
    multiply_adds = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])
    kernel = KERNEL_FUNCTIONS[name]

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        # One axis: the others end at 65535 programs.
        if name == "grad_kv":
            return (k.shape[0] * k.shape[1] * _blocks(k.shape[2], chosen["BLOCK_K"]),)
        return (q.shape[0] * q.shape[1] * _blocks(q.shape[2], chosen["BLOCK_Q"]),)

    with torch.cuda.device_of(q), _arithmetic_of_a_gpu():
        tile = tile_for(tuning_key, multiply_adds, kernel, grid, arguments, constants)
        kernel[grid](
            *arguments,
            **constants,
            BLOCK_Q=tile.queries,
            BLOCK_K=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


@functools.cache
def _architecture(device: torch.device) -> str:
    """The name that `_triton_tiles` knows the device by."""
    if INTERPRETED:
        return "interpreter"
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _arithmetic_of_a_gpu() -> AbstractContextManager[Any]:
    """An inf or NaN is a value like others on a GPU; the interpreter's NumPy would warn of it."""
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning) if INTERPRETED else nullcontext()


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _padded(dim: int) -> int:
    """A product of tiles wants powers of two, and no axis under 16."""
    return max(16, 1 << (dim - 1).bit_length())
