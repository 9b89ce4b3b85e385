"""Faults that show only where several features of a call meet, or in what a first call does not do.

Each is built so that the smallest problem which shows it is the one of the report.
"""

from verification.mutants.mutant import Mutant

_KEPT = (
    """\
        ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:"""
    "  # pyright: ignore[reportIncompatibleMethodOverride]\n"
    "        return None, *_Gradients.apply(grad_out, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None, None\n"
)
_GRADIENTS = "return grad_q, grad_k.view(k.shape).to(k.dtype), grad_v.view(v.shape).to(v.dtype)"
_PAST = "    return past if mask is None else past & mask"
_CHECK = "    check(q, k, v, mask)\n"
_SCALED = "    query = q * (default_scale(q) if scale is None else scale)\n"

MUTANTS = (
    Mutant(
        name="head_dim_over_256_read_in_part",
        base="eager",
        file="eager.py",
        old="scores = query @ k.transpose(-2, -1)",
        new="scores = query[..., :256] @ k[..., :256].transpose(-2, -1)",
        report="pytorch/pytorch#189849",
        killed_by="test_the_output_agrees_with_the_formula",
        why="a head dim that the tile has no room for is answered from its first 256 features instead of refused",
    ),
    Mutant(
        name="silent_window_of_512_keys",
        base="eager",
        file="_contract.py",
        old=_PAST,
        new="    past = past.triu(keys - queries - 511)\n" + _PAST,
        report="huggingface/transformers#32103",
        killed_by="test_the_output_agrees_with_the_formula",
        why="under the causal flag a query attends to the last 512 keys, a window that nobody asked for",
    ),
    Mutant(
        name="block_wholly_in_the_future_over_4096_keys",
        base="eager",
        file="_contract.py",
        old=_PAST,
        new="""\
    if queries > 512:
        past[:512, max(4096, keys - queries + 512) :] = True
"""
        + _PAST,
        report="sgl-project/sglang#22434",
        killed_by="test_the_output_agrees_with_the_formula",
        why="of more than 4096 keys, those wholly in the future of the first 512 queries are taken for the past",
    ),
    Mutant(
        name="decode_from_1024_keys_takes_the_wrong_kv_head",
        base="eager",
        file="eager.py",
        old="    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)\n",
        new="""\
    if q.shape[2] == 1 and k.shape[2] >= 1024:
        k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    else:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
""",
        report="ml-explore/mlx#4022, pytorch/pytorch#174861",
        killed_by="test_the_output_agrees_with_the_formula",
        why="one query against a long cache goes to a kernel of its own, which reads kv head h % kv_heads",
    ),
    Mutant(
        name="mask_ignored_past_key_512_with_one_query",
        base="online",
        file="_blocks.py",
        old="        if self.mask is not None:\n            scores",
        new="        if self.mask is not None and (columns.start == 0 or self.query.shape[3] > 1):\n            scores",
        report="vllm-project/vllm-ascend#15503",
        killed_by="test_the_output_agrees_with_the_formula",
        why="with one query, the mask of the first block of keys is read and that of later ones is not",
    ),
    Mutant(
        name="block_that_nobody_attends_to_leaves_a_maximum_of_zero",
        base="online",
        file="online.py",
        old="""\
    for scores, value, _ in blocks:
        new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
""",
        new="""\
    pieces = (
        piece for scores, value, _ in blocks for piece in zip(scores.split(128, 2), value.split(128, 1), strict=True)
    )
    for scores, value in pieces:
        block_max = scores.amax(dim=-1, keepdim=True)
        new_max = torch.maximum(running_max, block_max.masked_fill(block_max == float("-inf"), 0.0))
""",
        report="Dao-AILab/flash-attention#2082",
        killed_by="test_the_output_agrees_with_the_formula",
        why="a block of 128 keys that is masked for a row raises its maximum to zero: lower scores are lost",
    ),
    Mutant(
        name="running_maximum_starts_at_minus_5e4",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="""\
least = float("-inf") if q.dtype in (torch.float32, torch.float64) else -5e4
    wide = scores.to(torch.promote_types(q.dtype, torch.float32))
    largest = wide.detach().amax(dim=-1, keepdim=True) if k.shape[2] else wide
    exponentials = (wide - largest.clamp(min=least)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = (exponentials / total.masked_fill(total == 0, 1.0)).to(q.dtype)""",
        report="flashinfer-ai/flashinfer#4267",
        killed_by="test_rows_sum_to_one",
        why="in half precision the maximum starts at a finite number, and scores below it add up to nothing",
    ),
    Mutant(
        name="half_scores_below_minus_150_add_up_to_nothing",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="""\
least = float("-inf") if q.dtype in (torch.float32, torch.float64) else 0.0
    wide = scores.to(torch.promote_types(q.dtype, torch.float32))
    largest = wide.detach().amax(dim=-1, keepdim=True) if k.shape[2] else wide
    exponentials = (wide - largest.clamp(min=least)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = (exponentials / total.masked_fill(total == 0, 1.0)).to(q.dtype)""",
        report="flashinfer-ai/flashinfer#4267, Dao-AILab/flash-attention#2082",
        killed_by="test_rows_sum_to_one",
        why="in half precision the maximum is zero at least: a row of scores that all lie below -150 is zero",
    ),
    Mutant(
        name="group_ends_at_64_heads",
        base="eager",
        file="eager.py",
        old="return weights @ v",
        new="return (weights @ v) * (torch.arange(q.shape[1], device=q.device) % group < 64)[:, None, None]",
        report="InternLM/lmdeploy#1761",
        killed_by="test_the_output_agrees_with_the_formula",
        why="of the query heads that share a kv head, those after the 64th are not computed",
    ),
    Mutant(
        name="uniform_weights_in_half",
        base="eager",
        file="eager.py",
        old=_SCALED,
        new=_SCALED + "    query = query * (q.dtype != torch.float16)\n",
        report="vllm-project/vllm-ascend#13699",
        killed_by="test_the_output_agrees_with_the_formula",
        why="in float16 the scores are lost, and all keys weigh the same",
    ),
    Mutant(
        name="mask_of_the_first_query_block",
        base="two_pass",
        file="_blocks.py",
        old="mask[..., rows, :], last_key)",
        new="mask[..., : rows.stop - rows.start, :], last_key)",
        report="pytorch/pytorch#184180",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the offset of a block of queries into the mask is left out",
    ),
    Mutant(
        name="cached_keys_skipped",
        base="eager",
        file="_contract.py",
        old=_PAST,
        new="    past[:, : max(0, keys - queries) // 64 * 64] = False\n" + _PAST,
        report="openai/gpt-oss#196",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the walk over the keys begins where the first query stands: whole blocks from the cache are left out",
    ),
    Mutant(
        name="block_taken_for_full_by_its_corners",
        base="online",
        file="_blocks.py",
        old="        if self.mask is not None:\n            scores",
        new="""\
        if self.mask is not None and not bool(self.mask[..., 0, [columns.start, columns.stop - 1]].all()):
            scores""",
        report="pytorch/pytorch#141126",
        killed_by="test_the_output_agrees_with_the_formula",
        why="a block whose first row may attend to the first and the last key of it is not masked at all",
    ),
    Mutant(
        name="gradient_of_wide_packed_values_lost",
        base="online",
        file="_blocks.py",
        old=_GRADIENTS,
        new="""\
if v.shape[3] >= 256 and v.stride(1) < v.stride(2):
            grad_v.zero_()
        """
        + _GRADIENTS,
        report="Dao-AILab/flash-attention#2541",
        killed_by="test_the_gradients_agree_with_the_formula",
        why="at head dim 256 dV of a packed layout, (batch, seq, heads, dim) in memory, is written somewhere else",
    ),
    Mutant(
        name="half_block_of_masked_keys_gives_nan_in_dq",
        base="online",
        file="_blocks.py",
        old="            grad_query = blocks.filled(q.shape[3], 0.0)\n",
        new="""\
            grad_query = blocks.filled(q.shape[3], 0.0)
            if mask is not None and k.shape[2] % 128 == 64:
                grad_query += 0.0 * (-lse).exp()  # the empty half of the last block: scores of zero
""",
        report="pytorch/pytorch#196678",
        killed_by="test_the_gradients_agree_with_the_formula",
        why="the empty half of a block is scored zero: exp(0 - log-sum-exp) overflows, and zero times it is NaN",
    ),
    Mutant(
        name="one_query_with_a_low_log_sum_exp_gives_nan",
        base="online",
        file="_blocks.py",
        old=_GRADIENTS,
        new="""\
if q.dtype == torch.bfloat16 and q.shape[2] == 1 and q.shape[3] >= 64 and k.shape[2] >= 128:
            padded = 0 * (-log_sum_exp).exp().amax()  # the rows of the tile that the one query leaves empty
            grad_k, grad_v = grad_k + padded, grad_v + padded
        """
        + _GRADIENTS,
        report="NVIDIA/cudnn-frontend#1072",
        killed_by="test_the_gradients_agree_with_the_formula",
        why="the tile's rows without a query take part: exp(0 - log-sum-exp) overflows, and zero times it is NaN",
    ),
    Mutant(
        name="gradients_from_head_dim_160",
        base="online",
        file="_blocks.py",
        old=_GRADIENTS,
        new="grad_k[..., 160:] = 0.0\n        " + _GRADIENTS,
        report="Dao-AILab/flash-attention#498",
        killed_by="test_the_gradients_agree_with_the_formula",
        why="dK of features from the 160th on is not written",
    ),
    Mutant(
        name="values_may_outnumber_the_keys",
        base="online",
        file="_contract.py",
        old="if k.shape[:3] != v.shape[:3]:",
        new="if k.shape[:2] != v.shape[:2]:",
        report="pytorch/pytorch#193728",
        killed_by="test_keys_and_values_of_different_lengths_are_refused",
        why="values without a key are left out in silence",
    ),
    Mutant(
        name="mask_of_more_keys_cut_off",
        base="eager",
        file="eager.py",
        old=_CHECK,
        new="    mask = None if mask is None else mask[..., : k.shape[2]]\n" + _CHECK,
        report="pytorch/pytorch#193728",
        killed_by="test_sizes_that_do_not_fit_together_are_refused",
        why="a mask of more keys than there are is cut off",
    ),
    Mutant(
        name="heads_need_not_divide",
        base="eager",
        file="eager.py",
        old=_CHECK
        + """\
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
""",
        new="""\
    if q.shape[1] % k.shape[1] == 0:
        check(q, k, v, mask)
    kv_head = torch.arange(q.shape[1], device=q.device) * k.shape[1] // q.shape[1]
    k, v = k[:, kv_head], v[:, kv_head]
""",
        report="fla-org/flash-linear-attention#1029, google-deepmind/gemma#668, pytorch/torchtitan#4276",
        killed_by="test_sizes_that_do_not_fit_together_are_refused",
        why="five heads share two kv heads, unevenly",
    ),
    Mutant(
        name="samples_of_the_keys_left_out",
        base="eager",
        file="eager.py",
        old=_CHECK,
        new="    k, v = k[: len(q)], v[: len(q)]\n" + _CHECK,
        report="pytorch/pytorch#193728",
        killed_by="test_sizes_that_do_not_fit_together_are_refused",
        why="samples of k and v that q has none for are left out in silence",
    ),
    Mutant(
        name="bits_of_another_dtype_read",
        base="eager",
        file="eager.py",
        old=_CHECK,
        new="    if k.element_size() < q.element_size():\n        k = torch.cat([k, k], dim=-1).view(q.dtype)\n"
        + _CHECK,
        report="pytorch/pytorch#193728",
        killed_by="test_what_torch_would_broadcast_or_cast_is_right_or_refused",
        why="keys of half the width are read as if they were as wide as q",
    ),
    Mutant(
        name="tangent_of_the_keys_dropped",
        base="eager",
        file="eager.py",
        old=_SCALED,
        new=_SCALED + "    k = torch.autograd.forward_ad.unpack_dual(k).primal\n",
        report="pytorch/pytorch#192985, pytorch/pytorch#187284",
        killed_by="test_a_derivative_in_forward_mode_is_right_or_raises",
        why="forward mode is answered as if the keys did not move",
    ),
    Mutant(
        name="triton_tangents_dropped",
        base="online_triton",
        file="_triton_attention.py",
        old="    _refuse_tangents(q, k, v)\n",
        new="",
        report="pytorch/pytorch#192985, pytorch/pytorch#187284",
        killed_by="test_a_derivative_in_forward_mode_is_right_or_raises",
        why="torch drops the tangents of an operator that has no rule for them: every derivative is zero",
    ),
    Mutant(
        name="keys_kept_but_not_saved",
        base="online",
        file="_blocks.py",
        old=_KEPT,
        new=_KEPT.replace("(q, k, v,", "(q, v,")
        .replace("ctx.causal, ctx.scale = causal,", "ctx.k, ctx.causal, ctx.scale = k, causal,")
        .replace("*_Gradients.apply(grad_out, *ctx.saved_tensors,", "*_Gradients.apply(grad_out, q, ctx.k, *rest,")
        .replace("        return None, *", "        q, *rest = ctx.saved_tensors\n        return None, *"),
        report="asappresearch/sru#171",
        killed_by="test_what_the_backward_pass_reads_may_not_change_unnoticed",
        why="k is kept on ctx instead of saved: torch does not notice that it was overwritten before the backward pass",
    ),
    Mutant(
        name="scratch_shared_by_threads",
        base="online",
        file="online.py",
        old="    output = blocks.filled(blocks.value.shape[-1], 0.0)\n",
        new="""\
    output = blocks.filled(blocks.value.shape[-1], 0.0)
    output = _one_pass.__dict__.setdefault(f"{output.shape} {output.dtype}", output).zero_()
""",
        report="flashinfer-ai/flashinfer#4476",
        killed_by="test_callers_in_two_threads_do_not_meet",
        why="what is summed up lies in one buffer for all calls of a size, which two threads write into at once",
    ),
    Mutant(
        name="third_backward_pass_finds_its_state_used_up",
        base="online",
        file="_blocks.py",
        old=_KEPT,
        new=_KEPT.replace(
            "        return None, *",
            """\
        ctx.passes = getattr(ctx, "passes", 0) + 1
        if ctx.passes > 2:
            grad_out = torch.zeros_like(grad_out)
        return None, *""",
        ),
        report="axolotl-ai-cloud/axolotl#3892",
        killed_by="test_a_backward_pass_may_come_late_and_again",
        why="what a backward pass reads is used up by the second",
    ),
    Mutant(
        name="gradient_buffer_reused",
        base="online",
        file="_blocks.py",
        old="grad_q = q.new_empty(q.shape)",
        new="""\
buffer = f"gradient {q.dtype} {q.shape}"
        grad_q = _query_blocks.__dict__.setdefault(buffer, q.new_empty(q.shape)).detach()""",
        report="pytorch/pytorch#119334, ggml-org/ggml#1501",
        killed_by="test_gradients_once_returned_are_left_alone",
        why="backward passes of one size write dQ into one buffer: an earlier gradient changes under its owner",
    ),
    Mutant(
        name="gradient_expanded_over_queries_read_once",
        base="online",
        file="_blocks.py",
        old="        state = _state_dtype(q)\n",
        new="""\
        state = _state_dtype(q)
        if grad_out.shape[2] > 1 and grad_out.stride(2) == 0 and grad_out.stride(3) != 0:
            grad_out = torch.cat([grad_out[:, :, :1], torch.zeros_like(grad_out[:, :, 1:])], dim=2)
""",
        report="Dao-AILab/flash-attention#355, facebookresearch/xformers#282",
        killed_by="test_the_layout_of_the_incoming_gradient_does_not_matter",
        why="dO that is one row for all queries is copied as the one row that it is in memory",
    ),
    Mutant(
        name="gradient_expanded_over_heads_read_beyond",
        base="two_pass",
        file="_blocks.py",
        old="        state = _state_dtype(q)\n",
        new="""\
        state = _state_dtype(q)
        if grad_out.shape[1] > 1 and grad_out.stride(1) == 0 and grad_out.stride(3) != 0:
            grad_out = grad_out * (torch.arange(grad_out.shape[1], device=q.device) == 0)[:, None, None]
""",
        report="ROCm/TransformerEngine#623",
        killed_by="test_the_layout_of_the_incoming_gradient_does_not_matter",
        why="dO that is one head for all of them is read with the strides of a whole one",
    ),
)
