"""Properties of the weights, read through the values: the weights of a fused kernel are never in memory."""

import torch

from verification import budget
from verification.judge import Subject, assert_same_bits
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems

_LONG_EQUAL_ROW = Problem(keys=4096, dim=2, scores="zero", dtype="bfloat16")


@for_all(
    problems(),
    _LONG_EQUAL_ROW,
    Problem(keys=4096, dim=2, scores="zero", dtype="float16"),
    Problem(queries=65, keys=65),
    Problem(queries=2, keys=1100, dim=2, scores="rising"),
    Problem(queries=2, keys=3, dim=2, dtype="float16", scores="very negative"),
    Problem(queries=2, keys=3, dim=2, dtype="bfloat16", scores="far below"),
)
def test_rows_sum_to_one(subject: Subject, problem: Problem) -> None:
    """sum_j P_ij = 1: where every value is one, so is the output; a fully masked row gives zero.

    However wrong the scores: their error is no part of this budget.
    """
    q, k, v, mask = problem.tensors()
    v = problem.placed(torch.ones_like(v), problem.layout)
    exact = subject.exact(problem, q, k, v, mask)
    out = subject.attend(q, k, v, **problem.options(mask))
    wanted = exact.weights.sum(dim=-1, keepdim=True).expand_as(out)  # 1, and 0 for a fully masked row
    subject.compare(problem, "sum of a row", out, wanted, budget.of_row_sum(exact, q.dtype).expand_as(out))


@for_all(
    problems(value_dim=0), Problem(queries=33, keys=65, dim=64, causal=True), Problem(keys=3, dim=3, mask="one key")
)
def test_the_weights_read_out_are_the_softmax(subject: Subject, problem: Problem) -> None:
    """With V_j = e_j the output row is the row of weights: P_ij = softmax_j(S_ij), exactly zero where masked."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    for start in sorted({0, problem.keys // 2, max(0, problem.keys - problem.dim)}):
        columns = torch.arange(start, min(start + problem.dim, problem.keys))
        identity = torch.zeros(problem.keys, problem.dim)
        identity[columns, columns - start] = 1.0
        v = problem.placed(identity.expand(problem.batch, problem.kv_heads, -1, -1), problem.layout)
        read = subject.attend(q, k, v, **problem.options(mask))[..., : len(columns)]
        weights = exact.weights[..., columns]
        allowed = subject.budget(problem, q, k, v, subject.exact(problem, q, k, v, mask))[..., : len(columns)]
        subject.compare(problem, f"weights of keys {start} to {int(columns[-1])}", read, weights, allowed)
        masked = ~exact.visible[..., columns] & (weights == 0)
        assert_same_bits(read[masked], torch.zeros_like(read[masked]), "a masked key has a weight that is not zero")


@for_all(
    problems(scores="zero"), Problem(queries=3, keys=5, causal=True, scores="zero"), Problem(keys=13, scores="zero")
)
def test_a_zero_query_gives_the_mean_of_the_values_it_attends_to(subject: Subject, problem: Problem) -> None:
    """q = 0: every visible key weighs the same, O_i = mean of the visible V_j; under causality a prefix mean."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    values = v.double().repeat_interleave(problem.heads // problem.kv_heads, dim=1)
    attended = exact.visible.double()
    mean = (attended @ values) / attended.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = torch.where(exact.visible.any(dim=-1, keepdim=True), mean, exact.output)
    out = subject.attend(q, k, v, **problem.options(mask))
    subject.compare(problem, "mean", out, mean, subject.budget(problem, q, k, v, exact))
