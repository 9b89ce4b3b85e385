"""The output is the formula's, within the error budget of a right answer."""

import torch

from verification.judge import Subject, assert_same_bits
from verification.problems import Problem
from verification.property import for_all
from verification.space import problems


@for_all(
    problems(),
    Problem(queries=65, keys=129, dim=64, dtype="float16", causal=True),
    Problem(queries=129, keys=65, dim=64, dtype="bfloat16", causal=True),
    Problem(batch=2, heads=2, kv_heads=2, queries=2, keys=3, mask="padding", mask_shared="hq"),
    Problem(batch=2, heads=6, kv_heads=2, queries=3, keys=5, dim=8, layout="heads inside"),
    Problem(queries=2, keys=160, dim=2, scores="falling"),
    Problem(queries=2, keys=160, dim=2, mask="masked start"),
    Problem(heads=2, kv_heads=2, keys=2, queries=2, dim=3, value_dim=5),
    Problem(keys=2, dim=4, scale=1.0),
    Problem(queries=2, keys=1100, dim=2, scores="falling"),
    Problem(queries=3, keys=24, dim=72),
    Problem(queries=70, keys=65, mask="random"),
    Problem(queries=3, keys=5, dim=2, dtype="float16", scores="very positive"),
    # Beyond what is drawn: widths over 128, a third block of 128 keys and queries, more samples and heads, float64.
    Problem(queries=3, keys=5, dim=192, value_dim=128),
    Problem(queries=3, keys=5, dim=256, dtype="float16", causal=True),
    Problem(batch=2, heads=2, queries=257, keys=300, dim=16, causal=True),
    Problem(queries=260, keys=390, dim=8, dtype="bfloat16", mask="random"),
    Problem(batch=5, heads=9, kv_heads=3, queries=3, keys=4, dim=2, mask="random"),
    Problem(heads=8, kv_heads=2, queries=5, keys=9, dim=4, causal=True),
    Problem(batch=4, heads=8, kv_heads=2, keys=40, dim=8, causal=True),
    Problem(queries=5, keys=7, dim=4, dtype="float64", causal=True),
    # Where features meet: see `verification/mutants/reach.py`.
    Problem(keys=2, dim=257),
    Problem(keys=513, causal=True),
    Problem(heads=4, kv_heads=2, keys=1024),
    Problem(keys=520, mask="random", mask_shared="hq"),
    Problem(queries=129, keys=129, causal=True, scores="very negative"),
    Problem(queries=513, keys=4097, causal=True),
    Problem(heads=65, keys=2),
    Problem(keys=2, dim=4, dtype="float16", scores="over 65504"),
    strength=3,
)
def test_the_output_agrees_with_the_formula(subject: Subject, problem: Problem) -> None:
    """|O - softmax(scale Q K^T) V| <= budget, elementwise."""
    q, k, v, mask = problem.tensors()
    subject.assert_right(problem, q, k, v, mask)


@for_all(
    problems(mask="fully masked row"),
    Problem(queries=2, keys=2, mask="fully masked row"),
    Problem(queries=3, keys=1, causal=True),
)
def test_a_fully_masked_row_is_exactly_zero(subject: Subject, problem: Problem) -> None:
    """O_i = 0 to the bit where query i may attend to nothing: neither NaN nor the mean of the values, unless
    `fully_masked_rows` says so.
    """
    q, k, v, mask = problem.tensors()
    fully_masked = ~subject.exact(problem, q, k, v, mask).visible.any(dim=-1)
    stated = subject.facts.fully_masked_rows
    if stated != "zero":
        subject.evidence.stated = f"a fully masked row: {stated}"
    out = subject.assert_right(problem, q, k, v, mask) if stated == "mean" else None
    out = (subject.attend(q, k, v, **problem.options(mask)) if out is None else out)[fully_masked]
    if stated == "zero":
        assert_same_bits(out, torch.zeros_like(out), "a fully masked row is not zero: this row may attend to nothing")
    elif stated == "nan":
        assert out.isnan().all(), f"a fully masked row is {out[0].tolist()}; the backend states {stated!r}"
