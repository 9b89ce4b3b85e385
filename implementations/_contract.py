"""What every backend promises, and the checks they share.

    attend(q, k, v, *, mask=None, causal=False, scale=None) -> out

    q       (batch, heads, queries, dim)
    k       (batch, kv_heads, keys, dim)         query head h reads kv head h // (heads // kv_heads)
    v       (batch, kv_heads, keys, value_dim)
    mask    bool, broadcastable to (batch, heads, queries, keys); True = may attend
    causal  query i attends to key j iff j <= i + keys - queries (bottom-right); intersects with mask
    scale   dim ** -0.5 unless given
    out     (batch, heads, queries, value_dim), dtype and device of q, new memory, inputs untouched

A backend answers or refuses: the right answer, or NotImplementedError with the reason. Inputs that do not fit
together are a ValueError. A fully masked row is exactly zero, and so are its gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

INPUT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Attend(Protocol):
    """The type of a backend's function; the module's docstring is its contract."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        /,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Tensor: ...


# (x, packed weight, heads, kv_heads) -> q, k, v
Project = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Facts:
    """What a backend states about its arithmetic. `verification` holds it to each of these, both ways.

    scores            the dtype its scores live in; None: the dtype of the input
    sums              the dtype its gradients are added up in, block by block; None: the dtype of the input
    masked_nonfinite  which rows a NaN or Inf in a masked value can reach; one in a masked key reaches these at most.
                      "per row": only rows that may attend to it; "fully masked keys": any row, but none where no
                      query may attend to that key; "leaks": any row. None: nothing is stated
    hides_nan         device types on which a row gives zero where all the scores it attends to are NaN
    deterministic     the same call gives the same bits; None: nothing is stated
    memory            how its memory beyond inputs and output grows with the sequence; None: nothing is stated

    And where it differs from the contract, which is stated so that all else can be judged, and reported:

    fully_masked_rows  what a row gives that may attend to nothing: the mean of all values is what a large negative
                       number in place of -inf makes of it
    causal_corner      where causality is anchored: from "top-left" query i attends to key j iff j <= i
    forward_only       it has no gradients, and its output requires none
    """

    scores: torch.dtype | None = None
    sums: torch.dtype | None = None
    masked_nonfinite: Literal["per row", "fully masked keys", "leaks"] | None = None
    hides_nan: tuple[str, ...] = ()
    deterministic: bool | None = None
    memory: Literal["linear", "quadratic"] | None = None
    fully_masked_rows: Literal["zero", "nan", "mean"] = "zero"
    causal_corner: Literal["bottom-right", "top-left"] = "bottom-right"
    forward_only: bool = False


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Raises ValueError, with what was given and what is wanted, unless the inputs fit together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}; wanted a torch.Tensor")
        if tensor.ndim != 4:
            raise ValueError(f"{name} has shape {_shape(tensor)}; wanted 4 axes (batch, heads, sequence, head_dim)")
        if tensor.dtype not in INPUT_DTYPES:
            raise ValueError(f"{name} is {tensor.dtype}; wanted one of {', '.join(map(str, INPUT_DTYPES))}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; wanted one dtype")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}; wanted one device")
    batch, heads, queries, dim = q.shape
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"k has shape {_shape(k)} and v {_shape(v)}; wanted the same batch, kv_heads and keys in both")
    if k.shape[0] != batch:
        raise ValueError(f"q has a batch of {batch} and k, v one of {k.shape[0]}; wanted the same batch")
    if k.shape[3] != dim or dim == 0:
        raise ValueError(f"q has head_dim {dim} and k {k.shape[3]}; wanted the same, at least 1")
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise ValueError(f"q has {heads} heads and k, v {k.shape[1]}; wanted kv_heads that divide heads")
    if mask is None:
        return
    wanted = (batch, heads, queries, k.shape[2])
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask is {given}; wanted a torch.bool tensor where True means may attend")
    if mask.device != q.device:
        raise ValueError(f"mask is on {mask.device} and q on {q.device}; wanted one device")
    if mask.ndim > 4 or any(m not in (1, w) for m, w in zip(reversed(mask.shape), reversed(wanted), strict=False)):
        raise ValueError(
            f"mask has shape {_shape(mask)}; wanted one broadcastable to (batch, heads, queries, keys) = {wanted}"
        )


def visibility(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Which query may attend to which key: bool, broadcastable to (batch, heads, queries, keys); None: all of them."""
    if not causal:
        return mask
    queries, keys = q.shape[2], k.shape[2]
    past = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return past if mask is None else past & mask


def default_scale(q: Tensor) -> float:
    """dim ** -0.5, the article's 2.3: it keeps the variance of the scores near 1 whatever the dim."""
    return q.shape[-1] ** -0.5


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
