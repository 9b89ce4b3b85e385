"""What changes nothing: another order of the keys, other neighbours, a shift, a scale that moved."""

from dataclasses import replace

import torch

from verification.judge import Subject, one_may_be_refused
from verification.problems import Problem
from verification.property import for_all
from verification.space import ANY, problems


@for_all(
    problems(causal=False),
    Problem(queries=2, keys=3, dim=4),
    Problem(queries=2, keys=130, dim=8, scores="rising"),
    Problem(queries=2, keys=1100, dim=2),
    Problem(queries=2, keys=130, dim=8, mask="padding"),
)
def test_the_order_of_the_keys_does_not_matter(subject: Subject, problem: Problem) -> None:
    """attend(Q, K[p], V[p]) = attend(Q, K, V) for a permutation p of the keys, the mask's too."""
    q, k, v, mask = problem.tensors()
    order = torch.randperm(problem.keys, generator=torch.Generator().manual_seed(problem.seed)).to(subject.device)
    mixed = None if mask is None else mask.expand(*mask.shape[:3], problem.keys)[..., order]
    exact = subject.exact(problem, q, k, v, mask)
    out = subject.attend(q, k[:, :, order], v[:, :, order], **problem.options(mixed))
    allowed = subject.budget(problem, q, k, v, exact)
    subject.compare(problem, "output with keys in another order", out, exact.output, allowed)


@for_all(
    problems(keys=range(2, ANY)),
    Problem(queries=2, keys=2),
    Problem(queries=2, keys=130, dim=8, scores="rising"),
    Problem(queries=33, keys=65, dim=8, causal=True),
    calls=2,
)
def test_two_halves_of_the_keys_merge_to_the_whole(subject: Subject, problem: Problem) -> None:
    """O_i = a_i O_i' + (1 - a_i) O_i'', over the first keys and over the others; a_i is the weight of the first."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    cut = problem.keys // 2
    merged, allowed = torch.zeros_like(exact.output), subject.budget(problem, q, k, v, exact)
    for keys in (slice(0, cut), slice(cut, None)):
        share = exact.weights[..., keys].sum(dim=-1, keepdim=True)
        half = replace(problem, causal=False)
        inputs = q, k[:, :, keys], v[:, :, keys]
        attended = exact.visible[..., keys]
        part = subject.attend(*inputs, mask=attended, scale=problem.scale)
        near = subject.budget(half, *inputs, subject.exact(half, *inputs, attended))
        # A part that has no share may attend to nothing, and is what the subject states of such rows.
        merged += torch.where(share == 0, 0.0, share * part)
        allowed = allowed + torch.where(share == 0, 0.0, share * near)
    whole = subject.attend(q, k, v, **problem.options(mask))
    subject.compare(problem, "output merged from two halves", merged, whole.double(), allowed)


@for_all(
    problems(queries=range(2, ANY)),
    Problem(queries=2, keys=2, causal=True),
    Problem(queries=66, keys=66, dim=8, causal=True),
    Problem(queries=2, keys=3, causal=True),
    Problem(queries=40, keys=3, scores="large"),
    Problem(batch=2, queries=40, keys=20, dim=8, mask="random"),
    calls=2,
)
def test_a_query_alone_is_the_query_in_its_block(subject: Subject, problem: Problem) -> None:
    """O_i does not depend on the other queries: the first, the middle and the last asked alone, with their keys."""
    q, k, v, mask = problem.tensors()
    exact, allowed = subject.right(problem, q, k, v, mask)
    subject.assert_right(problem, q, k, v, mask, "output in its block")
    for i in sorted({0, problem.queries // 2, problem.queries - 1}):
        row = slice(i, i + 1)
        alone = subject.attend(q[:, :, row], k, v, mask=exact.visible[:, :, row], scale=problem.scale)
        subject.compare(problem, f"output of query {i} alone", alone, exact.output[:, :, row], allowed[:, :, row])


@for_all(
    problems(batch=range(2, ANY)),
    Problem(batch=3, heads=3, kv_heads=3, queries=2, keys=3, dim=2, mask="random", mask_shared="hq"),
    Problem(batch=2, heads=4, kv_heads=2, queries=5, keys=70, dim=8, causal=True),
    calls=3,
)
def test_a_sample_alone_is_the_sample_in_its_batch(subject: Subject, problem: Problem) -> None:
    """O_b and its gradients do not depend on the other samples of the batch."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    for sample in {0, problem.batch - 1}:
        one = slice(sample, sample + 1)
        mask_of_one = None if mask is None else mask.expand(problem.batch, *mask.shape[1:])[one]
        inputs = q[one], k[one], v[one]
        exact, allowed = subject.right(problem, *inputs, mask_of_one)
        together = subject.attend(q, k, v, **problem.options(mask))[one]
        subject.compare(problem, f"output of sample {sample} in its batch", together, exact.output, allowed)
        subject.assert_right(problem, *inputs, mask_of_one, f"output of sample {sample} alone")
        right, gradient_budget = subject.exact_gradients(problem, *inputs, mask_of_one, grad_out[one])
        answers = subject.gradients(problem, q, k, v, mask, grad_out)
        in_batch = [answer[one] for answer in answers]
        subject.compare_gradients(problem, in_batch, right, gradient_budget, f" of sample {sample} in its batch")


@for_all(
    problems(kv_heads=range(2, ANY), causal=False),
    Problem(heads=2, kv_heads=2, queries=2, keys=2, dim=2),
    Problem(heads=6, kv_heads=3, queries=3, keys=70, dim=8),
    Problem(heads=2, kv_heads=2, queries=2, keys=3, mask="random"),
)
def test_heads_are_independent(subject: Subject, problem: Problem) -> None:
    """The output of a query head is that of its q, its k and its v alone."""
    q, k, v, mask = problem.tensors()
    out = subject.attend(q, k, v, **problem.options(mask))
    group = problem.heads // problem.kv_heads
    for head in range(problem.heads):
        kv_head = slice(head // group, head // group + 1)
        mask_of_one = None if mask is None else mask.expand(-1, problem.heads, -1, -1)[:, head : head + 1]
        inputs = q[:, head : head + 1], k[:, kv_head], v[:, kv_head]
        exact, allowed = subject.right(problem, *inputs, mask_of_one)
        subject.compare(problem, f"output of head {head}", out[:, head : head + 1], exact.output, allowed)


@for_all(
    problems(),
    Problem(heads=6, kv_heads=2, queries=2, keys=3, dim=4),
    Problem(heads=6, kv_heads=3, queries=3, keys=70, dim=8, causal=True),
    Problem(batch=2, heads=4, kv_heads=1, queries=2, keys=3, dim=4, value_dim=3),
    calls=2,
)
def test_grouped_heads_are_repeated_heads(subject: Subject, problem: Problem) -> None:
    """K and V of a kv head written out for each query head of its group: the same output, and gradients that add up."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    group = problem.heads // problem.kv_heads
    wide_k, wide_v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    for name, inputs in (("grouped", (q, k, v)), ("repeated", (q, wide_k, wide_v))):
        subject.assert_right(problem, *inputs, mask, f"output with {name} heads")
    subject.assert_gradients_right(problem, q, k, v, mask, grad_out, " with grouped heads")


@for_all(
    problems(scores=["normal", "ties", "zero"], scale=None),
    Problem(queries=2, keys=3, dim=2),
    Problem(queries=2, keys=70, dim=8, causal=True),
)
def test_a_shift_of_all_keys_changes_nothing(subject: Subject, problem: Problem) -> None:
    """K_j + c for every j adds q_i . c to every score of a row, and softmax does not see it.

    c is +-300, in float32 also +-1e5.
    """
    q, k, v, mask = problem.tensors()
    shifts = (300.0, -300.0) if problem.dtype != "float32" else (300.0, -300.0, 1e5, -1e5)
    q = q.clone()
    q[..., 0] = 1.0
    k = k.clone()
    for shift in shifts:
        # The first feature of q is one, so this shifts every score by the same amount and nothing else.
        k[..., 0] = shift * problem.dim**0.5
        subject.assert_right(problem, q, k, v, mask, f"output with all scores shifted by {shift:g}")


@for_all(
    problems(scale=None, scores=["normal", "ties"]),
    Problem(queries=2, keys=3, dim=3),
    Problem(queries=2, keys=70, dim=65, dtype="float16"),
)
def test_the_scale_is_part_of_the_query(subject: Subject, problem: Problem) -> None:
    """attend(q, scale=2 s) = attend(2 q, scale=s), the default scale is dim ** -0.5, and another changes the output."""
    q, k, v, mask = problem.tensors()
    default = problem.dim**-0.5
    for name, query, scale, asked in (
        ("the default scale", q, default, None),
        ("the default scale given", q, default, default),
        ("twice the scale", q, 2 * default, 2 * default),
        ("twice the query", 2 * q, default, None),
        ("a negative scale", q, -default, -default),
        ("a scale over 1", q, 8 * default, 8 * default),
        ("a scale near 0", q, default / 64, default / 64),
        ("a whole number for a scale", q, 3, 3),
    ):
        drawn = replace(problem, scale=scale)
        exact, allowed = subject.right(drawn, query, k, v, mask)
        with one_may_be_refused():
            out = subject.attend(query, k, v, mask=mask, causal=problem.causal, scale=asked)
            subject.compare(problem, f"output with {name}", out, exact.output, allowed)


@for_all(problems(), Problem(queries=2, keys=3, dim=2), Problem(queries=2, keys=130, dim=8, scores="falling"))
def test_outputs_lie_between_the_values(subject: Subject, problem: Problem) -> None:
    """min_j V_j <= O_i <= max_j V_j over the visible keys, feature by feature: a row of weights is a distribution."""
    q, k, v, mask = problem.tensors()
    exact, allowed = subject.right(problem, q, k, v, mask)
    out = subject.attend(q, k, v, **problem.options(mask)).double()
    values = v.double().repeat_interleave(problem.heads // problem.kv_heads, dim=1)[:, :, None]
    visible = exact.visible[..., None]
    attends = exact.visible.any(dim=-1, keepdim=True)
    least = torch.where(attends, torch.where(visible, values, float("inf")).amin(dim=3), exact.output)
    most = torch.where(attends, torch.where(visible, values, float("-inf")).amax(dim=3), exact.output)
    nearest = torch.minimum(torch.maximum(out, least), most)
    subject.compare(problem, "output outside the range of the values", out, nearest, allowed)


@for_all(problems(), Problem(queries=2, keys=3, dim=2, dtype="float16"), Problem(keys=40, dim=8), calls=2)
def test_the_output_scales_with_the_values(subject: Subject, problem: Problem) -> None:
    """attend(Q, K, c V) = c attend(Q, K, V), for c = 2^60 and 2^-60, in float16 2^12 and 2^-12."""
    q, k, v, mask = problem.tensors()
    # A sum of weighted values is no larger than the largest of them: it fits where they do.
    power = 12 if problem.dtype == "float16" else 60
    for factor in (2.0**power, 2.0**-power):
        values = problem.placed(v * factor, problem.layout)
        subject.assert_right(problem, q, k, values, mask, f"output for values times {factor:g}")
