"""Faults of the formula, of the running state of the softmax, of the scale, of heads and of shapes."""

from verification.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="output_not_rescaled",
        base="online",
        file="online.py",
        old="output.mul_(correction).baddbmm_(weights, value)",
        new="output.baddbmm_(weights, value)",
        report="Dao-AILab/flash-attention#991",
        killed_by="test_rows_sum_to_one",
        why="a larger maximum corrects the sum of exponentials but not the output summed so far",
    ),
    Mutant(
        name="state_restarts_in_each_block",
        base="online",
        file="online.py",
        old="correction = (running_max - shift).exp_()",
        new="correction = torch.zeros_like(shift)",
        report="Dao-AILab/flash-attention#2329",
        killed_by="test_the_order_of_the_keys_does_not_matter",
        why="every block of keys is taken for the first one: only the last block counts",
    ),
    Mutant(
        name="rescale_inverted",
        base="online",
        file="online.py",
        old="correction = (running_max - shift).exp_()",
        new='correction = (shift - running_max).masked_fill_(running_max == float("-inf"), float("-inf")).exp_()',
        report="deepseek-ai/FlashMLA#177",
        killed_by="test_the_order_of_the_keys_does_not_matter",
        why="the correction is exp(new maximum - old maximum), the inverse of the right one",
    ),
    Mutant(
        name="running_maximum_not_monotone",
        base="two_pass",
        file="two_pass.py",
        old="new_max = torch.maximum(row_max, scores.amax(dim=-1, keepdim=True))",
        new="new_max = scores.amax(dim=-1, keepdim=True)",
        report="tile-ai/TileOPs#51, tile-ai/tilelang#1148",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the maximum of a block replaces the running maximum; right until exp overflows on a falling row",
    ),
    Mutant(
        name="fully_masked_first_block_is_nan",
        base="two_pass",
        file="two_pass.py",
        old="""\
        shift = new_max.masked_fill(new_max == float("-inf"), 0.0)
        row_sum = row_sum * (row_max - shift).exp() + scores.sub_(shift).exp_().sum(dim=-1, keepdim=True)
        row_max = new_max
""",
        new="""\
        row_sum = row_sum * (row_max - new_max).exp() + scores.sub_(new_max).exp_().sum(dim=-1, keepdim=True)
        row_max = new_max
    row_sum = row_sum.masked_fill(row_max == float("-inf"), 0.0)
""",
        report="pytorch/pytorch#127055, flashinfer-ai/flashinfer#1178",
        killed_by="test_masking_keys_is_deleting_them",
        why="fully masked rows are guarded, rows of which only the first block is masked get -inf - -inf",
    ),
    Mutant(
        name="no_maximum_subtracted",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)",
        report="pytorch/executorch#18407",
        killed_by="test_a_shift_of_all_keys_changes_nothing",
        why="exp of the scores as they are: inf / inf, or 0 / 0, once they are large",
    ),
    Mutant(
        name="one_maximum_for_all_rows",
        base="eager",
        file="eager.py",
        old="weights = scores.softmax(dim=-1)",
        new="""\
exponentials = (scores - (scores.amax(dim=(-2, -1), keepdim=True) if scores.numel() else 0.0)).exp()
    weights = exponentials / exponentials.sum(dim=-1, keepdim=True)""",
        report="tenstorrent/tt-metal#12661",
        killed_by="test_a_query_alone_is_the_query_in_its_block",
        why="rows are shifted by the maximum of their tile: a row far below it underflows to 0 / 0",
    ),
    Mutant(
        name="masked_scores_enter_the_exponential",
        base="eager",
        file="eager.py",
        old="""\
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
""",
        new="""\
    live = scores if visible is None else scores.masked_fill(~visible, float("-inf"))
    exponentials = (scores - (live.amax(dim=-1, keepdim=True) if live.numel() else 0.0)).exp()
    if visible is not None:
        exponentials = exponentials * visible
    weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
""",
        report="deepmodeling/deepmd-kit#5715",
        killed_by="test_what_lies_in_a_masked_place_does_not_matter",
        why="the maximum is that of the visible scores, the exponential is of all: inf * 0 for a large masked one",
    ),
    Mutant(
        name="scale_argument_ignored",
        base="eager",
        file="eager.py",
        old="q * (default_scale(q) if scale is None else scale)",
        new="q * default_scale(q)",
        report="pytorch/pytorch#174049, pytorch/torchtitan#2173",
        killed_by="test_the_scale_is_part_of_the_query",
        why="the scale that is asked for is not used",
    ),
    Mutant(
        name="scale_is_a_constant",
        base="two_pass",
        file="_contract.py",
        old="return q.shape[-1] ** -0.5",
        new="return 0.5",
        report="BobMcDear/attorch#14",
        killed_by="test_the_scale_is_part_of_the_query",
        why="the default scale is right for a head dim of 4 only",
    ),
    Mutant(
        name="scale_by_d_model",
        base="eager",
        file="_contract.py",
        old="return q.shape[-1] ** -0.5",
        new="return (q.shape[1] * q.shape[-1]) ** -0.5",
        report="chelsea0x3b/dfdx#171, Graylab/DL4Proteins-notebooks#12, juho-lee/set_transformer#18",
        killed_by="test_heads_are_independent",
        why="the default scale comes from all heads together instead of from one",
    ),
    Mutant(
        name="scale_inverted",
        base="online",
        file="_contract.py",
        old="return q.shape[-1] ** -0.5",
        new="return q.shape[-1] ** 0.5",
        report="esceptico/perceiver-io#9, AI-Hypercomputer/maxtext#1370",
        killed_by="test_the_scale_is_part_of_the_query",
        why="scores are multiplied by sqrt(dim) instead of divided by it",
    ),
    Mutant(
        name="scale_of_the_padded_head_dim",
        base="online",
        file="_contract.py",
        old="return q.shape[-1] ** -0.5",
        new="return (-(-q.shape[-1] // 8) * 8) ** -0.5",
        report="intel/ipex-llm#12619, huggingface/transformers#35984",
        killed_by="test_the_scale_is_part_of_the_query",
        why="the default scale comes from the head dim after padding to a multiple of 8",
    ),
    Mutant(
        name="kv_heads_tiled",
        base="eager",
        file="eager.py",
        old="k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
        new="k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)",
        report="onnx/onnx#7274",
        killed_by="test_grouped_heads_are_repeated_heads",
        why="query head h reads kv head h % kv_heads instead of h // group",
    ),
    Mutant(
        name="kv_head_by_the_wrong_divisor",
        base="fused_qkv",
        file="eager.py",
        old="k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)",
        new="""\
kv_head = torch.arange(q.shape[1], device=q.device) // k.shape[1] % k.shape[1]
    k, v = k[:, kv_head], v[:, kv_head]""",
        report="PSAL-POSTECH/ONNXim#34",
        killed_by="test_heads_are_independent",
        why="the kv head is h // kv_heads: with as many kv heads as heads, all of them read the first",
    ),
    Mutant(
        name="softmax_over_the_queries",
        base="eager",
        file="eager.py",
        old="scores.softmax(dim=-1)",
        new="scores.softmax(dim=-2)",
        report="labmlai/annotated_deep_learning_paper_implementations#146, PetrochukM/PyTorch-NLP#2",
        killed_by="test_rows_sum_to_one",
        why="the columns of the weights sum to one, not the rows",
    ),
    Mutant(
        name="output_has_the_query_head_dim",
        base="eager",
        file="eager.py",
        old="return weights @ v",
        new="return nn.functional.pad(weights @ v, (0, q.shape[-1] - v.shape[-1]))",
        report="pytorch/pytorch#176767, apple/coreai-torch#117",
        killed_by="test_the_output_agrees_with_the_formula",
        why="the last axis of the output is as long as that of q, not of v",
    ),
    Mutant(
        name="only_the_first_64_channels",
        base="eager",
        file="eager.py",
        old="scores = query @ k.transpose(-2, -1)",
        new="scores = query[..., :64] @ k[..., :64].transpose(-2, -1)",
        report="triton-lang/triton#621",
        killed_by="test_the_output_agrees_with_the_formula",
        why="head dims over 64 are cut off in the scores",
    ),
    Mutant(
        name="keys_in_eights",
        base="two_pass",
        file="_blocks.py",
        old="keys = self.key.shape[2]\n",
        new="keys = self.key.shape[2] // 8 * 8 or self.key.shape[2]\n",
        report="tile-ai/TileOPs#89, tile-ai/tilelang#1213, 66RING/tiny-flash-attention#12",
        killed_by="test_a_zero_query_gives_the_mean_of_the_values_it_attends_to",
        why="keys beyond the last multiple of 8 are left out",
    ),
    Mutant(
        name="second_sixteen_keys_read_the_first",
        base="eager",
        file="eager.py",
        old="return weights @ v",
        new="return weights @ (v if not 16 < v.shape[2] <= 32 else torch.cat([v[:, :, :16], v[:, :, :-16]], dim=2))",
        report="microsoft/onnxruntime#23850",
        killed_by="test_the_output_agrees_with_the_formula",
        why="with 17 to 32 keys the second sub-block takes the values of the first",
    ),
    Mutant(
        name="another_path_for_few_queries",
        base="eager",
        file="eager.py",
        old="scores = query @ k.transpose(-2, -1)",
        new="scores = (query if q.shape[2] > 8 else query.bfloat16().to(q.dtype)) @ k.transpose(-2, -1)",
        report="ml-explore/mlx#3573",
        killed_by="test_a_query_alone_is_the_query_in_its_block",
        why="up to eight queries go down a path of their own, which rounds them",
    ),
    Mutant(
        name="values_of_the_first_sample",
        base="eager",
        file="eager.py",
        old="v.repeat_interleave(group, dim=1)",
        new="v[:1].expand_as(v).repeat_interleave(group, dim=1)",
        report="flashinfer-ai/flashinfer#3838, ggml-org/llama.cpp#7903",
        killed_by="test_a_sample_alone_is_the_sample_in_its_batch",
        why="every sample of the batch reads the values of the first",
    ),
    Mutant(
        name="nan_cleaned_away",
        base="eager",
        file="eager.py",
        old="return weights @ v",
        new="return (weights @ v).nan_to_num(0.0)",
        report="tracel-ai/cubecl#1070",
        killed_by="test_a_nan_that_is_not_masked_shows_in_every_row_that_attends_to_it",
        why="a NaN that a query attends to comes out as a plausible zero",
    ),
)
