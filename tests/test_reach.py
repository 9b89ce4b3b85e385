"""What the judge reaches: kernels that take next to nothing, scores at the limit, graphs that forbid autograd.grad."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import implementations
from verification import budget
from verification.judge import Subject
from verification.mutants import MUTANTS, subject_of
from verification.mutants.properties import first_counterexample
from verification.problems import AT_THE_LIMIT, Problem
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement
from verification.test_gradients import test_the_gradients_agree_with_the_formula as gradients
from verification.test_threads import test_callers_in_two_threads_do_not_meet as threads
from verification.test_weights import test_rows_sum_to_one as rows_sum

HERE = [name for name in implementations.names() if not implementations.load(name).cannot_run(torch.device("cpu"))]
BLOCK = 64

eager = implementations.load("eager")


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    with first_counterexample():
        yield


def square_halves_only(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Takes float16, the causal flag, as many queries as keys, whole blocks; and forgets the last block of keys."""
    if mask is not None or scale is not None or not causal:
        raise NotImplementedError("it takes the causal flag, and neither a mask nor a scale")
    if q.dtype != torch.float16:
        raise NotImplementedError("it takes float16")
    if q.shape[2] != k.shape[2] or k.shape[2] % BLOCK or q.shape[3] != v.shape[3]:
        raise NotImplementedError(f"it takes as many queries as keys, in blocks of {BLOCK}, and values as wide as keys")
    remembered = torch.arange(k.shape[2], device=q.device) < k.shape[2] - BLOCK
    return eager.attend(q, k, v, causal=causal, mask=remembered[None])


@pytest.mark.parametrize("judged", [agreement, gradients], ids=lambda judged: judged.__name__)
def test_a_kernel_that_takes_next_to_nothing_is_asked_in_the_form_it_takes(judged: object) -> None:
    """It refuses fifty problems, and may not be called right for that."""
    assert callable(judged)
    with pytest.raises(AssertionError, match=r"wrong (output|gradient)"):
        judged(Subject(replace(eager, name="square halves only", attend=square_halves_only)))


@pytest.mark.parametrize("name", HERE)
def test_a_product_beyond_float16_gives_scores_within(name: str) -> None:
    """q = k = 130 in four features: the product is 67600, the score 33800."""
    q = torch.full((1, 1, 1, 4), 130.0, dtype=torch.float16)
    out = implementations.load(name).attend(q, q, q)
    assert torch.equal(out, q)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("scores", AT_THE_LIMIT)
@pytest.mark.parametrize(
    "facts", [implementations.Facts(), implementations.load("online").facts], ids=["theirs", "ours"]
)
def test_the_budget_is_a_number_however_far_off_the_scores_may_be(
    facts: implementations.Facts, scores: str, dtype: str
) -> None:
    """No weight is more than one: the budget of an output is at most the largest values, and NaN is over it."""
    problem = Problem(queries=3, keys=40, dim=4, dtype=dtype, scores=scores, mask="fully masked row")
    subject = Subject(replace(eager, facts=facts))
    q, k, v, mask = problem.tensors()
    exact = subject.exact(problem, q, k, v, mask)
    allowed = subject.budget(problem, q, k, v, exact)
    grad_out = problem.grad_out()
    right, budgets = subject.exact_gradients(problem, q, k, v, mask, grad_out)
    for answer, bound in ((exact.output, allowed), *zip(right, budgets, strict=True)):
        assert bound.isfinite().all()
        assert (bound > 0).all()
        assert budget.ratio(torch.full_like(answer, float("nan")), answer, bound).isinf().all()
        assert (budget.ratio(answer, answer, bound) == 0).all()


def test_a_weight_of_zero_may_be_one_where_scores_are_that_uncertain() -> None:
    """Two scores 750 apart in float64, off by more than that in bfloat16: either key may get all the weight."""
    q = torch.full((1, 1, 1, 1), 240.0, dtype=torch.bfloat16)
    k = torch.tensor([240.0, 236.0], dtype=torch.bfloat16).view(1, 1, 2, 1)
    v = torch.tensor([0.0, 1.0], dtype=torch.bfloat16).view(1, 1, 2, 1)
    subject = Subject(replace(eager, facts=implementations.Facts()))
    problem = Problem(keys=2, dtype="bfloat16")
    exact = subject.exact(problem, q, k, v, None)
    assert exact.weights[0, 0, 0, 1] == 0
    assert subject.budget(problem, q, k, v, exact).item() >= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_sum_of_a_row_has_no_budget_for_scores(dtype: str) -> None:
    problem = Problem(keys=3, dim=2, dtype=dtype, scores="very negative")
    q, k, v, mask = problem.tensors()
    exact = eager_subject().exact(problem, q, k, v, mask)
    assert budget.of_row_sum(exact, q.dtype).max() < 0.02  # a few roundings of bfloat16
    for mutant in MUTANTS["reach"]:
        if mutant.name == "half_scores_below_minus_150_add_up_to_nothing":
            with pytest.raises(AssertionError, match="wrong sum of a row"):
                rows_sum.at(subject_of(mutant), problem)


def eager_subject() -> Subject:
    return Subject("eager")


def test_gradients_come_by_backward_where_grad_is_forbidden() -> None:
    """A kernel that is built on a reentrant checkpoint; what lies in .grad of a leaf stays there."""

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        out: Tensor = checkpoint(lambda *given: eager.attend(*given, **options), q, k, v, use_reentrant=True)  # pyright: ignore
        return out * 1.0

    subject = Subject(replace(eager, name="checkpointed", attend=attend))
    problem = Problem(queries=3, keys=5, dim=4, causal=True)
    gradients.at(subject, problem)
    q, k, v, _ = problem.tensors()
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    leaves[0].grad = torch.ones_like(q)
    out = subject.attend(leaves[0], leaves[1], leaves[2])
    subject.gradients_of(out, leaves, problem.grad_out())
    assert torch.equal(leaves[0].grad, torch.ones_like(q))
    assert leaves[1].grad is None


def test_what_two_threads_share_is_found_every_time() -> None:
    """They take turns at every line, so that it is no matter of luck."""
    (mutant,) = (mutant for mutant in MUTANTS["reach"] if mutant.name == "scratch_shared_by_threads")
    for _ in range(5):
        with pytest.raises(AssertionError, match="output beside another thread"):
            threads.at(subject_of(mutant), Problem(queries=3, keys=5, dim=4))


def test_a_fault_of_one_thread_ends_both() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        if threads_seen.setdefault("calls", 0) > 3:
            raise OSError("no such thing")
        threads_seen["calls"] += 1
        return eager.attend(q, k, v)

    threads_seen: dict[str, int] = {}
    with pytest.raises(OSError, match="no such thing"):
        threads.at(Subject(replace(eager, name="raises", attend=attend)), Problem(queries=3, keys=5, dim=4))
