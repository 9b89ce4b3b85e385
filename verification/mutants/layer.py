"""Faults between x and the heads: how a projection is cut into q, k and v, and these into heads."""

from verification.mutants.mutant import Mutant

_SPLIT = "q, k, v = qkv.transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)"

MUTANTS = (
    Mutant(
        name="packed_weight_cut_into_thirds",
        base="fused_qkv",
        file="fused_qkv.py",
        old=_SPLIT,
        new="""\
third = (heads + 2 * kv_heads) // 3
    q, k, v = (qkv.transpose(1, 2)[:, i * third :][:, : (heads, kv_heads, kv_heads)[i]] for i in range(3))""",
        report="vllm-project/vllm#13686, AutoGPTQ/AutoGPTQ#436",
        killed_by="test_the_layer_agrees_with_the_formula",
        why="K and V are looked for at one and two thirds, although they are narrower than Q",
    ),
    Mutant(
        name="packed_weight_read_head_by_head",
        base="fused_qkv",
        file="fused_qkv.py",
        old=_SPLIT,
        new="""\
packed = qkv.transpose(1, 2).unflatten(1, (kv_heads, heads // kv_heads + 2))
    q, k, v = packed[:, :, :-2].flatten(1, 2), packed[:, :, -2], packed[:, :, -1]""",
        report="sgl-project/sglang#40127",
        killed_by="test_one_large_projection_is_the_small_ones_side_by_side",
        why="the packed weight is read as Q, K, V for each head, not as all of Q, all of K, all of V",
    ),
    Mutant(
        name="keys_and_values_swapped",
        base="eager",
        file="eager.py",
        old="w_q, w_k, w_v = weight.split(",
        new="w_q, w_v, w_k = weight.split(",
        report="tenstorrent/tt-metal#50673",
        killed_by="test_one_head_is_the_single_head_layer",
        why="the rows of W_V project the keys and those of W_K the values",
    ),
    Mutant(
        name="heads_split_without_transpose",
        base="eager",
        file="eager.py",
        old="return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)",
        new="return tuple(t.reshape(t.shape[0], t.shape[2], t.shape[1], t.shape[3]) for t in (q, k, v))",
        report="jsbaan/transformer-from-scratch#6, meta-pytorch/opacus#825, reczoo/FuxiCTR#30",
        killed_by="test_the_layer_agrees_with_the_formula",
        why="(batch, seq, heads, dim) becomes (batch, heads, seq, dim) by a reshape: tokens and heads mix",
    ),
    Mutant(
        name="heads_interleaved_with_features",
        base="eager",
        file="eager.py",
        old="q = nn.functional.linear(x, w_q).unflatten(-1, (heads, head_dim))",
        new="q = nn.functional.linear(x, w_q).unflatten(-1, (head_dim, heads)).transpose(-2, -1)",
        report="gazelle93/Transformer-Various-Positional-Encoding#1, ajhalthor/Transformer-Neural-Network#4",
        killed_by="test_one_large_projection_is_the_small_ones_side_by_side",
        why="a query head takes every heads-th feature instead of head_dim neighbours",
    ),
    Mutant(
        name="projection_in_bfloat16",
        base="fused_qkv",
        file="fused_qkv.py",
        old="qkv = nn.functional.linear(x, weight)",
        new="qkv = nn.functional.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)",
        report="pytorch/pytorch#99012",
        killed_by="test_the_layer_agrees_with_the_formula",
        why="the projection is done in bfloat16 whatever x is",
    ),
    Mutant(
        name="heads_merged_without_transpose",
        base="eager",
        file="_layer.py",
        old="self.W_O(heads_out.transpose(1, 2).flatten(2))",
        new="self.W_O(heads_out.reshape(x.shape))",
        report="jsbaan/transformer-from-scratch#6, meta-pytorch/opacus#825",
        killed_by="test_one_large_projection_is_the_small_ones_side_by_side",
        why="(batch, heads, seq, dim) becomes (batch, seq, heads x dim) by a reshape: tokens and heads mix",
    ),
    Mutant(
        name="layer_drops_the_causal_flag",
        base="eager",
        file="_layer.py",
        old="mask=mask, causal=causal)  #",
        new="mask=mask)  #",
        report="pytorch/pytorch#99282, jax-ml/jax#19237",
        killed_by="test_the_layer_agrees_with_the_formula",
        why="the layer takes the flag and does not hand it on",
    ),
    Mutant(
        name="weights_under_another_name",
        base="eager",
        file="_layer.py",
        old="self.W_O = nn.Linear(",
        new="self.W_O = self.to_W_O = nn.Linear(",
        report="victorchall/EveryDream2trainer#219",
        killed_by="test_every_backend_has_the_same_state_dict",
        why="the layer is right, and its saved weights have names that no other layer knows",
    ),
)
