"""A Problem: everything that decides one attention call, small enough to read.

A problem holds sizes, flags and a seed; the tensors come from the seed. Its repr is its reproducer and names only what
differs from the smallest problem, so a shrunk counterexample is short. Tensors are drawn in float32 and rounded to the
dtype, so that every backend and the oracle see the same numbers, and each lies in memory surrounded by NaN, so that a
read out of bounds is seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,  # pinned here and there, not drawn: many a kernel refuses it
}
# One short of, at, and one past the usual block sizes, and lengths that are half a block off.
EDGES = (15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 160)
DIMS = (1, 2, 3, 8, 16, 24, 32, 64, 65, 72, 96, 128)


@dataclass(frozen=True)
class Problem:
    """One call of attention. Sizes as in `implementations._contract`; value_dim 0 means head_dim.

    mask         one of MASKS, or None; mask_shared: the axes, of "bhq", along which it is broadcast
    scores       one of SCORES: what the scaled scores look like
    layout       one of LAYOUTS: how q, k, v lie in memory; grad_layout: how the gradient of the output does
    wanted       which of q, k and v want a gradient, where there are gradients
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 1
    keys: int = 1
    dim: int = 1
    value_dim: int = 0
    dtype: str = "float32"
    causal: bool = False
    mask: str | None = None
    mask_shared: str = ""
    scale: float | None = None
    scores: str = "normal"
    layout: str = "contiguous"
    grad_layout: str = "contiguous"
    wanted: str = "QKV"
    device: str = "cpu"
    seed: int = 0

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Problem({', '.join(given)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis prints with this; its own form of a dataclass names every field."""
        printer.text(repr(self))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k, v and the mask; the same numbers on every device."""
        random = torch.Generator().manual_seed(self.seed)
        q = torch.randn(self.batch, self.heads, self.queries, self.dim, generator=random)
        k = torch.randn(self.batch, self.kv_heads, self.keys, self.dim, generator=random)
        v = torch.randn(self.batch, self.kv_heads, self.keys, self.value_dim or self.dim, generator=random)
        q, k = SCORES[self.scores](q, k)
        if self.scores in _WHATEVER_THE_SCALE and self.scale is not None:
            q = q / max(1.0, abs(self.scale) * self.dim**0.5)
        mask = None
        if self.mask is not None:
            full = torch.rand(self.batch, self.heads, self.queries, self.keys, generator=random)
            for axis, name in enumerate("bhq"):
                if name in self.mask_shared:
                    full = full.narrow(axis, 0, min(1, full.shape[axis]))
            mask = MASKS[self.mask](full).to(self.device)
        q, k, v = (self.placed(tensor, self.layout) for tensor in (q, k, v))
        return q, k, v, mask

    def grad_out(self) -> Tensor:
        """A gradient for the output, (batch, heads, queries, value_dim): random, nowhere zero."""
        random = torch.Generator().manual_seed(self.seed + 1)
        shape = (self.batch, self.heads, self.queries, self.value_dim or self.dim)
        grad = torch.randn(shape, generator=random)
        return self.placed(grad + grad.sign() * 0.1, self.grad_layout)

    def placed(self, tensor: Tensor, layout: str = "contiguous") -> Tensor:
        """The tensor in this problem's dtype and on its device, laid out in memory so."""
        return LAYOUTS[layout](tensor.to(self.device, DTYPES[self.dtype]))

    def options(self, mask: Tensor | None) -> dict[str, Any]:
        """The keyword arguments of the call."""
        return {"mask": mask, "causal": self.causal, "scale": self.scale}


def _normal(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q, k


def _zero(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(q), k


def _ties(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q.sign(), k.sign()


def _large(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q * 6, k * 6


def _with_score(q: Tensor, k: Tensor, score: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Adds a score that depends on the key's place only, through the first feature, at the default scale."""
    q, k = q * 0.5, k * 0.5
    q[..., 0] = float(q.shape[-1] ** 0.5)
    k[..., 0] = score(torch.arange(k.shape[2]))
    return q, k


def _rising(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _with_score(q, k, lambda j: (j // 16) * 8.0)


def _falling(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    # From block to block by more than exp can bridge: a maximum taken from the block alone overflows.
    return _with_score(q, k, lambda j: (j // 16) * -60.0)


def _alternating(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _with_score(q, k, lambda j: (j // 16 % 2) * 40.0)


def _very_negative(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _with_score(q, k, lambda j: torch.full_like(j, -300.0, dtype=torch.float32))


def _very_positive(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return _with_score(q, k, lambda j: torch.full_like(j, 300.0, dtype=torch.float32))


def _products(q: Tensor, k: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Every product q.k is 0.8 to 1 times `largest`, as the key has it; its sign is that of the query."""
    size = (largest / q.shape[-1]) ** 0.5
    return torch.ones_like(q) * q[..., :1].sign() * size, torch.ones_like(k) * (0.9 + 0.1 * k[..., :1].tanh()) * size


def _over_65504(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    # Products that float16 has no room for, and scores, once they are scaled, that it has. With one feature there is
    # nothing between the two.
    return _products(q, k, min(1e5, 6e4 * q.shape[-1] ** 0.5))


def _far_below(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    # Below any number that a kernel for half precision may begin its maximum with, and still one that float16 holds.
    q, k = _products(q, k, 6.25e4 * q.shape[-1] ** 0.5)
    return -q.abs(), k


SCORES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "normal": _normal,
    "zero": _zero,
    "ties": _ties,
    "large": _large,
    "rising": _rising,
    "falling": _falling,
    "alternating": _alternating,
    "very negative": _very_negative,
    "very positive": _very_positive,
    "over 65504": _over_65504,
    "far below": _far_below,
}

# Scores as large as float16 holds; in long rows the steps come to such as well. A larger scale than the default one
# finds a smaller query there.
AT_THE_LIMIT = ("over 65504", "far below")
_WHATEVER_THE_SCALE = (*AT_THE_LIMIT, "rising", "falling")


# Each takes uniform numbers in the mask's shape, so that a mask shared along an axis is drawn in its own shape.
def _random(uniform: Tensor) -> Tensor:
    return uniform > 0.4


def _padding(uniform: Tensor) -> Tensor:
    """Keys beyond a length that is drawn for each sample, head and query where those axes are not shared."""
    keys = uniform.shape[-1]
    length = (uniform[..., :1] * keys).floor() + 1
    return torch.arange(keys) < length


def _left_padding(uniform: Tensor) -> Tensor:
    return _padding(uniform).flip(-1)


def _fully_masked_row(uniform: Tensor) -> Tensor:
    """Some rows see nothing; the first always."""
    mask = _random(uniform) & (uniform[..., :1] > 0.3)
    if mask.numel():
        mask[(0,) * (mask.ndim - 1)] = False
    return mask


def _masked_start(uniform: Tensor) -> Tensor:
    """The first blocks of keys are hidden, at least one key stays."""
    keys = uniform.shape[-1]
    hidden = min(keys - 1, 2 * keys // 3)
    return torch.arange(keys).expand(uniform.shape) >= hidden


def _one_key(uniform: Tensor) -> Tensor:
    """Each row attends to exactly one key."""
    return uniform == uniform.amax(dim=-1, keepdim=True) if uniform.numel() else uniform > 1


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "random": _random,
    "padding": _padding,
    "left padding": _left_padding,
    "fully masked row": _fully_masked_row,
    "masked start": _masked_start,
    "one key": _one_key,
}


def _in_nan(shape: Sequence[int], like: Tensor) -> Tensor:
    """A NaN-filled tensor of that shape with eight more NaN before and after it in memory."""
    count = 1
    for size in shape:
        count *= size
    buffer = torch.full((count + 16,), float("nan"), dtype=like.dtype, device=like.device)
    return buffer[8 : 8 + count].view(tuple(shape))


def _contiguous(tensor: Tensor) -> Tensor:
    return _in_nan(tensor.shape, tensor).copy_(tensor)


def _heads_inside(tensor: Tensor) -> Tensor:
    """(batch, seq, heads, dim) in memory: what a layer's projection gives."""
    batch, heads, seq, dim = tensor.shape
    return _in_nan((batch, seq, heads, dim), tensor).transpose(1, 2).copy_(tensor)


def _sliced(tensor: Tensor) -> Tensor:
    """A part of something larger along every axis but the batch, at an odd offset."""
    batch, heads, seq, dim = tensor.shape
    larger = _in_nan((batch, heads + 1, seq + 3, dim + 5), tensor)
    return larger[:, 1:, 2 : 2 + seq, 3 : 3 + dim].copy_(tensor)


def _gaps(tensor: Tensor) -> Tensor:
    """Every other element of the last axis."""
    return _in_nan((*tensor.shape[:3], 2 * tensor.shape[3]), tensor)[..., ::2].copy_(tensor)


def _features_first(tensor: Tensor) -> Tensor:
    """(batch, heads, dim, seq) in memory: a key cache stored ready for the product."""
    return _in_nan((*tensor.shape[:2], tensor.shape[3], tensor.shape[2]), tensor).mT.copy_(tensor)


def _expanded(tensor: Tensor) -> Tensor:
    """One sample for the whole batch, with a stride of 0: the numbers change too."""
    return _contiguous(tensor[:1]).expand(tensor.shape) if len(tensor) else _contiguous(tensor)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": _contiguous,
    "heads inside": _heads_inside,
    "sliced": _sliced,
    "gaps": _gaps,
    "features first": _features_first,
    "expanded": _expanded,
}


# What one sample hides another may attend to in "expanded", which has one sample's numbers in all.
OWN_NUMBERS = [name for name in LAYOUTS if name != "expanded"]


def on(problem: Problem, device: torch.device) -> Problem:
    """The same problem on another device."""
    return replace(problem, device=str(device))
