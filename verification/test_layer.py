"""Properties of the layer: equal weights give equal results, however they are projected and dealt out to heads."""

import torch
from torch import Tensor, nn

import implementations
from implementations import SelfAttention
from verification import budget, oracle
from verification.judge import Subject
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems

_LAYERS = problems(
    mask=None, layout="contiguous", value_dim=0, scale=None, scores="normal", dtype="float32", dim=range(1, 73)
)
_PINNED = (
    Problem(batch=2, heads=2, kv_heads=2, queries=3, keys=3, dim=3),
    Problem(heads=6, kv_heads=2, queries=5, keys=5, dim=8, causal=True),
)


def _layer(subject: Subject, problem: Problem) -> SelfAttention:
    return subject.layer(problem.heads * problem.dim, problem.heads, problem.kv_heads, problem.seed)


def _x(subject: Subject, problem: Problem) -> Tensor:
    random = torch.Generator().manual_seed(problem.seed)
    x = torch.randn(problem.batch, problem.queries, problem.heads * problem.dim, generator=random)
    return x.to(subject.device)


def _right(layer: SelfAttention, x: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """The layer in float64 and the budget of its output: each link's own error, and what the link before hands on."""
    head_dim = layer.d_model // layer.heads
    sizes = [layer.heads * head_dim, layer.kv_heads * head_dim, layer.kv_heads * head_dim]

    def heads_of(packed: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in packed.split(sizes, dim=-1)]

    weight, w_o = layer.W_QKV.weight, layer.W_O.weight
    q, k, v = heads_of(x.double() @ weight.double().mT)
    b_q, b_k, b_v = heads_of(budget.of_product(x, weight))
    exact = oracle.attention(q, k, v, causal=causal)
    group = layer.heads // layer.kv_heads
    key, b_key = k.abs().repeat_interleave(group, dim=1), b_k.repeat_interleave(group, dim=1)
    b_scores = head_dim**-0.5 * (b_q @ (key + b_key).mT + q.abs() @ b_key.mT)
    b_heads = budget.of_output(
        q.float(), k.float(), v.float(), exact, facts=layer.backend.facts, inherited=budget.ScoreError(b_scores, b_v)
    )
    merged, b_merged = (t.transpose(1, 2).flatten(2) for t in (exact.output, b_heads))
    y = merged @ w_o.double().mT
    return y, b_merged @ w_o.double().abs().mT + budget.of_product(merged.float(), w_o)


def _single_head(layer: SelfAttention) -> nn.Module:
    """The article's 3.1, with the layer's weights: three linear maps, a softmax, a linear map."""

    class SingleHead(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            w_q, w_k, w_v = layer.W_QKV.weight.double().chunk(3)
            q, k, v = x @ w_q.mT, x @ w_k.mT, x @ w_v.mT
            weights = torch.softmax(q @ k.mT / layer.d_model**0.5, dim=-1)
            return weights @ v @ layer.W_O.weight.double().mT

    return SingleHead()


@for_all(_LAYERS, *_PINNED)
def test_the_layer_agrees_with_the_formula(subject: Subject, problem: Problem) -> None:
    """y = Concat_i(attend(x W_Q^i, x W_K^i, x W_V^i)) W_O, within the budget of its three links."""
    layer, x = _layer(subject, problem), _x(subject, problem)
    right, allowed = _right(layer, x, problem.causal)
    subject.compare(problem, "layer's output", layer(x, causal=problem.causal), right, allowed)


@for_all(_LAYERS, *_PINNED)
def test_fused_and_separate_projections_agree(subject: Subject, problem: Problem) -> None:
    """One product with W_QKV = three products with W_Q, W_K and W_V: x -> q, k, v and the layer's output."""
    layer, x = _layer(subject, problem), _x(subject, problem)
    own, separate = subject.backend.project, implementations.load("eager").project
    head_dim = layer.d_model // layer.heads
    weights = layer.W_QKV.weight.unflatten(0, (-1, head_dim))  # (heads + 2 kv_heads, head_dim, d_model)
    parts = zip(
        own(x, layer.W_QKV.weight, layer.heads, layer.kv_heads),
        separate(x, layer.W_QKV.weight, layer.heads, layer.kv_heads),
        weights.split([layer.heads, layer.kv_heads, layer.kv_heads]),
        strict=True,
    )
    for one, other, weight in parts:
        allowed = budget.of_product(x[:, None], weight)
        subject.compare(problem, "projection", one, other.double(), 2 * allowed)


@for_all(_LAYERS, *_PINNED)
def test_one_head_is_the_single_head_layer(subject: Subject, problem: Problem) -> None:
    """heads = 1: y = softmax(x W_Q (x W_K)^T / sqrt(d_model)) x W_V W_O, the article's 3.1."""
    layer, x = subject.layer(problem.heads * problem.dim, 1, 1, problem.seed), _x(subject, problem)
    right = _single_head(layer)(x.double())
    _, allowed = _right(layer, x, causal=False)
    subject.compare(problem, "single-head output", layer(x), right, allowed)


@for_all(_LAYERS, *_PINNED)
def test_one_large_projection_is_the_small_ones_side_by_side(subject: Subject, problem: Problem) -> None:
    """MultiHead = Concat(head_1, ..., head_h) W_O with head_i from its own small matrices, the article's 4.2."""
    layer, x = _layer(subject, problem), _x(subject, problem)
    head_dim, group = layer.d_model // layer.heads, layer.heads // layer.kv_heads
    rows = layer.W_QKV.weight.double().unflatten(0, (-1, head_dim))
    w_q, w_k, w_v = rows.split([layer.heads, layer.kv_heads, layer.kv_heads])
    outputs: list[Tensor] = []
    for head in range(layer.heads):
        q = x.double() @ w_q[head].mT
        k, v = (x.double() @ w[head // group].mT for w in (w_k, w_v))
        outputs.append(oracle.attention(q[:, None], k[:, None], v[:, None], causal=problem.causal).output[:, 0])
    right = torch.cat(outputs, dim=-1) @ layer.W_O.weight.double().mT
    _, allowed = _right(layer, x, problem.causal)
    subject.compare(problem, "multi-head output", layer(x, causal=problem.causal), right, allowed)


def test_every_backend_has_the_same_state_dict(subject: Subject) -> None:
    """Weights saved with one backend load into another: same names, same shapes."""
    mine = subject.layer_type(24, 6, kv_heads=2, backend=subject.backend).state_dict()
    eager = SelfAttention(24, 6, kv_heads=2, backend="eager").state_dict()
    assert {name: w.shape for name, w in mine.items()} == {name: w.shape for name, w in eager.items()}
