"""Faults that small problems do not show: what wraps, what ends too soon, what takes too much memory."""

from verification.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="rows_end_at_16_bits",
        base="online",
        file="_blocks.py",
        old="for start in range(0, queries, QUERY_BLOCK):",
        new="for start in range(0, queries if queries <= 65536 else queries % 65536, QUERY_BLOCK):",
        report="pytorch/pytorch#187227, pytorch/pytorch#162588",
        killed_by="test_nothing_ends_where_a_counter_does",
        why="the number of rows is kept in 16 bits: later rows are not written",
    ),
    Mutant(
        name="launch_beyond_the_grid_not_raised",
        base="online_triton",
        file="_triton_launch.py",
        old="kernel[grid](",
        new="kernel[lambda chosen: (min(grid(chosen)[0], 256),)](",
        report="flashinfer-ai/flashinfer#3125, SandAI-org/MagiAttention#40",
        killed_by="test_nothing_ends_where_a_counter_does",
        why="what a grid does not hold, here 256 programs, is not run, and nothing is raised",
    ),
    Mutant(
        name="offsets_in_32_bits",
        base="online_triton",
        file="_triton_kernels.py",
        old="origin = view.data + batch * view.stride[0]",
        new="origin = view.data + batch * view.stride[0] % 4294967296",
        report="pytorch/pytorch#190857, vllm-project/vllm#50427, Dao-AILab/flash-attention#1500",
        killed_by="test_an_offset_may_pass_32_bits",
        why="the offset of a sample wraps at 2^32: the second one is read, and written, in the place of the first",
    ),
    Mutant(
        name="row_offsets_in_32_bits",
        base="online_triton",
        file="_triton_kernels.py",
        old="return origin + rows.to(tl.int64)[:, None] * view.stride[2]",
        new="return origin + rows[:, None] * view.stride[2]",
        report="pytorch/pytorch#187227, fla-org/flash-linear-attention#1080",
        killed_by="test_an_offset_may_pass_32_bits",
        why="the place of a row times its stride is a product in 32 bits",
    ),
    Mutant(
        name="causal_mask_written_out",
        base="online",
        file="_blocks.py",
        old="    if mask is not None:\n        mask = _grouped(",
        new="""\
    if causal and mask is None:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    if mask is not None:
        mask = _grouped(""",
        report="karpathy/nanochat#825, huggingface/transformers#46960",
        killed_by="test_how_extra_memory_grows_with_the_sequence",
        why="right in every number, but a queries x keys mask is in memory after all",
    ),
    Mutant(
        name="padding_mask_written_out",
        base="two_pass",
        file="_blocks.py",
        old="mask = _grouped(mask.expand(*q.shape[:3], keys), k)",
        new="mask = _grouped(mask.expand(*q.shape[:3], keys).contiguous(), k)",
        report="lyuwenyu/RT-DETR#680, huggingface/optimum#1250",
        killed_by="test_how_extra_memory_grows_with_the_sequence",
        why="a mask over the keys alone is written out for every head and query",
    ),
    Mutant(
        name="supported_head_dims_inverted",
        base="online_triton",
        file="_triton_attention.py",
        old="if max(q.shape[3], v.shape[3]) > MAX_HEAD_DIM:",
        new="if max(q.shape[3], v.shape[3]) <= MAX_HEAD_DIM:",
        report="facebookincubator/AITemplate#87",
        killed_by="test_plain_attention_is_answered",
        why="the check of what is supported refuses what is, plain attention among it",
    ),
)
