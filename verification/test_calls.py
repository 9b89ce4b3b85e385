"""How a call is made does not matter: layouts, what came before, who wants gradients, sizes of zero."""

from dataclasses import replace

import torch
from torch import Tensor

from verification import budget
from verification.judge import Subject, assert_same_bits, one_may_be_refused
from verification.problems import OWN_NUMBERS, Problem
from verification.property import for_all
from verification.space import problems

THREADS = 4


@for_all(
    problems(layout="contiguous"),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(batch=2, heads=2, kv_heads=2, queries=17, keys=40, dim=8, causal=True),
    calls=4,
)
def test_the_layout_of_the_inputs_does_not_matter(subject: Subject, problem: Problem) -> None:
    """q, k and v, each in a layout of its own: transposed, sliced, with gaps, features first, expanded."""
    q, k, v, mask = problem.tensors()
    right = subject.right(problem, q, k, v, mask)
    for shift in range(len(OWN_NUMBERS)):
        chosen = [OWN_NUMBERS[(shift + at) % len(OWN_NUMBERS)] for at in range(3)]
        laid = [problem.placed(tensor, name) for tensor, name in zip((q, k, v), chosen, strict=True)]
        with one_may_be_refused():
            label = f"output with q, k, v {', '.join(chosen)}"
            subject.assert_right(problem, laid[0], laid[1], laid[2], mask, label, right)
    shared = [tensor[:1].expand(tensor.shape) for tensor in (q, k, v)]
    subject.assert_right(problem, shared[0], shared[1], shared[2], mask, "output with one sample expanded")


@for_all(
    problems(grad_layout="contiguous"),
    Problem(batch=2, heads=4, kv_heads=2, queries=3, keys=5, dim=4),
    Problem(batch=2, heads=2, kv_heads=2, queries=17, keys=40, dim=8, causal=True, layout="heads inside"),
    calls=9,
)
def test_the_layout_of_the_incoming_gradient_does_not_matter(subject: Subject, problem: Problem) -> None:
    """dO transposed, sliced, with gaps, or expanded: from one number, as out.sum() sends it, or along any one axis."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    forms = {name: problem.placed(grad_out, name) for name in OWN_NUMBERS}
    forms["expanded from one number"] = grad_out.new_ones(()).expand(grad_out.shape)
    for axis, name in enumerate(("samples", "heads", "queries", "features")):
        if grad_out.shape[axis] > 1:
            forms[f"expanded over the {name}"] = grad_out.narrow(axis, 0, 1).expand(grad_out.shape)
    judged = subject.exact_gradients(problem, q, k, v, mask, grad_out)
    for name, form in forms.items():
        right, allowed = judged if name in OWN_NUMBERS else subject.exact_gradients(problem, q, k, v, mask, form)
        with one_may_be_refused():
            answers = subject.gradients(problem, q, k, v, mask, form)
            subject.compare_gradients(problem, answers, right, allowed, f", dO {name}")


@for_all(
    problems(),
    Problem(queries=2, keys=3, dim=2),
    Problem(batch=2, heads=2, kv_heads=1, queries=5, keys=40, dim=8, mask="padding"),
    calls=4,
)
def test_a_call_leaves_no_trace(subject: Subject, problem: Problem) -> None:
    """A, B, A: whatever B is (other sizes, mask, flag, dtype), the second A is right, and is the first to the bit."""
    q, k, v, mask = problem.tensors()
    right = subject.right(problem, q, k, v, mask)
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
        with one_may_be_refused():
            subject.assert_right(between, *between.tensors(), "output of the call between")
        assert_same_bits(first, kept, "a later call wrote into an earlier output")
        again = subject.assert_right(problem, q, k, v, mask, "output of the second call", right)
        assert_same_bits(first, kept, "a later call wrote into an earlier output")
        if subject.facts.deterministic:
            assert_same_bits(again, first, "after another call the same call gave another output")


@for_all(
    problems(),
    Problem(queries=2, keys=3, dim=2, causal=True),
    Problem(heads=4, kv_heads=2, queries=3, keys=40, dim=8, mask="fully masked row"),
    calls=9,
)
def test_the_output_does_not_depend_on_who_wants_gradients(subject: Subject, problem: Problem) -> None:
    """Without grad mode, in inference mode, and where any of q, k and v require a gradient: right every time."""
    q, k, v, mask = problem.tensors()
    grad_out = problem.grad_out()
    right = subject.right(problem, q, k, v, mask)
    gradients, gradient_budget = subject.exact_gradients(problem, q, k, v, mask, grad_out)
    for name, mode in (("without grad mode", torch.no_grad()), ("in inference mode", torch.inference_mode())):
        with mode:
            subject.assert_right(problem, q, k, v, mask, f"output {name}", right)
    for wanted in ("", "Q", "K", "V", "QK", "QV", "KV", "QKV"):
        leaves: list[Tensor] = [
            tensor.detach().requires_grad_(name in wanted) for name, tensor in zip("QKV", (q, k, v), strict=True)
        ]
        label = f"where gradients of {wanted or 'nothing'} are wanted"
        with one_may_be_refused():
            out = subject.assert_right(problem, leaves[0], leaves[1], leaves[2], mask, f"output {label}", right)
            if subject.facts.forward_only:
                continue
            assert out.requires_grad == bool(wanted), f"requires_grad of the output is {out.requires_grad} {label}"
            grads = subject.gradients_of(out, [leaf for leaf in leaves if leaf.requires_grad], grad_out)
            for name, answer in zip(wanted, grads, strict=True):
                at = "QKV".index(name)
                subject.compare(problem, f"gradient of {name} {label}", answer, gradients[at], gradient_budget[at])


@for_all(
    problems(layout="contiguous"),
    Problem(queries=2, keys=3, dim=2),
    Problem(heads=2, queries=3, keys=40, dim=8, mask="random", dtype="float16"),
    calls=4,
)
def test_what_is_changed_in_place_is_seen(subject: Subject, problem: Problem) -> None:
    """q, k, v or mask overwritten where it lies, as a key cache is between two steps: the next call reads it anew."""
    q, k, v, mask = problem.tensors()
    other = replace(problem, seed=problem.seed + 1).tensors()
    subject.attend(q, k, v, **problem.options(mask))
    for name, tensor, numbers in zip(("q", "k", "v", "mask"), (q, k, v, mask), other, strict=True):
        if tensor is None or numbers is None:
            continue
        tensor.copy_(numbers)
        subject.assert_right(problem, q, k, v, mask, f"output after {name} was overwritten")


@for_all(
    problems(),
    Problem(queries=2, keys=3, dim=2),
    Problem(batch=2, heads=2, queries=3, keys=40, dim=8, causal=True, dtype="float16"),
    calls=4,
)
def test_a_backward_pass_may_come_late_and_again(subject: Subject, problem: Problem) -> None:
    """Forward A, forward B of the same sizes, backward A, A, A, B, A: each reads what its own forward pass kept."""
    both = (problem, replace(problem, seed=problem.seed + 1))
    walks = []
    for one in both:
        q, k, v, mask = one.tensors()
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = subject.attend(leaves[0], leaves[1], leaves[2], **one.options(mask))
        walks.append((one, leaves, out, *subject.exact_gradients(one, q, k, v, mask, one.grad_out())))
    for label, (one, leaves, out, right, allowed) in zip(
        (
            *("of the first call", "of the first call, again", "of the first call, a third time"),
            *("of the second call", "of the first call, after the second"),
        ),
        (walks[0], walks[0], walks[0], walks[1], walks[0]),
        strict=True,
    ):
        answers = subject.gradients_of(out, leaves, one.grad_out(), retain_graph=True)
        subject.compare_gradients(one, answers, right, allowed, f" {label}")


@for_all(
    # What other families make of the queries no keys and values can be. Long rows of large values give gradients that
    # float16 has no room for on the way.
    problems(value_dim=0, mask=None, queries=range(1, 200), scores=["normal", "zero", "ties", "large"]),
    Problem(queries=3, keys=3, dim=2),
    Problem(heads=2, kv_heads=2, queries=40, keys=40, dim=8, causal=True),
)
def test_one_tensor_may_be_query_key_and_value(subject: Subject, problem: Problem) -> None:
    """attend(x, x, x) is what three copies of x give, and its gradient is dQ + dK + dV."""
    problem = replace(problem, kv_heads=problem.heads, keys=problem.queries, value_dim=0)
    x, _, _, mask = problem.tensors()
    grad_out = problem.grad_out()
    leaf = x.detach().requires_grad_()
    out = subject.assert_right(problem, leaf, leaf, leaf, mask)
    right, allowed = subject.exact_gradients(problem, x, x, x, mask, grad_out)
    # The three are added, and rounded, one after the other.
    total, budgets = torch.stack(right).sum(0), torch.stack(allowed).sum(0)
    roundings = 2 * budget.unit_roundoff(x.dtype) * (torch.stack(right).abs().sum(0) + budgets)
    (answer,) = subject.gradients_of(out, [leaf], grad_out)
    subject.compare(problem, "gradient", answer, total, budgets + roundings)


@for_all(
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


@for_all(None, Problem(queries=35, keys=35, dim=64), Problem(heads=3, queries=131, keys=131, dim=64, causal=True))
def test_the_number_of_threads_does_not_matter(subject: Subject, problem: Problem) -> None:
    """Output and gradients of 4 threads are the formula's; neither the heads nor the rows divide evenly among them."""
    q, k, v, mask = problem.tensors()
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        subject.assert_right(problem, q, k, v, mask, f"output with {THREADS} threads")
        subject.assert_gradients_right(problem, q, k, v, mask, problem.grad_out(), f" with {THREADS} threads")
    finally:
        torch.set_num_threads(before)
