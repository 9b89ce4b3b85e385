"""Multi-head self-attention as a layer, from x to y, around any backend."""

from typing import Any

from torch import Tensor, nn

from implementations._loading import Backend, load


class SelfAttention(nn.Module):
    """y = Concat(head_1, ..., head_h) W_O with head_i = attend(x W_Q^i, x W_K^i, x W_V^i).

    x and y are (batch, seq, d_model); the mask is as in `implementations._contract`. heads=1 is single-head
    attention. There is one packed weight, W_QKV, with the rows of W_Q, W_K and W_V under one another, so every
    backend has the same state_dict. Without kv_heads it holds 3 d_model^2 numbers, and W_O d_model^2, whatever the
    number of heads: that says only how the rows are split.

    Raises ValueError where heads do not divide d_model, or kv_heads do not divide heads.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2; the article's 3.2 and 4.2.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        backend: str | Backend = "eager",
        **factory: Any,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or d_model < 1 or d_model % heads:
            raise ValueError(f"d_model is {d_model} and heads {heads}; wanted heads that divide d_model")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"heads is {heads} and kv_heads {kv_heads}; wanted kv_heads that divide heads")
        self.d_model, self.heads, self.kv_heads = d_model, heads, kv_heads
        self.backend = load(backend) if isinstance(backend, str) else backend
        head_dim = d_model // heads
        self.W_QKV = nn.Linear(d_model, (heads + 2 * kv_heads) * head_dim, bias=False, **factory)
        self.W_O = nn.Linear(d_model, d_model, bias=False, **factory)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x has shape {tuple(x.shape)}; wanted (batch, seq, {self.d_model})")
        q, k, v = self.backend.project(x, self.W_QKV.weight, self.heads, self.kv_heads)
        heads_out = self.backend.attend(q, k, v, mask=mask, causal=causal)  # (batch, heads, seq, head_dim)
        return self.W_O(heads_out.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        return f"{self.d_model}, heads={self.heads}, kv_heads={self.kv_heads}, backend={self.backend.name!r}"
