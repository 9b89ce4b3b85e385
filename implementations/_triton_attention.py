"""What `online_triton` and `two_pass_triton` share: what they take, and the torch operator that their kernels are.

As an operator with a rule for its shapes and one for its gradient, attention is one node to torch.compile, which can
neither look into a kernel nor break its graph there. The backward pass is an operator of its own.

Source: torch.library and its documentation.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from implementations._contract import check, default_scale
from implementations._triton_kernels import INTERPRETED
from implementations._triton_launch import Inputs, launch, view

MAX_HEAD_DIM = 256


def attend_fused(
    passes: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """Attention in one kernel, with the passes over the keys of "online" or "two_pass"; shapes and errors as in
    `_contract`.

    Under torch.autocast q, k and v are cast first, as torch's own attention does. Raises NotImplementedError for
    float64, for head dims over 256, in forward mode, and for what `cannot_run` names.
    """
    q, k, v = _as_autocast_wants(q), _as_autocast_wants(k), _as_autocast_wants(v)
    check(q, k, v, mask)
    refusal = cannot_run(q.device) or _cannot_take(q, v)
    if refusal:
        raise NotImplementedError(refusal)
    _refuse_tangents(q, k, v)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
    scale = default_scale(q) if scale is None else float(scale)
    out, _ = _ATTENTION(q, k, v, mask, causal, scale, passes)
    return out


def _refuse_tangents(*tensors: Tensor) -> None:
    """Raises where one of them has a tangent: an operator without a rule for them drops it without a word."""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError("the kernels have no forward-mode derivative")


def cannot_run(device: torch.device) -> str | None:
    """Why the kernels cannot run on that device, or None."""
    if device.type == "cuda" or (device.type == "cpu" and INTERPRETED):
        return None
    wanted = "on CUDA, or on a CPU with TRITON_INTERPRET=1 since before triton was imported"
    return f"Triton kernels run {wanted}; not on {device.type} here"


def _cannot_take(q: Tensor, v: Tensor) -> str | None:
    if q.dtype == torch.float64:
        return "the kernels accumulate in float32, which is no answer to a float64 question"
    if q.dtype == torch.bfloat16 and INTERPRETED:
        return "Triton's interpreter keeps bfloat16 as raw integers, so its arithmetic is wrong there"
    if max(q.shape[3], v.shape[3]) > MAX_HEAD_DIM:
        return f"head dims up to {MAX_HEAD_DIM} fit on chip; given {q.shape[3]} for q, k and {v.shape[3]} for v"
    return None


def _as_autocast_wants(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    device = tensor.device.type
    # Not every type of device has an autocast to ask for.
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, passes: str
) -> tuple[Tensor, Tensor]:
    out, lse = _empty_forward(q, k, v, mask, causal, scale, passes)
    launch(passes, Inputs(q, k, v, mask, causal, scale), view(out), lse)
    return out, lse


def _empty_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, passes: str
) -> tuple[Tensor, Tensor]:
    """The output and the row's log-sum-exp in base 2, (batch, heads, queries), unwritten."""
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return out, lse


def _backward(
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
    grad_q, grad_k, grad_v = _empty_backward(grad_out, q, k, v, mask, out, lse, causal, scale)
    # delta = rowsum(grad_out * out) is left by the first kernel for the second, behind it on the same stream.
    rows = (view(grad_out), lse, torch.empty_like(lse))
    inputs = Inputs(q, k, v, mask, causal, scale)
    launch("grad_q", inputs, *rows, view(out), view(grad_q))
    launch("grad_kv", inputs, *rows, view(grad_k), view(grad_v))
    return grad_q, grad_k, grad_v


def _empty_backward(
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
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.causal, ctx.scale, _ = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, mask, out, lse)
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)  # or each backward pass would fill a gradient of lse with zeros


def _backward_of_forward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 7
    _refuse_tangents(grad_out)
    return *_ATTENTION_BACKWARD(grad_out, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None, None


def _no_second_derivative(ctx: Any, *grads: Tensor | None) -> NoReturn:
    raise NotImplementedError("the kernels have no second derivative")


# Under the name of the package, so that a copy of it under another name has operators of its own.
_LIBRARY = torch.library.Library(__name__.partition(".")[0], "FRAGMENT")


def _operator(
    name: str,
    run: Callable[..., tuple[Tensor, ...]],
    shapes: Callable[..., tuple[Tensor, ...]],
    backward: Callable[..., Any],
    keep: Callable[..., None] | None = None,
) -> Any:
    """An operator that runs `run`, whose outputs look like those of `shapes`.

    As torch.library.custom_op makes one, without its wrapper around each call.
    """
    _LIBRARY.define(name + torch.library.infer_schema(run, mutates_args=()), tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    spelling = f"{_LIBRARY.ns}::{name}"
    torch.library.register_fake(spelling, shapes, lib=_LIBRARY)
    torch.library.register_autograd(spelling, backward, setup_context=keep, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _LIBRARY.ns), name).default


_ATTENTION = _operator("triton_attention", _forward, _empty_forward, _backward_of_forward, _keep_for_backward)
_ATTENTION_BACKWARD = _operator("triton_attention_backward", _backward, _empty_backward, _no_second_derivative)
