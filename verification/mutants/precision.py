"""Faults that rounding makes: sums, scores, weights or what is kept for the backward pass in too few digits."""

from verification.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="sum_in_the_input_dtype",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="""\
exponentials = (scores - (scores.amax(dim=-1, keepdim=True) if scores.numel() else 0.0)).exp()
    total = torch.zeros_like(exponentials[..., :1])
    for exponential in exponentials.split(1, dim=-1):
        total = total + exponential
    weights = exponentials / total""",
        report="huggingface/candle#3727, pytorch/executorch#20090, sonos/tract#2586",
        killed_by="test_rows_sum_to_one",
        why="key by key, a sum in bfloat16 stops growing at 256 and one in float16 at 2048",
    ),
    Mutant(
        name="state_in_the_input_dtype",
        base="online",
        file="_blocks.py",
        old="return torch.promote_types(q.dtype, torch.float32)",
        new="return q.dtype",
        report="pytorch/pytorch#128922",
        killed_by="test_the_output_agrees_with_the_formula",
        why="scores and running sums live in a half type although float32 is stated",
    ),
    Mutant(
        name="odd_head_dims_in_float16",
        base="eager",
        file="eager.py",
        old="scores = query @ k.transpose(-2, -1)",
        new="""\
scores = query @ k.transpose(-2, -1)
    if q.shape[-1] % 8:
        scores = (query.half() @ k.half().transpose(-2, -1)).to(q.dtype)""",
        report="pytorch/pytorch#110505, pytorch/pytorch#176559",
        killed_by="test_the_output_agrees_with_the_formula",
        why="head dims that 8 does not divide take a path through float16",
    ),
    Mutant(
        name="weights_in_bfloat16",
        base="two_pass",
        file="two_pass.py",
        old="output.baddbmm_(weights, value)",
        new="output.baddbmm_(weights.bfloat16().to(weights.dtype), value)",
        report="tenstorrent/tt-metal#52045",
        killed_by="test_the_weights_read_out_are_the_softmax",
        why="the weights are rounded to bfloat16 whatever the input is",
    ),
    Mutant(
        name="fast_exponential",
        base="two_pass",
        file="two_pass.py",
        old="weights = scores.sub_(shift).exp_().div_(total)",
        new="weights = scores.sub_(shift).half().exp().to(shift.dtype).div_(total)",
        report="tile-ai/TileOPs#433",
        killed_by="test_rows_sum_to_one",
        why="the exponential above the fraction has fewer digits than those summed below it",
    ),
    Mutant(
        name="maximum_of_rounded_scores",
        base="online",
        file="online.py",
        old="scores.amax(dim=-1, keepdim=True)",
        new="scores.bfloat16().amax(dim=-1, keepdim=True).to(scores.dtype)",
        report="ROCm/aotriton#54, pytorch/pytorch#121558",
        killed_by="test_a_shift_of_all_keys_changes_nothing",
        why="the maximum is rounded and the scores are not: their difference overflows exp once they are huge",
    ),
    Mutant(
        name="log_sum_exp_in_the_input_dtype",
        base="online",
        file="_blocks.py",
        old="log_sum_exp = q.new_empty(*q.shape[:3], 1, dtype=_state_dtype(q))",
        new="log_sum_exp = q.new_empty(*q.shape[:3], 1)",
        report="pytorch/pytorch#165961",
        killed_by="test_the_gradient_of_the_values_is_dealt_out_whole",
        why="the weights of the backward pass carry the rounding of a half-precision log-sum-exp",
    ),
    Mutant(
        name="output_through_float16",
        base="eager",
        file="eager.py",
        old="return weights @ v",
        new="return (weights @ v).half().to(q.dtype)",
        report="pytorch/pytorch#111276",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the output is rounded to float16 on its way to the dtype of the input",
    ),
    Mutant(
        name="product_overflows_before_it_is_scaled",
        base="eager",
        file="eager.py",
        old="""\
    query = q * (default_scale(q) if scale is None else scale)
    scores = query @ k.transpose(-2, -1)  # (batch, heads, queries, keys)
""",
        new="""\
    scores = q @ k.transpose(-2, -1)  # (batch, heads, queries, keys)
    scores = scores * (default_scale(q) if scale is None else scale)
""",
        report="philipturner/metal-flash-attention#8, PaddlePaddle/Paddle#41933",
        killed_by="test_the_output_agrees_with_the_formula",
        why="in float16 the product passes 65504 where the scores do not: inf, and NaN once the maximum is subtracted",
    ),
)
