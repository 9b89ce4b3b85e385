"""What `online_triton` and `two_pass_triton` share around their kernels: what they take, and how one is launched."""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from implementations._contract import check, default_scale
from implementations._triton_kernels import INTERPRETED, forward_kernel, grad_kv_kernel, grad_q_kernel
from implementations._triton_tiles import Tile, candidates

MAX_HEAD_DIM = 256


def attend_fused(
    sweep: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """Attention in one kernel whose sweep is "online" or "two_pass"; shapes and errors as in the contract.

    Raises NotImplementedError for float64, for head dims over 256, and for what `cannot_run` names.
    """
    check(q, k, v, mask)
    refusal = cannot_run(q.device) or _cannot_take(q, v)
    if refusal:
        raise NotImplementedError(refusal)
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    scale = default_scale(q) if scale is None else float(scale)
    return _Attention.apply(sweep, q, k, v, mask, causal, scale)  # type: ignore[no-any-return]


def cannot_run(device: torch.device) -> str | None:
    """Why the kernels cannot run on that device, or None."""
    if device.type == "cuda" or (device.type == "cpu" and INTERPRETED):
        return None
    return f"Triton kernels run on CUDA, or on a CPU under TRITON_INTERPRET=1; not on {device.type} here"


def _cannot_take(q: Tensor, v: Tensor) -> str | None:
    if q.dtype == torch.float64:
        return "the kernels accumulate in float32, which is no answer to a float64 question"
    if q.dtype == torch.bfloat16 and INTERPRETED:
        return "Triton's interpreter keeps bfloat16 as raw integers, so its arithmetic is wrong there"
    if max(q.shape[3], v.shape[3]) > MAX_HEAD_DIM:
        return f"head dims up to {MAX_HEAD_DIM} fit on chip; given {q.shape[3]} for q, k and {v.shape[3]} for v"
    return None


class View(NamedTuple):
    """A 4-D tensor as the kernels take it: every layout is read where it lies, nothing is copied."""

    data: Tensor
    stride: tuple[int, ...]


def _view(tensor: Tensor) -> View:
    return View(tensor, tensor.stride())


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _padded(dim: int) -> int:
    """A product of tiles wants powers of two, and no axis under 16."""
    return max(16, 1 << (dim - 1).bit_length())


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sweep: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[3])
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        tile = _tile(sweep, q, v)
        programs = q.shape[0] * q.shape[1] * _blocks(q.shape[2], tile.queries)
        own = (_view(out), lse)
        _launch(forward_kernel, programs, tile, q, k, v, mask, causal, scale, *own, TWO_PASS=sweep == "two_pass")
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, *_Gradients.apply(grad_out, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of q, k and v, so that a second derivative raises instead of missing terms."""

    @staticmethod
    def forward(
        ctx: Any,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        lse: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        problem = (q, k, v, mask, causal, scale)
        grad_q, grad_k, grad_v = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        # delta = rowsum(grad_out * out) is left by the first kernel for the second, behind it on the same stream.
        delta = torch.empty_like(lse)
        rows = (_view(grad_out), lse, delta)
        tile = _tile("grad_q", q, v)
        programs = q.shape[0] * q.shape[1] * _blocks(q.shape[2], tile.queries)
        _launch(grad_q_kernel, programs, tile, *problem, *rows, _view(out), _view(grad_q))
        tile = _tile("grad_kv", q, v)
        programs = k.shape[0] * k.shape[1] * _blocks(k.shape[2], tile.keys)
        _launch(grad_kv_kernel, programs, tile, *problem, *rows, _view(grad_k), _view(grad_v))
        return grad_q, grad_k, grad_v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("the kernels have no second derivative")


def _arithmetic_of_a_gpu() -> AbstractContextManager[Any]:
    """An inf or NaN is a value like others on a GPU; the interpreter's NumPy would warn of it."""
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning) if INTERPRETED else nullcontext()


def _tile(kernel: str, q: Tensor, v: Tensor) -> Tile:
    return candidates(_architecture(q.device), kernel, q.dtype, max(q.shape[3], v.shape[3]))[0]


def _architecture(device: torch.device) -> str:
    """The name that `_triton_tiles` knows the device by."""
    if INTERPRETED:
        return "interpreter"
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _launch(
    kernel: Any,
    programs: int,
    tile: Tile,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    *own: View | Tensor,
    **own_constants: bool,
) -> None:
    """`own` is what this kernel alone takes. One grid axis: the others end at 65535 programs."""
    with torch.cuda.device_of(q), _arithmetic_of_a_gpu():
        kernel[(programs,)](
            _view(q),
            _view(k),
            _view(v),
            None if mask is None else _view(mask.view(torch.uint8)),
            *own,
            scale,
            q.shape[1],
            k.shape[1],
            q.shape[2],
            k.shape[2],
            **own_constants,
            CAUSAL=causal,
            DIM=q.shape[3],
            VALUE_DIM=v.shape[3],
            DIM_TILE=_padded(q.shape[3]),
            VALUE_TILE=_padded(v.shape[3]),
            BLOCK_Q=tile.queries,
            BLOCK_K=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
            # Without it, "scaled score - maximum" becomes one fused step from the unrounded product where no select
            # stands between, which is not 0 at the maximum itself and overflows exp2 once scores are huge; and
            # blocks inside and at the edge of a mask would round differently.
            enable_fp_fusion=False,
        )
