"""Faults in the source of the Triton kernels and of what launches them."""

from verification.mutants.mutant import Mutant

_KERNELS = "_triton_kernels.py"

MUTANTS = (
    Mutant(
        name="triton_causal_off_by_one",
        base="online_triton",
        file=_KERNELS,
        old="query + (keys - queries) if CAUSAL else keys - 1",
        new="query + (keys - queries) + 1 if CAUSAL else keys - 1",
        report="flashinfer-ai/flashinfer#348",
        killed_by="test_the_future_does_not_reach_the_past",
        why="each query attends to one key of its future, within the blocks that it walks",
    ),
    Mutant(
        name="triton_causal_anchored_top_left",
        base="online_triton",
        file=_KERNELS,
        old="query + (keys - queries) if CAUSAL else keys - 1",
        new="tl.minimum(query, keys - 1) if CAUSAL else keys - 1",
        report="Dao-AILab/flash-attention#436, pytorch/pytorch#115111",
        killed_by="test_the_causal_flag_is_the_lower_right_triangle",
        why="the corner of the triangle is top-left where the bounds of the loop are bottom-right",
    ),
    Mutant(
        name="triton_diagonal_block_unmasked",
        base="online_triton",
        file=_KERNELS,
        old="inner = tl.minimum(keys, tl.maximum(0, of_first))",
        new="inner = tl.minimum(keys, tl.maximum(0, of_first + BLOCK_Q - 1))",
        report="jax-ml/jax#19237",
        killed_by="test_the_future_does_not_reach_the_past",
        why="the keys that the last query of a block attends to are taken for those of all its queries",
    ),
    Mutant(
        name="triton_mask_at_the_edge_only",
        base="online_triton",
        file=_KERNELS,
        old="    if mask is not None:\n        inner = 0\n",
        new="",
        report="pacman100/LLM-Workshop#1",
        killed_by="test_masking_keys_is_deleting_them",
        why="whole blocks of keys are taken for visible to all although a mask is given",
    ),
    Mutant(
        name="triton_mask_of_the_first_sample",
        base="online_triton",
        file=_KERNELS,
        old="mask.data + batch * mask.stride[0] + head * mask.stride[1]",
        new="mask.data + head * mask.stride[1]",
        report="turboderp-org/exllamav2#240, unslothai/unsloth#1638",
        killed_by="test_a_sample_alone_is_the_sample_in_its_batch",
        why="the mask of the first sample hides keys in all of them",
    ),
    Mutant(
        name="triton_mask_offset_wraps",
        base="online_triton",
        file=_KERNELS,
        old="query.to(tl.int64) * mask.stride[2]",
        new="query.to(tl.int64) * mask.stride[2] % 4096",
        report="pytorch/pytorch#187227, pytorch/pytorch#162588, ggml-org/llama.cpp#24912",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the offset of a row of the mask overflows, here at 4096: later rows read an earlier row's mask",
    ),
    Mutant(
        name="triton_running_maximum_not_monotone",
        base="online_triton",
        file=_KERNELS,
        old="""\
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shift = _finite(new_largest) if EDGE else new_largest
            weights =""",
        new="""\
            new_largest = tl.max(scores, 1)
            shift = _finite(new_largest) if EDGE else new_largest
            weights =""",
        report="tile-ai/TileOPs#51, tile-ai/tilelang#1269",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the maximum of a block replaces the running maximum: exp2 overflows on a falling row",
    ),
    Mutant(
        name="triton_output_not_rescaled",
        base="online_triton",
        file=_KERNELS,
        old="            weighted = weighted * correction[:, None]\n",
        new="",
        report="Dao-AILab/flash-attention#991",
        killed_by="test_rows_sum_to_one",
        why="a larger maximum corrects the sum of exponentials but not the output summed so far",
    ),
    Mutant(
        name="triton_state_restarts_in_each_block",
        base="online_triton",
        file=_KERNELS,
        old="correction = tl.exp2(largest - shift)",
        new="correction = tl.zeros_like(shift)",
        report="Dao-AILab/flash-attention#2329",
        killed_by="test_the_order_of_the_keys_does_not_matter",
        why="every block of keys is taken for the first one",
    ),
    Mutant(
        name="triton_fully_masked_first_block_is_nan",
        base="online_triton",
        file=_KERNELS,
        old='return tl.where(largest == float("-inf"), 0.0, largest)',
        new="return largest",
        report="flashinfer-ai/flashinfer#1178, ggml-org/llama.cpp#6438",
        killed_by="test_masking_keys_is_deleting_them",
        why="while a row has met masked keys only, -inf - -inf is NaN",
    ),
    Mutant(
        name="triton_scale_compounds",
        base="online_triton",
        file=_KERNELS,
        old="""\
            largest = new_largest
    row_total""",
        new="""\
            largest = new_largest
            scale_log2 = scale_log2 * LOG2_E
    row_total""",
        report="flagos-ai/FlagGems#424",
        killed_by="test_the_order_of_the_keys_does_not_matter",
        why="the scale grows by log2(e) with every block of keys",
    ),
    Mutant(
        name="triton_tail_scores_left_at_zero",
        base="online_triton",
        file=_KERNELS,
        old="""\
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shift = _finite(new_largest) if EDGE else new_largest
            weights =""",
        new="""\
            scores = tl.where((key >= keys)[None, :], 0.0, scores)
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            shift = _finite(new_largest) if EDGE else new_largest
            weights =""",
        report="jax-ml/jax#27224, pytorch/pytorch#159247",
        killed_by="test_rows_sum_to_one",
        why="the padding of the last block of keys has a score of 0 and takes part in the sum",
    ),
    Mutant(
        name="triton_kv_head_by_the_wrong_divisor",
        base="online_triton",
        file=_KERNELS,
        old="""\
    kv_head = head // (heads // kv_heads)
    first = tl.program_id(0) % blocks * BLOCK_Q
    query = first + tl.arange(0, BLOCK_Q)
    q_tile = _rows(q, batch, head, query, queries, DIM, DIM_TILE, EDGE=True)
    last_key""",
        new="""\
    kv_head = head // kv_heads % kv_heads
    first = tl.program_id(0) % blocks * BLOCK_Q
    query = first + tl.arange(0, BLOCK_Q)
    q_tile = _rows(q, batch, head, query, queries, DIM, DIM_TILE, EDGE=True)
    last_key""",
        report="PSAL-POSTECH/ONNXim#34, BobMcDear/attorch#14",
        killed_by="test_heads_are_independent",
        why="the number of kv heads and the size of a group are mixed up in the forward kernel",
    ),
    Mutant(
        name="triton_head_by_modulo_in_dkv",
        base="online_triton",
        file=_KERNELS,
        old="head = kv_head * group + member",
        new="head = member * kv_heads + kv_head",
        report="XunhaoLai/native-sparse-attention-triton#27",
        killed_by="test_grouped_heads_are_repeated_heads",
        why="dK and dV collect from query heads that read another kv head",
    ),
    Mutant(
        name="triton_last_head_of_the_group_only",
        base="online_triton",
        file=_KERNELS,
        old="""\
        member, block = 0, start
        for _ in range(group * tl.cdiv(stop - start, BLOCK_Q)):""",
        new="""\
        member, block = group - 1, start
        for _ in range(tl.cdiv(stop - start, BLOCK_Q)):""",
        report="marin-community/levanter#449",
        killed_by="test_grouped_heads_are_repeated_heads",
        why="dK and dV hold what the last query head of the group adds",
    ),
    Mutant(
        name="triton_last_key_block_wins",
        base="online_triton",
        file=_KERNELS,
        old='grad = tl.dot(grad_scores.to(k_tile.dtype), k_tile, grad, input_precision="ieee")',
        new='grad = tl.dot(grad_scores.to(k_tile.dtype), k_tile, input_precision="ieee")',
        report="Dao-AILab/flash-attention#359, fla-org/flash-linear-attention#889",
        killed_by="test_a_change_of_basis_has_no_gradient",
        why="the last block of keys overwrites dQ instead of adding to it",
    ),
    Mutant(
        name="triton_dkv_ignores_causal",
        base="online_triton",
        file=_KERNELS,
        old="                last_key = _last_key(query, queries, keys, CAUSAL)",
        new="                last_key = _last_key(query, queries, keys, False)",
        report="triton-lang/triton#4541, triton-lang/triton#4174",
        killed_by="test_the_past_has_no_gradient_from_the_future",
        why="dK and dV are summed without causality inside the diagonal blocks",
    ),
    Mutant(
        name="triton_delta_missing_in_dk",
        base="online_triton",
        file=_KERNELS,
        old="grad_scores = weights * (grad_weights - row_delta[None, :])",
        new="grad_scores = weights * grad_weights",
        report="Dao-AILab/flash-attention#2481",
        killed_by="test_a_shift_of_all_keys_has_no_gradient",
        why="dK lacks the rowsum of dO O that the kernel before it left behind",
    ),
    Mutant(
        name="triton_scale_missing_in_dk",
        base="online_triton",
        file=_KERNELS,
        old="grad_key * scale",
        new="grad_key",
        report="NVIDIA/TransformerEngine#1615",
        killed_by="test_a_change_of_basis_has_no_gradient",
        why="dK is not scaled",
    ),
    Mutant(
        name="triton_tail_of_dq_unmasked",
        base="online_triton",
        file=_KERNELS,
        old="""\
                grad_scores = tl.where(attended, grad_scores, 0.0)
            grad =""",
        new="""\
                grad_scores = grad_scores * attended
            grad =""",
        report="ROCm/aiter#3551",
        killed_by="test_the_gradients_agree_with_the_formula",
        why="padded and masked keys are multiplied by zero after exp2 has overflowed: NaN from finite inputs",
    ),
    Mutant(
        name="triton_log_sum_exp_in_two_bases",
        base="online_triton",
        file=_KERNELS,
        old="largest + tl.log2(tl.where(fully_masked, 1.0, total))",
        new="largest + tl.log(tl.where(fully_masked, 1.0, total))",
        report="pytorch/pytorch#181645",
        killed_by="test_the_gradient_of_the_values_is_dealt_out_whole",
        why="the maximum is kept in base two and the sum in base e",
    ),
    Mutant(
        name="triton_last_axis_taken_for_dense",
        base="online_triton",
        file=_KERNELS,
        old="columns.to(tl.int64) * view.stride[3]",
        new="columns.to(tl.int64)",
        report="Dao-AILab/flash-attention#2777, ROCm/aiter#2117",
        killed_by="test_the_layout_of_the_inputs_does_not_matter",
        why="the features of a row are read as neighbours in memory",
    ),
    Mutant(
        name="triton_only_the_first_64_channels",
        base="online_triton",
        file="_triton_launch.py",
        old='"DIM_TILE": _padded(q.shape[3])',
        new='"DIM_TILE": min(64, _padded(q.shape[3]))',
        report="triton-lang/triton#621",
        killed_by="test_the_output_agrees_with_the_formula",
        why="head dims over 64 are cut off",
    ),
    Mutant(
        name="triton_last_block_not_launched",
        base="online_triton",
        file="_triton_launch.py",
        old="return -(-length // block)",
        new="return max(1, length // block)",
        report="meta-pytorch/attention-gym#50, thu-ml/SageAttention#377",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the rows behind the last whole block stay as the memory was",
    ),
    Mutant(
        name="triton_log_sum_exp_in_the_input_dtype",
        base="online_triton",
        file="_triton_attention.py",
        old="lse = q.new_empty(q.shape[:3], dtype=torch.float32)",
        new="lse = q.new_empty(q.shape[:3])",
        report="pytorch/pytorch#165961",
        killed_by="test_the_gradient_of_the_values_is_dealt_out_whole",
        why="the weights of the backward pass carry the rounding of a half-precision log-sum-exp",
    ),
    Mutant(
        name="triton_gradients_dropped",
        base="online_triton",
        file="_triton_attention.py",
        old="_ATTENTION(q, k, v, mask,",
        new="_ATTENTION(q.detach(), k.detach(), v.detach(), mask,",
        report="NVlabs/LongLive#61",
        killed_by="test_the_output_does_not_depend_on_who_wants_gradients",
        why="the output is right and no gradient flows through it",
    ),
    Mutant(
        name="triton_two_pass_sum_not_rescaled",
        base="two_pass_triton",
        file=_KERNELS,
        old="total = total * tl.exp2(largest - shift) + tl.sum(tl.exp2(scores - shift[:, None]), 1)",
        new="total = total + tl.sum(tl.exp2(scores - shift[:, None]), 1)",
        report="Dao-AILab/flash-attention#991, deepseek-ai/FlashMLA#177",
        killed_by="test_rows_sum_to_one",
        why="a larger maximum does not correct what the first pass has summed so far",
    ),
    Mutant(
        name="triton_two_pass_second_pass_unmasked",
        base="two_pass_triton",
        file=_KERNELS,
        old="""\
            scores = _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, EDGE)
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
""",
        new="""\
            scores = _scores(q_tile, k_tile, mask, batch, head, query, key, last_key, scale_log2, False)
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
""",
        report="deepmodeling/deepmd-kit#5715",
        killed_by="test_the_future_does_not_reach_the_past",
        why="maximum and sum are those of the keys a query attends to, the weights those of all keys",
    ),
    Mutant(
        name="triton_two_pass_values_of_the_first_block",
        base="two_pass_triton",
        file=_KERNELS,
        old="""\
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
            v_tile = _rows(v, batch, kv_head, key,""",
        new="""\
            weights = tl.exp2(scores - row_shift[:, None]) * row_share[:, None]
            v_tile = _rows(v, batch, kv_head, key - start,""",
        report="tracel-ai/cubecl#1027",
        killed_by="test_the_order_of_the_keys_does_not_matter",
        why="the weights of every block of keys meet the values of the first",
    ),
    Mutant(
        name="triton_two_pass_fully_masked_row_is_nan",
        base="two_pass_triton",
        file=_KERNELS,
        old="row_share = 1.0 / tl.where(total == 0.0, 1.0, total)",
        new="row_share = 1.0 / total",
        report="pytorch/pytorch#103963, pytorch/pytorch#103749",
        killed_by="test_a_fully_masked_row_is_exactly_zero",
        why="a fully masked row is zero times infinity",
    ),
)
