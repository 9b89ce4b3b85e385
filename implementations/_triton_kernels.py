"""The kernels of `online_triton` and `two_pass_triton`: the forward kernel with its two passes, and the gradients.

Each takes q, k, v, the mask and the gradients as a tensor with its strides, `view.data` and `view.stride`; what is
kept for each row, the log-sum-exp (base 2) and delta, is a contiguous (batch, heads, queries). One grid axis runs over
batch, heads and blocks. Tiles are padded to DIM_TILE and VALUE_TILE, powers of two, with zeros that are never stored.
A loop computes the pointers of each block anew: carried along, from one loop to the next, they take more registers
than there are (`python -m verification.static` shows it; Triton 3.6 keeps them twice).
"""

import os
import sys
from typing import Any

import torch

if not torch.cuda.is_available() and "triton" not in sys.modules:
    # Without a GPU a compiled kernel could only fail with "0 active drivers". The variable is read when a kernel is
    # decorated, and Triton's own are when it is imported: after that it is too late.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret
LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(x log2 e), and exp2 is what the machine has

# A function that kernels call. The interpreter patches triton.language anew for every call of a decorated function,
# which takes time; called from a kernel, a plain function finds it patched.
_inlined: Any = (lambda function: function) if INTERPRETED else triton.jit


@triton.jit
def forward_kernel(
    q, k, v, mask, out, lse,
    scale, heads, kv_heads, queries, keys,
    TWO_PASS: tl.constexpr, CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head, over its keys."""
    blocks = tl.cdiv(queries, BLOCK_Q)
    row = tl.program_id(0) // blocks
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    kv_head = head // (heads // kv_heads)
    first = tl.program_id(0) % blocks * BLOCK_Q
    query = first + tl.arange(0, BLOCK_Q)
    q_tile = _rows(q, batch, head, query, queries, DIM, DIM_TILE, EDGE=True)
    last_key = _last_key(query, queries, keys, CAUSAL)
    inner, end = _key_range(mask, first, queries, keys, CAUSAL, BLOCK_Q, BLOCK_K)

    if TWO_PASS:
        weighted, row_lse = _two_passes(
            q_tile, k, v, mask, batch, head, kv_head, query, last_key, scale * LOG2_E, keys, inner, end,
            DIM, VALUE_DIM, DIM_TILE, VALUE_TILE, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    else:
        weighted, row_lse = _one_pass(
            q_tile, k, v, mask, batch, head, kv_head, query, last_key, scale * LOG2_E, keys, inner, end,
            DIM, VALUE_DIM, DIM_TILE, VALUE_TILE, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
    _store_rows(out, batch, head, query, queries, weighted, VALUE_DIM, VALUE_TILE)
    tl.store(lse + (batch * heads + head) * queries + query, row_lse, mask=query < queries)


# The passes: how a loop over the blocks of keys becomes a softmax. Each gives the output, normalised, and the row's
# log-sum-exp. Only the blocks at an edge pay for masking.


@_inlined
def _one_pass(
    q_tile, k, v, mask, batch, head, kv_head, query, last_key, scale_log2, keys, inner, end,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Online softmax: what was summed is rescaled whenever a block brings a larger score."""
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.full([BLOCK_Q], 0.0, tl.float32)
    weighted = tl.full([BLOCK_Q, VALUE_TILE], 0.0, tl.float32)
    for EDGE in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        for start in range(inner if EDGE else 0, end if EDGE else inner, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            k_tile = _rows(k, batch, kv_head, key, keys, DIM, DIM_TILE, EDGE)
            scores = _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, EDGE)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shift = _finite(new_largest) if EDGE else new_largest
            weights = tl.exp2(scores - shift[:, None])
            correction = tl.exp2(largest - shift)
            total = total * correction + tl.sum(weights, 1)
            v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE)
            weighted = weighted * correction[:, None]
            weighted = tl.dot(weights.to(v_tile.dtype), v_tile, weighted, input_precision="ieee")
            largest = new_largest
    row_total = tl.where(total == 0.0, 1.0, total)
    return weighted / row_total[:, None], _log_sum_exp(largest, total)


@_inlined
def _two_passes(
    q_tile, k, v, mask, batch, head, kv_head, query, last_key, scale_log2, keys, inner, end,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """First the maximum and the sum of exponentials of the whole row, then weights that are final, times the values."""
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.full([BLOCK_Q], 0.0, tl.float32)
    for EDGE in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        for start in range(inner if EDGE else 0, end if EDGE else inner, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            k_tile = _rows(k, batch, kv_head, key, keys, DIM, DIM_TILE, EDGE)
            scores = _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, EDGE)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shift = _finite(new_largest) if EDGE else new_largest
            total = total * tl.exp2(largest - shift) + tl.sum(tl.exp2(scores - shift[:, None]), 1)
            largest = new_largest

    row_shift = _finite(largest)
    row_share = 1.0 / tl.where(total == 0.0, 1.0, total)
    weighted = tl.full([BLOCK_Q, VALUE_TILE], 0.0, tl.float32)
    for EDGE in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        for start in range(inner if EDGE else 0, end if EDGE else inner, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            k_tile = _rows(k, batch, kv_head, key, keys, DIM, DIM_TILE, EDGE)
            scores = _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, EDGE)
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
            v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE)
            weighted = tl.dot(weights.to(v_tile.dtype), v_tile, weighted, input_precision="ieee")
    return weighted, _log_sum_exp(largest, total)


@triton.jit
def grad_q_kernel(
    q, k, v, mask, grad_out, lse, delta, out, grad_q,
    scale, heads, kv_heads, queries, keys,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one block of queries of one head, over its keys; and delta of its rows."""
    blocks = tl.cdiv(queries, BLOCK_Q)
    row = tl.program_id(0) // blocks
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    kv_head = head // (heads // kv_heads)
    first = tl.program_id(0) % blocks * BLOCK_Q
    query = first + tl.arange(0, BLOCK_Q)
    q_tile = _rows(q, batch, head, query, queries, DIM, DIM_TILE, EDGE=True)
    g_tile = _rows(grad_out, batch, head, query, queries, VALUE_DIM, VALUE_TILE, EDGE=True)
    out_tile = _rows(out, batch, head, query, queries, VALUE_DIM, VALUE_TILE, EDGE=True)
    row_at = (batch * heads + head) * queries + query
    row_lse = tl.load(lse + row_at, mask=query < queries, other=float("inf"))
    row_delta = tl.sum(g_tile.to(tl.float32) * out_tile.to(tl.float32), 1)  # = sum over keys of P dP
    tl.store(delta + row_at, row_delta, mask=query < queries)
    scale_log2 = scale * LOG2_E

    grad = tl.full([BLOCK_Q, DIM_TILE], 0.0, tl.float32)
    last_key = _last_key(query, queries, keys, CAUSAL)
    inner, end = _key_range(mask, first, queries, keys, CAUSAL, BLOCK_Q, BLOCK_K)
    for EDGE in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        for start in range(inner if EDGE else 0, end if EDGE else inner, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            k_tile = _rows(k, batch, kv_head, key, keys, DIM, DIM_TILE, EDGE)
            v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE)
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale_log2
            weights = tl.exp2(scores - row_lse[:, None])
            grad_weights = tl.dot(g_tile, tl.trans(v_tile), input_precision="ieee")
            grad_scores = weights * (grad_weights - row_delta[:, None])  # pyright: ignore[reportArgumentType]
            if EDGE:
                # A select and not a product with 0: a masked key or value may have made an inf by now.
                attended = _attends(mask, batch, head, query[:, None], key[None, :], last_key[:, None])
                grad_scores = tl.where(attended, grad_scores, 0.0)
            grad = tl.dot(grad_scores.to(k_tile.dtype), k_tile, grad, input_precision="ieee")

    _store_rows(grad_q, batch, head, query, queries, grad * scale, DIM, DIM_TILE)


@triton.jit
def grad_kv_kernel(
    q, k, v, mask, grad_out, lse, delta, grad_k, grad_v,
    scale, heads, kv_heads, queries, keys,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr, VALUE_TILE: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one block of keys of one kv head, over the queries of all heads that read it.

    Scores lie transposed, (keys, queries), so that weights enter the products with the gradient as they are.
    """
    blocks = tl.cdiv(keys, BLOCK_K)
    row = tl.program_id(0) // blocks
    batch, kv_head = (row // kv_heads).to(tl.int64), (row % kv_heads).to(tl.int64)
    group = heads // kv_heads
    first = tl.program_id(0) % blocks * BLOCK_K
    key = first + tl.arange(0, BLOCK_K)
    k_tile = _rows(k, batch, kv_head, key, keys, DIM, DIM_TILE, EDGE=True)
    v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE=True)
    scale_log2 = scale * LOG2_E

    # Queries below `begin` attend to none of these keys, those from `inner` on to all of them.
    begin, inner = 0, 0
    if CAUSAL:
        first_query = first - (keys - queries)
        begin = tl.maximum(0, first_query) // BLOCK_Q * BLOCK_Q
        inner = tl.cdiv(tl.maximum(0, first_query + BLOCK_K - 1), BLOCK_Q) * BLOCK_Q
        inner = tl.minimum(queries, inner)
    if mask is not None:
        inner = queries
    grad_key = tl.full([BLOCK_K, DIM_TILE], 0.0, tl.float32)
    grad_value = tl.full([BLOCK_K, VALUE_TILE], 0.0, tl.float32)
    # One loop over the blocks of all heads, those with masked pairs first: an outer loop over the heads would keep the
    # addresses that all heads share in registers, and drain the pipeline after each head.
    for INNER in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        start, stop = (inner, queries) if INNER else (begin, inner)
        member, block = 0, start
        for _ in range(group * tl.cdiv(stop - start, BLOCK_Q)):
            head = kv_head * group + member
            query = block + tl.arange(0, BLOCK_Q)
            inside = query < queries
            q_tile = _rows(q, batch, head, query, queries, DIM, DIM_TILE, EDGE=True)
            g_tile = _rows(grad_out, batch, head, query, queries, VALUE_DIM, VALUE_TILE, EDGE=True)
            # +inf gives a query beyond the last no weight; what a key beyond the last collects is not stored.
            row_at = (batch * heads + head) * queries + query
            row_lse = tl.load(lse + row_at, mask=inside, other=float("inf"))
            row_delta = tl.load(delta + row_at, mask=inside, other=0.0)
            scores = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee") * scale_log2
            weights = tl.exp2(scores - row_lse[None, :])  # (BLOCK_K, BLOCK_Q)
            grad_weights = tl.dot(v_tile, tl.trans(g_tile), input_precision="ieee")
            grad_scores = weights * (grad_weights - row_delta[None, :])
            if not INNER:
                last_key = _last_key(query, queries, keys, CAUSAL)
                attended = _attends(mask, batch, head, query[None, :], key[:, None], last_key[None, :])
                weights = tl.where(attended, weights, 0.0)
                grad_scores = tl.where(attended, grad_scores, 0.0)
            grad_value = tl.dot(weights.to(g_tile.dtype), g_tile, grad_value, input_precision="ieee")
            grad_key = tl.dot(grad_scores.to(q_tile.dtype), q_tile, grad_key, input_precision="ieee")
            block += BLOCK_Q
            member = tl.where(block < stop, member, member + 1)
            block = tl.where(block < stop, block, start)

    _store_rows(grad_k, batch, kv_head, key, keys, grad_key * scale, DIM, DIM_TILE)
    _store_rows(grad_v, batch, kv_head, key, keys, grad_value, VALUE_DIM, VALUE_TILE)


@_inlined
def _pointers(view, batch, head, rows, columns):
    """Pointers to the tile (rows, columns) of one head; in 64 bits, since a tensor may pass 2^31 elements."""
    origin = view.data + batch * view.stride[0] + head * view.stride[1]
    return origin + rows.to(tl.int64)[:, None] * view.stride[2] + columns.to(tl.int64) * view.stride[3]


@_inlined
def _rows(view, batch, head, row, rows, WIDTH: tl.constexpr, TILE: tl.constexpr, EDGE: tl.constexpr):
    """(rows, TILE): these rows of one head, with zeros beyond WIDTH and, where EDGE, for a row beyond the last."""
    column = tl.arange(0, TILE)[None, :]
    inside = column < WIDTH
    if EDGE:
        inside = inside & (row < rows)[:, None]
    return tl.load(_pointers(view, batch, head, row, column), mask=inside, other=0.0)


@_inlined
def _store_rows(view, batch, head, row, rows, tile, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Rounds the tile to the dtype of the tensor, and stores what lies inside it."""
    column = tl.arange(0, TILE)[None, :]
    inside = (row < rows)[:, None] & (column < WIDTH)
    tl.store(_pointers(view, batch, head, row, column), tile.to(view.data.dtype.element_ty), mask=inside)


@_inlined
def _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, EDGE: tl.constexpr):
    """(BLOCK_Q, BLOCK_K): the scaled scores in base 2, in an edge block -inf where a query does not attend to a key."""
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale_log2
    if EDGE:
        attended = _attends(mask, batch, head, query[:, None], key[None, :], last_key[:, None])
        scores = tl.where(attended, scores, float("-inf"))
    return scores


@_inlined
def _finite(largest):
    """While a row has met masked keys only, -inf - -inf would be NaN; any finite shift gives weights of zero."""
    return tl.where(largest == float("-inf"), 0.0, largest)


@_inlined
def _log_sum_exp(largest, total):
    """+inf for a fully masked row makes each of its weights exp2(score - inf) = 0 in the backward pass."""
    fully_masked = total == 0.0
    return tl.where(fully_masked, float("inf"), largest + tl.log2(tl.where(fully_masked, 1.0, total)))


@_inlined
def _last_key(query, queries, keys, CAUSAL: tl.constexpr):
    """The last key that each query may attend to without the mask; negative if none, as for a row beyond the last."""
    return tl.where(query < queries, query + (keys - queries) if CAUSAL else keys - 1, -1)


@_inlined
def _key_range(mask, first, queries, keys, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """(inner, end) for the queries from `first`: all of them attend to keys below `inner`, none to keys from `end`."""
    inner, end = keys, keys
    if CAUSAL:
        of_first = first + 1 + keys - queries  # as many keys as the first query attends to; 0 or less is none
        inner = tl.minimum(keys, tl.maximum(0, of_first))
        end = tl.minimum(keys, tl.maximum(0, of_first + BLOCK_Q - 1))
    if mask is not None:
        inner = 0
    return inner // BLOCK_K * BLOCK_K, end


@_inlined
def _attends(mask, batch, head, query, key, last_key):
    """Which query attends to which key; `query` (with its `last_key`) and `key` come broadcastable to one another."""
    attended = key <= last_key
    if mask is not None:
        origin = mask.data + batch * mask.stride[0] + head * mask.stride[1]
        mask_at = origin + query.to(tl.int64) * mask.stride[2] + key.to(tl.int64) * mask.stride[3]
        attended = tl.load(mask_at, mask=attended, other=0) != 0
    return attended
