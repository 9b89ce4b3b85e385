"""Faults of causality and of masks: shifted, dropped, inverted, broadcast along the wrong axis; fully masked rows."""

from verification.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="causal_off_by_one",
        base="eager",
        file="_contract.py",
        old=".tril(keys - queries)",
        new=".tril(keys - queries + 1)",
        report="flashinfer-ai/flashinfer#348",
        killed_by="test_the_future_does_not_reach_the_past",
        why="each query attends to one key of its future",
    ),
    Mutant(
        name="causal_anchored_top_left",
        base="eager",
        file="_contract.py",
        old=".tril(keys - queries)",
        new=".tril(0)",
        report="NVIDIA/cutlass#2336, microsoft/onnxruntime#29020, ml-explore/mlx#2835",
        killed_by="test_the_causal_flag_is_the_lower_right_triangle",
        why="query i attends to key j iff j <= i, whatever the two lengths are",
    ),
    Mutant(
        name="causal_anchored_top_left_by_torch",
        base="sdpa_flash",
        file="_sdpa.py",
        old="corners_coincide = causal and mask is None and q.shape[2] == k.shape[2]",
        new="corners_coincide = causal and mask is None",
        report="pytorch/pytorch#144858, pytorch/pytorch#103082, Dao-AILab/flash-attention#282",
        killed_by="test_the_causal_flag_is_the_lower_right_triangle",
        why="torch's causal flag, which is anchored top-left, is used where the two corners differ",
    ),
    Mutant(
        name="causal_from_the_query_alone",
        base="online",
        file="_blocks.py",
        old="device=q.device)[:, None] + (keys - queries)",
        new="device=q.device)[:, None]",
        report="gittensor-ai-lab/sparkinfer#3, PaddlePaddle/flash-attention#40",
        killed_by="test_a_query_alone_is_the_query_in_its_block",
        why="the index of a query is compared with that of a key without the keys that came before the first query",
    ),
    Mutant(
        name="causal_only_beside_a_mask",
        base="eager",
        file="_contract.py",
        old="if not causal:",
        new="if not causal or mask is None:",
        report="facebookresearch/xformers#103",
        killed_by="test_the_future_does_not_reach_the_past",
        why="the causal flag has an effect only where a mask is given too",
    ),
    Mutant(
        name="causal_dropped_beside_a_mask",
        base="eager",
        file="_contract.py",
        old="return past if mask is None else past & mask",
        new="return past if mask is None else mask",
        report="huggingface/transformers#41966",
        killed_by="test_a_mask_and_the_causal_flag_intersect",
        why="a padding mask switches causality off",
    ),
    Mutant(
        name="mask_dropped_beside_causal",
        base="eager",
        file="_contract.py",
        old="return past if mask is None else past & mask",
        new="return past",
        report="pytorch/pytorch#187966, pytorch/executorch#22189",
        killed_by="test_a_mask_and_the_causal_flag_intersect",
        why="the causal flag switches the mask off",
    ),
    Mutant(
        name="causal_bounds_the_loop_only",
        base="online",
        file="_blocks.py",
        old="        if self.last_key is not None and columns.stop - 1 > self.last_key[0]:",
        new="        elif self.last_key is not None and columns.stop - 1 > self.last_key[0]:",
        report="sgl-project/sglang#39703",
        killed_by="test_a_mask_and_the_causal_flag_intersect",
        why="under a mask, causality ends the loop over the keys but hides no single key",
    ),
    Mutant(
        name="causal_diagonal_block_unmasked",
        base="two_pass",
        file="_blocks.py",
        old="columns.stop - 1 > self.last_key[0]",
        new="columns.start > self.last_key[0]",
        report="FluxML/NNkernels.jl#16",
        killed_by="test_the_future_does_not_reach_the_past",
        why="a block of keys of which a query attends to only a part is not masked",
    ),
    Mutant(
        name="causal_limit_divided_by_the_group",
        base="online",
        file="_blocks.py",
        old="device=q.device)[:, None] + (keys - queries)",
        new="device=q.device)[:, None] // (q.shape[1] // k.shape[1]) + (keys - queries)",
        report="Dao-AILab/flash-attention#2528",
        killed_by="test_the_causal_flag_is_the_lower_right_triangle",
        why="the row is divided by the number of query heads of a kv head, as if those were packed into the rows",
    ),
    Mutant(
        name="causal_dropped_where_tiles_divide",
        base="eager",
        file="_contract.py",
        old="if not causal:",
        new="if not causal or q.shape[2] % 32 == 0:",
        report="bledden/triton-msl#7",
        killed_by="test_the_future_does_not_reach_the_past",
        why="lengths that the tile divides are answered without causality",
    ),
    Mutant(
        name="causal_dropped_beside_a_cache",
        base="eager",
        file="_contract.py",
        old="if not causal:",
        new="if not causal or k.shape[2] > q.shape[2]:",
        report="Mikyx-1/TinyLLM#18",
        killed_by="test_the_future_does_not_reach_the_past",
        why="where earlier keys come from a cache, several new queries attend to one another's future",
    ),
    Mutant(
        name="causal_inverted",
        base="eager",
        file="_contract.py",
        old=".tril(keys - queries)",
        new=".tril(keys - queries).logical_not()",
        report="tilde-research/nsa-release#3",
        killed_by="test_the_future_does_not_reach_the_past",
        why="a query attends to exactly its future",
    ),
    Mutant(
        name="causal_with_one_wrong_entry",
        base="eager",
        file="_contract.py",
        old="    return past if mask is None else past & mask",
        new="    past[:1, -1:] = True\n    return past if mask is None else past & mask",
        report="octo-models/octo#75",
        killed_by="test_the_future_does_not_reach_the_past",
        why="one entry above the diagonal is True: the first query attends to the last key",
    ),
    Mutant(
        name="mask_inverted",
        base="eager",
        file="_contract.py",
        old="        return mask\n",
        new="        return mask if mask is None else ~mask\n",
        report="rasbt/LLMs-from-scratch#1062, lucidrains/halonet-pytorch#4",
        killed_by="test_masking_keys_is_deleting_them",
        why="True is read as masked",
    ),
    Mutant(
        name="mask_dropped",
        base="eager",
        file="eager.py",
        old="visibility(q, k, mask, causal)",
        new="visibility(q, k, None, causal)",
        report="huggingface/diffusers#8886, AI-Hypercomputer/maxtext#878, torch-spyre/torch-spyre#4526",
        killed_by="test_masking_keys_is_deleting_them",
        why="the mask is accepted and not used",
    ),
    Mutant(
        name="mask_added_as_a_number",
        base="eager",
        file="eager.py",
        old="""\
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
    if visible is not None:
        # A row with no key to see is 0/0 here. Filling, unlike nan_to_num, also stops its gradient.
        weights = weights.masked_fill(~visible, 0.0)
""",
        new="""\
        scores = scores + visible
    weights = scores.softmax(dim=-1)
""",
        report="pytorch/pytorch#117939, HKUSTDial/flash-sparse-attention#146",
        killed_by="test_masking_keys_is_deleting_them",
        why="True and False are added to the scores as 1 and 0",
    ),
    Mutant(
        name="mask_read_as_a_length",
        base="eager",
        file="eager.py",
        old="visible = visibility(q, k, mask, causal)",
        new="""\
if mask is not None:
        mask = torch.arange(k.shape[2], device=q.device) < mask.sum(dim=-1, keepdim=True)
    visible = visibility(q, k, mask, causal)""",
        report="microsoft/onnxruntime#27885, unslothai/unsloth#3699",
        killed_by="test_masking_keys_is_deleting_them",
        why="any mask is taken for padding on the right, its sum for the length",
    ),
    Mutant(
        name="mask_of_the_first_key_block",
        base="online",
        file="_blocks.py",
        old="self.mask[..., columns]",
        new="self.mask[..., : columns.stop - columns.start]",
        report="tracel-ai/cubecl#1027",
        killed_by="test_masking_keys_is_deleting_them",
        why="every block of keys is masked as the first one is",
    ),
    Mutant(
        name="mask_of_the_first_head",
        base="eager",
        file="eager.py",
        old="visibility(q, k, mask, causal)",
        new="visibility(q, k, mask if mask is None or mask.ndim < 3 else mask[..., :1, :, :], causal)",
        report="pytorch/pytorch#97409",
        killed_by="test_heads_are_independent",
        why="a mask for each head is not expected: all heads get that of the first",
    ),
    Mutant(
        name="mask_batch_read_as_heads",
        base="eager",
        file="_contract.py",
        old="    if not causal:\n",
        new="""\
    if mask is not None and mask.ndim == 4 and mask.shape[:2] == (q.shape[1], 1):
        mask = mask.transpose(0, 1)
    if not causal:
""",
        report="lucidrains/graph-transformer-pytorch#2, lucidrains/vit-pytorch#71",
        killed_by="test_a_broadcast_mask_is_the_expanded_one",
        why="where batch and heads are as many, the masks of the samples go to the heads",
    ),
    Mutant(
        name="mask_repeated_for_the_wrong_axis",
        base="eager",
        file="eager.py",
        old="visible = visibility(q, k, mask, causal)",
        new="""\
if mask is not None and mask.ndim == 4 and mask.shape[:2] == (q.shape[0], 1):
        mask = mask.repeat(q.shape[1], 1, 1, 1).view(*q.shape[:2], *mask.shape[2:])
    visible = visibility(q, k, mask, causal)""",
        report="lsdefine/attention-is-all-you-need-keras#36",
        killed_by="test_a_sample_alone_is_the_sample_in_its_batch",
        why="the masks of the samples are repeated sample by sample, where head by head is wanted",
    ),
    Mutant(
        name="masked_scores_lowered_by_1e4",
        base="online",
        file="_blocks.py",
        old='scores.masked_fill_(~self.mask[..., columns], float("-inf"))',
        new="scores.sub_(1e4 * ~self.mask[..., columns])",
        report="huggingface/transformers#10484",
        killed_by="test_what_lies_in_a_masked_place_does_not_matter",
        why="-10000 is added to masked scores, and a score can be larger than that",
    ),
    Mutant(
        name="masked_scores_plus_minus_infinity",
        base="eager",
        file="eager.py",
        old='scores = scores.masked_fill(~visible, float("-inf"))',
        new='scores = scores + torch.zeros_like(scores).masked_fill(~visible, float("-inf"))',
        report="huggingface/transformers#46765, deepbeepmeep/Wan2GP#1628",
        killed_by="test_what_lies_in_a_masked_place_does_not_matter",
        why="-inf is added to masked scores, and one that has overflowed to inf becomes NaN",
    ),
    Mutant(
        name="fully_masked_row_is_nan",
        base="eager",
        file="eager.py",
        old="weights = weights.masked_fill(~visible, 0.0)",
        new="pass",
        report="pytorch/pytorch#103963, pytorch/pytorch#103749, unslothai/unsloth#9848",
        killed_by="test_a_fully_masked_row_is_exactly_zero",
        why="the softmax of a fully masked row is 0 / 0",
    ),
    Mutant(
        name="fully_masked_row_is_the_mean",
        base="two_pass",
        file="_blocks.py",
        old='scores.masked_fill_(~self.mask[..., columns], float("-inf"))',
        new="scores.masked_fill_(~self.mask[..., columns], -1e30)",
        report="microsoft/onnxruntime#28904, microsoft/onnxruntime#28958",
        killed_by="test_a_fully_masked_row_is_exactly_zero",
        why="masked scores are -1e30, and a fully masked row has equal weights",
    ),
    Mutant(
        name="fully_masked_row_is_what_torch_gives",
        base="sdpa_flash",
        file="_sdpa.py",
        old="return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)",
        new="return out",
        report="ml-explore/mlx#2395, ml-explore/mlx#2626",
        killed_by="test_a_fully_masked_row_is_exactly_zero",
        why="a fully masked row attends to every key and is not set to zero afterwards",
    ),
    Mutant(
        name="fully_masked_row_under_two_dtype_minima",
        base="eager",
        file="eager.py",
        old="""\
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
    if visible is not None:
        # A row with no key to see is 0/0 here. Filling, unlike nan_to_num, also stops its gradient.
        weights = weights.masked_fill(~visible, 0.0)
""",
        new="""\
    for hidden in (mask, visibility(q, k, None, causal)):
        if hidden is not None:
            scores = scores + torch.zeros_like(scores).masked_fill(~hidden, torch.finfo(q.dtype).min)
    weights = scores.softmax(dim=-1)
""",
        report="huggingface/transformers#27114, google/flax#982, pytorch/pytorch#109517",
        killed_by="test_a_fully_masked_row_is_exactly_zero",
        why="mask and causality each add the smallest number of the dtype: a fully masked row is a mean, or NaN",
    ),
    Mutant(
        name="fully_masked_row_has_a_nan_gradient",
        base="eager",
        file="eager.py",
        old="""\
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
    if visible is not None:
        # A row with no key to see is 0/0 here. Filling, unlike nan_to_num, also stops its gradient.
        weights = weights.masked_fill(~visible, 0.0)
""",
        new="""\
        scores = scores + torch.zeros_like(scores).masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1)
    if visible is not None:
        weights = weights.nan_to_num(0.0)
""",
        report="pytorch/pytorch#41508, pytorch/pytorch#196170, Xilinx/brevitas#1591",
        killed_by="test_a_fully_masked_row_has_no_gradient",
        why="the NaN of a fully masked row is hidden after the softmax: the backward pass still meets it",
    ),
    Mutant(
        name="fully_masked_row_guarded_on_one_path",
        base="eager",
        file="eager.py",
        old="        weights = weights.masked_fill(~visible, 0.0)",
        new="        weights = weights.masked_fill(~visible, 0.0) if weights.requires_grad else weights",
        report="pytorch/pytorch#160064, pytorch/pytorch#190486",
        killed_by="test_the_output_does_not_depend_on_who_wants_gradients",
        why="a fully masked row is zero while gradients are wanted and NaN without",
    ),
)
