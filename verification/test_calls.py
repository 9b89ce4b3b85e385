"""How a call is made does not matter: layouts, what came before, who wants gradients, sizes of zero."""

from dataclasses import replace

import torch
from torch import Tensor

from verification.claims import claim
from verification.judge import Subject, assert_same_bits, one_may_be_refused
from verification.problems import LAYOUTS, Problem, problems


@claim(
    problems(layout="contiguous"),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(batch=2, heads=2, kv_heads=2, queries=17, keys=40, dim=8, causal=True),
    calls=4,
)
def test_the_layout_of_the_inputs_does_not_matter(subject: Subject, problem: Problem) -> None:
    """q, k and v, each in a layout of its own: transposed, sliced, with gaps, features first, expanded."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    allowed = subject.budget(problem, q, k, v, exact)
    names = [name for name in LAYOUTS if name != "expanded"]
    for shift in range(len(names)):
        chosen = [names[(shift + at) % len(names)] for at in range(3)]
        laid = [problem.placed(tensor, name) for tensor, name in zip((q, k, v), chosen, strict=True)]
        with one_may_be_refused():
            out = subject.attend(laid[0], laid[1], laid[2], **problem.options(mask))
            subject.compare(problem, f"output with q, k, v {', '.join(chosen)}", out, exact.output, allowed)
    shared = [tensor[:1].expand(tensor.shape) for tensor in (q, k, v)]
    exact = subject.exact(problem, shared[0], shared[1], shared[2], mask)
    allowed = subject.budget(problem, shared[0], shared[1], shared[2], exact)
    out = subject.attend(shared[0], shared[1], shared[2], **problem.options(mask))
    subject.compare(problem, "output with one sample expanded", out, exact.output, allowed)


@claim(
    problems(grad_layout="contiguous"),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(batch=2, heads=2, kv_heads=2, queries=17, keys=40, dim=8, causal=True, layout="heads inside"),
    calls=5,
)
def test_the_layout_of_the_incoming_gradient_does_not_matter(subject: Subject, problem: Problem) -> None:
    """dO transposed, sliced, with gaps, or expanded from one number as out.sum() sends it."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    forms = {name: problem.placed(grad_out, name) for name in LAYOUTS if name != "expanded"}
    forms["expanded from one number"] = grad_out.new_ones(()).expand(grad_out.shape)
    for name, form in forms.items():
        right, allowed = subject.exact_gradients(problem, q, k, v, mask, form)
        with one_may_be_refused():
            answers = subject.gradients(problem, q, k, v, mask, form)
            for letter, answer, r, b in zip("QKV", answers, right, allowed, strict=True):
                subject.compare(problem, f"gradient of {letter}, dO {name}", answer, r, b)


@claim(
    problems(),
    Problem(queries=2, keys=3, dim=2),
    Problem(batch=2, heads=2, kv_heads=1, queries=5, keys=40, dim=8, mask="padding"),
    calls=4,
)
def test_a_call_leaves_no_trace(subject: Subject, problem: Problem) -> None:
    """A, B, A: whatever B is (other sizes, mask, flag, dtype), the second A is right, and is the first to the bit."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    allowed = subject.budget(problem, q, k, v, exact)
    first = subject.attend(q, k, v, **problem.options(mask))
    kept = first.clone()
    others = (
        replace(problem, mask=None if problem.mask else "random", mask_shared="", seed=problem.seed + 1),
        replace(problem, causal=not problem.causal, seed=problem.seed + 2),
        replace(problem, queries=problem.queries + 1, keys=problem.keys + 1, seed=problem.seed + 3),
        replace(problem, seed=problem.seed + 4),
        replace(problem, scale=0.5 if problem.scale is None else None, seed=problem.seed + 5),
    )
    for between in others:
        tensors = between.tensors()
        right = subject.exact(between, *tensors)
        with one_may_be_refused():
            answer = subject.attend(*tensors[:3], **between.options(tensors[3]))
            near = subject.budget(between, tensors[0], tensors[1], tensors[2], right)
            subject.compare(between, "output of the call between", answer, right.output, near)
        assert_same_bits(first, kept, "a later call wrote into an earlier output")
        again = subject.attend(q, k, v, **problem.options(mask))
        subject.compare(problem, "output of the second call", again, exact.output, allowed)
        assert_same_bits(first, kept, "a later call wrote into an earlier output")
        if subject.facts.deterministic:
            assert_same_bits(again, first, "after another call the same call gave another output")


@claim(
    problems(),
    Problem(queries=2, keys=3, dim=2, causal=True),
    Problem(heads=4, kv_heads=2, queries=3, keys=40, dim=8, mask="blind row"),
    calls=6,
)
def test_the_output_does_not_depend_on_who_wants_gradients(subject: Subject, problem: Problem) -> None:
    """With and without grad mode, and where none, one or all of q, k and v require a gradient: right every time."""
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    allowed = subject.budget(problem, q, k, v, exact)
    grad_out = problem.grad_out()
    right, gradient_budget = subject.exact_gradients(problem, q, k, v, mask, grad_out)
    with torch.no_grad():
        out = subject.attend(q, k, v, **problem.options(mask))
    subject.compare(problem, "output without grad mode", out, exact.output, allowed)
    for wanted in ("", "Q", "K", "V", "QKV"):
        leaves: list[Tensor] = [
            tensor.detach().requires_grad_(name in wanted) for name, tensor in zip("QKV", (q, k, v), strict=True)
        ]
        told = f"where gradients of {wanted or 'nothing'} are wanted"
        with one_may_be_refused():
            out = subject.attend(leaves[0], leaves[1], leaves[2], **problem.options(mask))
            subject.compare(problem, f"output {told}", out.detach(), exact.output, allowed)
            assert out.requires_grad == bool(wanted), f"requires_grad of the output is {out.requires_grad} {told}"
            grads = subject.gradients_of(out, [leaf for leaf in leaves if leaf.requires_grad], grad_out)
            for name, answer in zip(wanted, grads, strict=True):
                at = "QKV".index(name)
                subject.compare(problem, f"gradient of {name} {told}", answer, right[at], gradient_budget[at])


@claim(
    problems(),
    Problem(batch=2, heads=2, kv_heads=1, queries=3, keys=5, dim=4),
    Problem(queries=3, keys=1, dim=4, causal=True),
    Problem(queries=2, keys=3, dim=4, value_dim=3),
)
def test_empty_inputs_keep_their_shape(subject: Subject, problem: Problem) -> None:
    """No samples, no queries or no keys: the shape of the contract, zeros where there are no keys."""
    for empty in ({"batch": 0}, {"queries": 0}, {"keys": 0}):
        emptied = replace(problem, mask=None, **empty)
        q, k, v, _ = emptied.tensors()
        with one_may_be_refused():
            out = subject.attend(q, k, v, causal=problem.causal, scale=problem.scale)
            assert_same_bits(out, torch.zeros_like(out), "without keys the output is not zero")
