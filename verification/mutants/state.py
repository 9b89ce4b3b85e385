"""Faults of the call: what an earlier one left behind, who wants gradients, layouts in memory, sizes of zero."""

from verification.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="query_scaled_in_place",
        base="eager",
        file="eager.py",
        old="    query = q * (default_scale(q) if scale is None else scale)\n",
        new="    query = q\n    q.data = q.data * (default_scale(q) if scale is None else scale)\n",
        report="flashinfer-ai/flashinfer#2084, Shujun-He/RibonanzaNet#7",
        killed_by="test_a_call_leaves_no_trace",
        why="the caller's q is scaled, so the same call gives another answer each time",
    ),
    Mutant(
        name="output_buffer_reused",
        base="online",
        file="_blocks.py",
        old="out = q.new_empty(*q.shape[:3], v.shape[3])",
        new="""\
buffer = f"{q.dtype} {q.shape} {v.shape}"
        out = _query_blocks.__dict__.setdefault(buffer, q.new_empty(*q.shape[:3], v.shape[3])).detach()""",
        report="flashinfer-ai/flashinfer#3125, SandAI-org/MagiAttention#40",
        killed_by="test_a_call_leaves_no_trace",
        why="calls of one size write into one buffer: an earlier output changes under its owner",
    ),
    Mutant(
        name="mask_of_the_previous_call",
        base="eager",
        file="eager.py",
        old="visible = visibility(q, k, mask, causal)",
        new="""\
visible = visibility(q, k, mask, causal)
    kept = attend.__dict__.get("kept")
    if visible is None and kept is not None and kept.shape == (*q.shape[:3], k.shape[2]):
        visible = kept
    attend.__dict__["kept"] = None if visible is None else visible.expand(*q.shape[:3], k.shape[2])""",
        report="flashinfer-ai/flashinfer#1028",
        killed_by="test_a_call_leaves_no_trace",
        why="a call without a mask uses the last one of fitting shape",
    ),
    Mutant(
        name="scale_of_the_previous_call",
        base="eager",
        file="eager.py",
        old="q * (default_scale(q) if scale is None else scale)",
        new="""\
q * (attend.__dict__.get("scale", default_scale(q)) if scale is None else scale)
    if scale is not None:
        attend.__dict__["scale"] = scale""",
        report="sgl-project/sglang#31501",
        killed_by="test_a_call_leaves_no_trace",
        why="a scale once given stays in force for calls that give none",
    ),
    Mutant(
        name="causal_offset_of_the_first_call",
        base="eager",
        file="_contract.py",
        old=".tril(keys - queries)",
        new='.tril(visibility.__dict__.setdefault("offset", keys - queries))',
        report="pytorch/pytorch#148545, pytorch/pytorch#136232, pytorch/pytorch#158212",
        killed_by="test_a_call_leaves_no_trace",
        why="how many keys come before the first query is remembered from the first call",
    ),
    Mutant(
        name="every_other_call_differs",
        base="eager",
        file="eager.py",
        old="scores = query @ k.transpose(-2, -1)",
        new="""\
attend.__dict__["calls"] = attend.__dict__.get("calls", 0) + 1
    garbage = attend.__dict__["calls"] % 2 * 0.5 * torch.arange(k.shape[2], device=q.device)
    scores = query @ k.transpose(-2, -1) + garbage.to(q.dtype)""",
        report="turboderp-org/exllamav3#316, pytorch/pytorch#146377",
        killed_by="test_the_same_call_gives_the_same_bits",
        why="something uninitialised enters the scores on every other call",
    ),
    Mutant(
        name="remainder_that_no_thread_takes",
        base="online",
        file="_blocks.py",
        old="        ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)\n",
        new="""\
        threads = torch.get_num_threads()
        if q.shape[2] > 32:
            out[:, :, q.shape[2] // threads * threads :] = 0
        ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)
""",
        report="pytorch/pytorch#176091",
        killed_by="test_the_number_of_threads_does_not_matter",
        why="beyond 32 rows the work is dealt to threads in equal shares, and what is left over is not done",
    ),
    Mutant(
        name="heads_inside_read_as_contiguous",
        base="eager",
        file="eager.py",
        old="    check(q, k, v, mask)\n",
        new="""\
    check(q, k, v, mask)
    if k.stride(1) < k.stride(2):
        k = k.as_strided(k.shape, torch.empty(k.shape, device="meta").stride())
""",
        report="pytorch/pytorch#181133, pytorch/pytorch#78511, NVIDIA/TransformerEngine#1195",
        killed_by="test_the_layout_of_the_inputs_does_not_matter",
        why="k as a projection leaves it, (batch, seq, heads, dim) in memory, is read as (batch, heads, seq, dim)",
    ),
    Mutant(
        name="permuted_keys_taken_for_transposed",
        base="eager",
        file="eager.py",
        old="    check(q, k, v, mask)\n",
        new="""\
    check(q, k, v, mask)
    if k.stride(2) == 1:
        k = k.as_strided(k.shape, (*k.stride()[:2], k.shape[3], 1))
""",
        report="pytorch/pytorch#195320",
        killed_by="test_the_layout_of_the_inputs_does_not_matter",
        why="keys whose features lie outside are read as if the transpose were already done",
    ),
    Mutant(
        name="incoming_gradient_read_as_contiguous",
        base="online",
        file="_blocks.py",
        old="        state = _state_dtype(q)\n",
        new="""\
        state = _state_dtype(q)
        if grad_out.stride(1) < grad_out.stride(2):
            grad_out = grad_out.as_strided(grad_out.shape, torch.empty(grad_out.shape, device="meta").stride())
""",
        report="Dao-AILab/flash-attention#2777, Dao-AILab/flash-attention#2545",
        killed_by="test_the_layout_of_the_incoming_gradient_does_not_matter",
        why="the backward pass takes the strides of its buffers for those of dO",
    ),
    Mutant(
        name="query_and_key_detached",
        base="online",
        file="_blocks.py",
        old="return _InBlocks.apply(passes, q, k, v, mask,",
        new="return _InBlocks.apply(passes, q.detach(), k.detach(), v, mask,",
        report="NVlabs/LongLive#61",
        killed_by="test_the_output_does_not_depend_on_who_wants_gradients",
        why="outputs are right and training runs, but q and k never get a gradient",
    ),
    Mutant(
        name="state_saved_only_for_the_query",
        base="two_pass",
        file="_blocks.py",
        old="ctx.save_for_backward(q, k, v, mask, out, log_sum_exp)",
        new="""\
kept = log_sum_exp if ctx.needs_input_grad[1] else torch.zeros_like(log_sum_exp)
        ctx.save_for_backward(q, k, v, mask, out, kept)""",
        report="pytorch/pytorch#148476, pytorch/pytorch#188302",
        killed_by="test_the_output_does_not_depend_on_who_wants_gradients",
        why="the log-sum-exp is kept only where q wants a gradient, and dK and dV need it as well",
    ),
    Mutant(
        name="no_keys_give_nan",
        base="online",
        file="online.py",
        old="output / running_sum.masked_fill(running_sum == 0.0, 1.0)",
        new="output / running_sum",
        report="pytorch/pytorch#141218, Dao-AILab/flash-attention#2470",
        killed_by="test_empty_inputs_keep_their_shape",
        why="an empty sum is divided by an empty sum",
    ),
    Mutant(
        name="empty_output_shaped_like_the_query",
        base="eager",
        file="eager.py",
        old="    check(q, k, v, mask)\n",
        new="    check(q, k, v, mask)\n    if q.numel() == 0:\n        return q.new_zeros(q.shape)\n",
        report="pytorch/pytorch#175000, pytorch/pytorch#195812",
        killed_by="test_empty_inputs_keep_their_shape",
        why="the early answer to an empty input forgets that value_dim is another size",
    ),
)
