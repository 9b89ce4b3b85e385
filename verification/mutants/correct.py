"""Changes that are no faults: other blocks, other orders, other forms of the same arithmetic. None may be rejected."""

from verification.mutants.mutant import Mutant

VARIANTS = (
    Mutant(
        name="small_key_blocks",
        base="online",
        file="_blocks.py",
        old="KEY_BLOCK = 512",
        new="KEY_BLOCK = 16",
        why="ten and more blocks of keys for one row",
    ),
    Mutant(
        name="small_query_blocks",
        base="two_pass",
        file="_blocks.py",
        old="QUERY_BLOCK = 256",
        new="QUERY_BLOCK = 16",
        why="dK and dV are added up from many blocks of queries",
    ),
    Mutant(
        name="last_keys_first",
        base="online",
        file="_blocks.py",
        old="""\
        for start in range(0, keys, KEY_BLOCK):
            columns = slice(start, min(start + KEY_BLOCK, keys))
""",
        new="""\
        for start in reversed(range(0, keys, 32)):
            columns = slice(start, min(start + 32, keys))
""",
        why="the blocks of keys are walked from the last to the first",
    ),
    Mutant(
        name="exponentials_in_base_two",
        base="online",
        file="online.py",
        old="""\
        weights = scores.sub_(shift).exp_()
        correction = (running_max - shift).exp_()
""",
        new="""\
        weights = scores.sub_(shift).mul_(1.4426950408889634).exp2_()
        correction = (running_max - shift).mul_(1.4426950408889634).exp2_()
""",
        why="exp(x) = exp2(x log2 e)",
    ),
    Mutant(
        name="maximum_shifted",
        base="online",
        file="online.py",
        old="new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))",
        new="new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True) + 2.0)",
        why="any number near the maximum keeps exp from overflowing",
    ),
    Mutant(
        name="weights_normalised_last",
        base="two_pass",
        file="two_pass.py",
        old="""\
        weights = scores.sub_(shift).exp_().div_(total)
        output.baddbmm_(weights, value)
    return output,""",
        new="""\
        weights = scores.sub_(shift).exp_()
        output.baddbmm_(weights, value)
    return output / total,""",
        why="the output is divided by the sum, not each weight",
    ),
    Mutant(
        name="summed_from_the_other_end",
        base="online",
        file="online.py",
        old="weights.sum(dim=-1, keepdim=True)",
        new="weights.flip(-1).cumsum(dim=-1)[..., -1:]",
        why="the exponentials are added one by one, from the last",
    ),
    Mutant(
        name="dense_softmax_in_float32",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="""\
wide = scores.to(torch.promote_types(q.dtype, torch.float32))
    exponentials = (wide - wide.detach().amax(dim=-1, keepdim=True)).exp() if k.shape[2] else wide
    weights = (exponentials / exponentials.sum(dim=-1, keepdim=True)).to(q.dtype)""",
        why="maximum, exponentials and sum written out over the whole score matrix",
    ),
    Mutant(
        name="scores_scaled_last",
        base="two_pass",
        file="_blocks.py",
        old="scores = torch.bmm(query, key.transpose(1, 2))",
        new="scores = torch.bmm(query / 3.0, key.transpose(1, 2)) * 3.0",
        why="a factor of the query is taken out of the product and put back after it",
    ),
    Mutant(
        name="gradients_in_the_layout_of_the_inputs",
        base="online",
        file="_blocks.py",
        old="grad_q = q.new_empty(q.shape)",
        new="grad_q = torch.empty_like(q)",
        why="dQ keeps the strides of q where those are dense",
    ),
    Mutant(
        name="copies_kept_for_the_backward_pass",
        base="online",
        file="_blocks.py",
        old="ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)",
        new="ctx.save_for_backward(q.clone(), k.clone(), v.clone(), mask, out.clone(), log_sum_exp)",
        why="what is overwritten between the two passes changes nothing, and torch has nothing to notice",
    ),
    Mutant(
        name="reentrant_checkpoint",
        base="eager",
        file="eager.py",
        old="    return weights @ v",
        new="""\
    from torch.utils.checkpoint import checkpoint as checkpointed

    return checkpointed(torch.matmul, weights, v, use_reentrant=True)""",
        why="computed again in the backward pass, which then goes by .backward() and not by torch.autograd.grad",
    ),
    Mutant(
        name="maximum_starts_at_a_finite_number",
        base="online",
        file="online.py",
        old='running_max = blocks.filled(1, float("-inf"))',
        new="running_max = blocks.filled(1, -1e30)",
        why="below any score of the inputs' dtype that the kernel could meet, in float32",
    ),
    Mutant(
        name="scratch_of_each_thread",
        base="online",
        file="online.py",
        old="    output = blocks.filled(blocks.value.shape[-1], 0.0)\n",
        new="""\
    import threading

    output = blocks.filled(blocks.value.shape[-1], 0.0)
    own = f"{threading.get_ident()} {output.shape} {output.dtype}"
    output = _one_pass.__dict__.setdefault(own, output).zero_()
""",
        why="the buffer that sums are kept in is reused by calls of one size, but no two threads have the same",
    ),
    Mutant(
        name="scratch_behind_a_lock",
        base="online",
        file="_blocks.py",
        old="            out_rows, log_sum_exp_rows = passes(blocks)\n",
        new="""\
            import threading

            with _query_blocks.__dict__.setdefault("lock", threading.Lock()):
                out_rows, log_sum_exp_rows = passes(blocks)
""",
        why="one call at a time: a thread waits for the other",
    ),
    Mutant(
        name="inputs_not_looked_at",
        base="eager",
        file="eager.py",
        old="    check(q, k, v, mask)\n",
        new="",
        why="a plain function: what makes no sense is refused by torch, what torch broadcasts is broadcast",
    ),
    Mutant(
        name="inputs_cast_to_the_dtype_of_the_query",
        base="eager",
        file="eager.py",
        old="    check(q, k, v, mask)\n",
        new="""\
    k, v = k.to(q.dtype), v.to(q.dtype)
    mask = mask if mask is None else mask.bool()
    check(q, k, v, mask)
""",
        why="more is taken than the contract wants, and it is taken for what it means",
    ),
    Mutant(
        name="triton_other_tiles",
        base="online_triton",
        file="_triton_tiles.py",
        old='{"online": Tile(64, 32, 1, 1), "grad_q": Tile(64, 32, 1, 1), "grad_kv": Tile(32, 64, 1, 1)}',
        new='{"online": Tile(32, 64, 1, 1), "grad_q": Tile(16, 64, 1, 1), "grad_kv": Tile(64, 32, 1, 1)}',
        why="other shapes of tiles in all three kernels",
    ),
    Mutant(
        name="triton_fully_masked_rows_selected_away",
        base="online_triton",
        file="_triton_kernels.py",
        old='tl.where(fully_masked, float("inf"), largest + tl.log2(tl.where(fully_masked, 1.0, total)))',
        new="largest + tl.log2(tl.where(fully_masked, 1.0, total))",
        why="a fully masked row is kept as -inf: the selects of the backward kernels hide what that gives",
    ),
    Mutant(
        name="triton_two_pass_normalised_last",
        base="two_pass_triton",
        file="_triton_kernels.py",
        old="""\
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
            v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE)
            weighted = tl.dot(weights.to(v_tile.dtype), v_tile, weighted, input_precision="ieee")
    return weighted,""",
        new="""\
            weights = tl.exp2(scores - row_shift[:, None])
            v_tile = _rows(v, batch, kv_head, key, keys, VALUE_DIM, VALUE_TILE, EDGE)
            weighted = tl.dot(weights.to(v_tile.dtype), v_tile, weighted, input_precision="ieee")
    return weighted * row_share[:, None],""",
        why="the sum of exponentials divides the output instead of each weight",
    ),
)
