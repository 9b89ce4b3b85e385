"""Attention in blocks: what the two-pass and the online softmax have in common.

A block of queries meets the keys block by block, so that only a (QUERY_BLOCK, KEY_BLOCK) piece of the score
matrix exists at a time and memory grows with the sequence, not with its square. How a pass over the blocks of
keys becomes a softmax is the backend's own: it hands in `passes`. The backward pass is the same for all:
each piece of the weights is computed again from the scores and the row's log-sum-exp.

Source of the backward pass: Dao 2023, arXiv 2307.08691, algorithm 2.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from implementations._contract import check, default_scale

# One head's piece of the scores, 256 x 512 in float32, is half a megabyte: it stays in the L2 cache of one core.
QUERY_BLOCK = 256
KEY_BLOCK = 512


@dataclass
class KeyBlocks:
    """The keys and values that one block of queries may attend to, piece by piece, as often as it is iterated over.

    Yields (scores, value, columns): the scaled scores (batch kv_heads, group rows, columns) with -inf where a
    key is masked, in new memory; the values (batch kv_heads, columns, value_dim); and their place in the keys.
    The query heads that share a kv head lie under one another: they are further rows of the same product.
    """

    query: Tensor  # (batch, kv_heads, group, rows, dim), scaled
    key: Tensor  # (batch, kv_heads, keys, dim)
    value: Tensor  # (batch, kv_heads, keys, value_dim)
    mask: Tensor | None  # (batch, kv_heads, group, rows, keys)
    last_key: Tensor | None  # (rows, 1): under a causal mask, the last key that each row may attend to

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, slice]]:
        query = self.rows(self.query)
        keys = self.key.shape[2]
        if self.last_key is not None and len(self.last_key):
            keys = min(keys, int(self.last_key[-1]) + 1)
        for start in range(0, keys, KEY_BLOCK):
            columns = slice(start, min(start + KEY_BLOCK, keys))
            key = self.key[:, :, columns].flatten(0, 1).to(query.dtype)
            value = self.value[:, :, columns].flatten(0, 1).to(query.dtype)
            scores = torch.bmm(query, key.transpose(1, 2))
            self._hide(scores.view(*self.query.shape[:4], key.shape[1]), columns)
            yield scores, value, columns

    def _hide(self, scores: Tensor, columns: slice) -> None:
        if self.mask is not None:
            scores.masked_fill_(~self.mask[..., columns], float("-inf"))
        if self.last_key is not None and columns.stop - 1 > self.last_key[0]:
            # Keys that the first row may attend to, all rows may attend to.
            first = max(columns.start, int(self.last_key[0]) + 1)
            column = torch.arange(first, columns.stop, device=scores.device)
            scores[..., first - columns.start :].masked_fill_(column > self.last_key, float("-inf"))

    def rows(self, block: Tensor) -> Tensor:
        """(batch, kv_heads, group, rows, ...) -> (batch kv_heads, group rows, ...), as the products want it."""
        return block.flatten(0, 1).flatten(1, 2)

    def filled(self, width: int, fill: float) -> Tensor:
        """New (batch kv_heads, group rows, width), for the state that a pass keeps for each row."""
        batch, kv_heads, group, rows, _ = self.query.shape
        return self.query.new_full((batch * kv_heads, group * rows, width), fill)


# -> output (batch kv_heads, group rows, value_dim) and log-sum-exp of the scores (..., 1), -inf of fully masked rows
Passes = Callable[[KeyBlocks], tuple[Tensor, Tensor]]


def attend_in_blocks(
    passes: Passes, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    """Attention whose softmax is `passes`; shapes and errors as in `implementations._contract`."""
    check(q, k, v, mask)
    return _InBlocks.apply(passes, q, k, v, mask, causal, default_scale(q) if scale is None else scale)


class _InBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        passes: Passes,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> Tensor:
        out = q.new_empty(*q.shape[:3], v.shape[3])
        log_sum_exp = q.new_empty(*q.shape[:3], 1, dtype=_state_dtype(q))
        for rows, blocks in _query_blocks(q, k, v, mask, causal, scale):
            out_rows, log_sum_exp_rows = passes(blocks)
            _grouped(out, k)[..., rows, :] = out_rows.view(*blocks.query.shape[:4], v.shape[3])
            _grouped(log_sum_exp, k)[..., rows, :] = log_sum_exp_rows.view(*blocks.query.shape[:4], 1)
        ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *_Gradients.apply(grad_out, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None


class _Gradients(torch.autograd.Function):
    """The backward pass as a function of q, k and v, so that a second derivative raises instead of missing terms.

    With P the weights and delta as below, for the rows of one block:

        dV = P^T dO,  dP = dO V^T,  dS = P * (dP - delta),  dQ = scale dS K,  dK = scale dS^T Q

    `query` is scaled already, so dK needs no scale of its own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        log_sum_exp: Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = _state_dtype(q)
        grad_q = q.new_empty(q.shape)
        grad_k = k.new_zeros(k.shape[0] * k.shape[1], *k.shape[2:], dtype=state)
        grad_v = v.new_zeros(v.shape[0] * v.shape[1], *v.shape[2:], dtype=state)
        # exp(-inf - inf) = 0: a fully masked row has no weights, where -inf - -inf would be NaN.
        log_sum_exp = log_sum_exp.masked_fill(log_sum_exp == float("-inf"), float("inf"))
        for rows, blocks in _query_blocks(q, k, v, mask, causal, scale):
            query = blocks.rows(blocks.query)
            grad = blocks.rows(_grouped(grad_out, k)[..., rows, :]).to(state)
            answer = blocks.rows(_grouped(out, k)[..., rows, :]).to(state)
            lse = blocks.rows(_grouped(log_sum_exp, k)[..., rows, :])
            delta = (grad * answer).sum(dim=-1, keepdim=True)  # = sum_j P_ij dP_ij
            grad_query = blocks.filled(q.shape[3], 0.0)
            for scores, value, columns in blocks:
                weights = scores.sub_(lse).exp_()
                grad_scores = torch.bmm(grad, value.transpose(1, 2)).sub_(delta).mul_(weights)
                key = k[:, :, columns].flatten(0, 1).to(state)
                grad_query.baddbmm_(grad_scores, key)
                grad_k[:, columns].baddbmm_(grad_scores.transpose(1, 2), query)
                grad_v[:, columns].baddbmm_(weights.transpose(1, 2), grad)
            _grouped(grad_q, k)[..., rows, :] = grad_query.view_as(blocks.query) * scale
        return grad_q, grad_k.view(k.shape).to(k.dtype), grad_v.view(v.shape).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise NotImplementedError("attention in blocks has no second derivative")


def _query_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Iterator[tuple[slice, KeyBlocks]]:
    queries, keys = q.shape[2], k.shape[2]
    if mask is not None:
        mask = _grouped(mask.expand(*q.shape[:3], keys), k)
    for start in range(0, queries, QUERY_BLOCK):
        rows = slice(start, min(start + QUERY_BLOCK, queries))
        query = _grouped(q, k)[..., rows, :].to(_state_dtype(q)) * scale
        last_key = None
        if causal:
            last_key = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (keys - queries)
        yield rows, KeyBlocks(query, k, v, None if mask is None else mask[..., rows, :], last_key)


def _grouped(tensor: Tensor, k: Tensor) -> Tensor:
    """(batch, heads, ...) -> (batch, kv_heads, group, ...): a view in which a kv head and its query heads meet."""
    return tensor.unflatten(1, (k.shape[1], tensor.shape[1] // k.shape[1]))


def _state_dtype(q: Tensor) -> torch.dtype:
    """Scores, sums and accumulators live in float32 for the half types."""
    return torch.promote_types(q.dtype, torch.float32)
