"""The online softmax as fused Triton kernels, forward and backward.

A program holds one block of queries on chip, walks the keys block by block, and corrects what it has summed whenever
a block brings a larger score: the score matrix never reaches memory. The backward pass computes each piece of the
weights again from the scores and the row's log-sum-exp, in one kernel that owns blocks of queries (dQ) and one that
owns blocks of keys (dK, dV), so no two programs add to one place and the same call gives the same bits. Memory grows
with the sequence; Q K^T is computed once in the forward pass and twice more in the backward pass.

Source: Milakov and Gimelshein 2018, arXiv 1805.02867; Dao 2023, arXiv 2307.08691; the article's 2.4.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from implementations._contract import Facts, check, default_scale
from implementations._online_triton_kernels import INTERPRETED, forward_kernel, grad_kv_kernel, grad_q_kernel
from implementations.fused_qkv import project as project

FACTS = Facts(scores=torch.float32, sums=torch.float32, masked_nonfinite="leaks", deterministic=True, memory="linear")

MAX_HEAD_DIM = 256


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attention in one fused kernel; shapes and errors as in `implementations._contract`.

    Raises NotImplementedError for float64, for head dims over 256, and for what `cannot_run` names.
    """
    check(q, k, v, mask)
    refusal = cannot_run(q.device) or _cannot_take(q, v)
    if refusal:
        raise NotImplementedError(refusal)
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    scale = default_scale(q) if scale is None else float(scale)
    return _Attention.apply(q, k, v, mask, causal, scale)  # type: ignore[no-any-return]


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


class Tile(NamedTuple):
    """What one program holds: a block of queries against a block of keys; and how Triton schedules it."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """One tile for each kernel."""

    forward: Tile
    grad_q: Tile
    grad_kv: Tile


# By the larger head dim: of tiles that sm_80 and sm_90 hold in registers and shared memory, the largest tried.
# Two stages even where they do not help the order of loads: they bring a tile to shared memory past the registers.
HALF_TILES = {
    64: Tiles(Tile(128, 64, 8, 3), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2)),
    128: Tiles(Tile(128, 64, 8, 2), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2)),
    256: Tiles(Tile(64, 32, 8, 2), Tile(64, 32, 8, 2), Tile(32, 32, 8, 2)),
}
# True float32 products have no tensor core: each thread holds whole rows of both operands in its registers.
FLOAT_TILES = {
    64: Tiles(Tile(32, 32, 4, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 2)),
    128: Tiles(Tile(32, 32, 8, 2), Tile(16, 16, 4, 2), Tile(16, 16, 8, 2)),
    256: Tiles(Tile(16, 16, 8, 2), Tile(16, 16, 8, 2), Tile(16, 16, 8, 2)),
}
# The interpreter knows no speed of a tile; small and unequal ones meet several blocks and their edges soon.
INTERPRETER_TILES = Tiles(Tile(64, 32, 1, 1), Tile(64, 32, 1, 1), Tile(32, 64, 1, 1))


def _tiles(q: Tensor, v: Tensor) -> Tiles:
    if INTERPRETED:
        return INTERPRETER_TILES
    table = FLOAT_TILES if q.dtype == torch.float32 else HALF_TILES
    return next(tiles for widest, tiles in table.items() if max(q.shape[3], v.shape[3]) <= widest)


class View(NamedTuple):
    """A 4-D tensor as the kernels take it: every layout is read where it lies, nothing is copied."""

    data: Tensor
    stride: tuple[int, ...]


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _padded(dim: int) -> int:
    """A product of tiles wants powers of two, and no axis under 16."""
    return max(16, 1 << (dim - 1).bit_length())


def _view(tensor: Tensor) -> View:
    return View(tensor, tensor.stride())


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[3])
        lse = q.new_empty(q.shape[:3], dtype=torch.float32)
        tile = _tiles(q, v).forward
        programs = q.shape[0] * q.shape[1] * _blocks(q.shape[2], tile.queries)
        _launch(forward_kernel, programs, tile, q, k, v, mask, causal, scale, _view(out), lse)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *_Gradients.apply(grad_out, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None


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
        tile = _tiles(q, v).grad_q
        programs = q.shape[0] * q.shape[1] * _blocks(q.shape[2], tile.queries)
        _launch(grad_q_kernel, programs, tile, *problem, *rows, _view(out), _view(grad_q))
        tile = _tiles(q, v).grad_kv
        programs = k.shape[0] * k.shape[1] * _blocks(k.shape[2], tile.keys)
        _launch(grad_kv_kernel, programs, tile, *problem, *rows, _view(grad_k), _view(grad_v))
        return grad_q, grad_k, grad_v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # type: ignore[override]
        raise NotImplementedError("the kernels have no second derivative")


def _arithmetic_of_a_gpu() -> AbstractContextManager[Any]:
    """An inf or NaN is a value like others on a GPU; the interpreter's NumPy would warn of it."""
    return warnings.catch_warnings(action="ignore", category=RuntimeWarning) if INTERPRETED else nullcontext()


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
