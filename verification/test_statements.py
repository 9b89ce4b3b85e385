"""What a backend states about itself is true, and what it does not state is found out and reported."""

from dataclasses import replace

import pytest
import torch

from verification.judge import Subject, assert_same_bits, one_may_be_refused
from verification.problems import DTYPES, OWN_NUMBERS, Problem
from verification.property import for_all
from verification.space import problems


def test_plain_attention_is_answered(subject: Subject) -> None:
    """In one dtype, with 64 or 128 features and keys, causal or not. What refuses everything is never wrong, and of no
    use.
    """
    plain = subject.domain.plain
    if plain is not None:
        q, k, v, mask = replace(plain, device=str(subject.device)).tensors()
        subject.assert_right(plain, q, k, v, mask)
        return
    for dtype in DTYPES:
        q, k, v, _ = Problem(queries=64, keys=64, dim=64, dtype=dtype, device=str(subject.device)).tensors()
        with one_may_be_refused():
            subject.attend(q, k, v)
    assert subject.evidence.calls, f"it refuses plain attention: {'; '.join(subject.evidence.refusals)}"


def test_what_states_that_it_has_no_gradients_has_none(subject: Subject) -> None:
    """`forward_only`: the output requires no gradient although q, k and v do: nobody trains with it unawares."""
    if not subject.facts.forward_only:
        subject.evidence.calls += 1  # its gradients are judged by the other properties
        return
    plain = subject.domain.plain or Problem()
    q, k, v, mask = (t if t is None or t.dtype == torch.bool else t.requires_grad_() for t in plain.tensors())
    assert q is not None
    assert k is not None
    assert v is not None
    out = subject.attend(q, k, v, **plain.options(mask))
    assert not out.requires_grad, "it states that it has no gradients, and its output requires one"
    subject.evidence.stated = "forward only: it has no gradients"


@for_all(problems(), Problem(batch=2, heads=4, kv_heads=2, queries=65, keys=130, dim=64), calls=3)
def test_the_same_call_gives_the_same_bits(subject: Subject, problem: Problem) -> None:
    """Stated as `deterministic`: two calls agree to the bit, forward and backward. Otherwise within the budget."""
    q, k, v, mask = problem.tensors()
    first = subject.attend(q, k, v, **problem.options(mask))
    again = subject.attend(q, k, v, **problem.options(mask))
    if not subject.facts.deterministic:
        exact = subject.exact(problem, q, k, v, mask)
        allowed = 2 * subject.budget(problem, q, k, v, exact)
        # A NaN twice is the same output twice; that it is wrong others say.
        first, again = (torch.where(first.isnan() & again.isnan(), 0.0, one) for one in (first, again))
        subject.compare(problem, "second output", again, first.double(), allowed)
        return
    assert_same_bits(again, first, "the same call gave another output")
    grads = subject.gradients(problem, q, k, v, mask, problem.grad_out())
    grads_again = subject.gradients(problem, q, k, v, mask, problem.grad_out())
    for name, grad, grad_again in zip("QKV", grads, grads_again, strict=True):
        assert_same_bits(grad_again, grad, f"the same call gave another gradient of {name}")


@pytest.mark.parametrize("place", ["key", "value"])
def test_how_far_a_nan_in_a_masked_place_reaches(subject: Subject, place: str) -> None:
    """Masked in all rows, or only in some: what the other rows show is what `masked_nonfinite` states."""
    problem = Problem(queries=8, keys=8, dim=8, seed=1, device=str(subject.device))
    q, k, v, _ = problem.tensors()
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool, device=subject.device)
    mask[..., 3] = False  # key 3: no query attends to it
    mask[..., :4, 5] = False  # key 5: only the last four queries attend to it
    reach = "per row"
    for key, unseen_by in ((5, slice(0, 4)), (3, slice(0, 8))):
        poisoned = (k if place == "key" else v).clone()
        poisoned[:, :, key] = float("nan")
        out = subject.attend(q, poisoned if place == "key" else k, poisoned if place == "value" else v, mask=mask)
        if out[:, :, unseen_by].isnan().any():
            reach = "leaks" if key == 3 else "fully masked keys"
    # Stated is what a value does; a key may reach less far, as where a kernel clears what it loads.
    stated = subject.facts.masked_nonfinite
    subject.evidence.stated = f"NaN in a masked {place}: {reach}"
    if stated is not None and place == "value":
        assert reach == stated, f"{reach!r} is how far a NaN in a masked value reaches; the backend states {stated!r}"
    if stated is not None and place == "key":
        order = ["per row", "fully masked keys", "leaks"]
        assert order.index(reach) <= order.index(stated), (
            f"{reach!r} is how far a NaN in a masked key reaches; the backend states {stated!r}"
        )


# With a scale of zero a library may leave the product out, and what is in it.
_SCALES = [None, 1.0, 0.25, -0.5]


@for_all(problems(mask=None, causal=False, scale=_SCALES), Problem(queries=2, keys=3, dim=2), Problem())
def test_a_nan_that_is_not_masked_shows_in_every_row_that_attends_to_it(subject: Subject, problem: Problem) -> None:
    """A NaN in V_j is in that feature of every row, one in K_j in every element, unless `hides_nan` says otherwise."""
    q, k, v, _ = problem.tensors()
    place = problem.keys // 2
    poisoned = v.clone()
    poisoned[:, :, place, 0] = float("nan")
    out = subject.attend(q, k, poisoned, scale=problem.scale)
    assert out[..., 0].isnan().all(), "a NaN in a value is hidden from a query that attends to it"
    assert not out[..., 1:].isnan().any(), "a NaN in one feature of a value reaches another feature"
    poisoned = k.clone()
    poisoned[:, :, place] = float("nan")
    out = subject.attend(q, poisoned, v, scale=problem.scale)
    hidden = problem.keys == 1 and subject.device.type in subject.facts.hides_nan
    assert out.isnan().all() != hidden, (
        f"it states that a NaN in all keys is hidden, and shows {out.flatten()[0]}"
        if hidden
        else "a NaN in a key is hidden from a query that attends to it"
    )


@for_all(
    problems(layout=OWN_NUMBERS, scale=_SCALES),
    Problem(queries=3, keys=3, dim=2),
    Problem(batch=2, heads=2, queries=40, keys=40, dim=8, causal=True),
)
def test_a_nan_in_a_query_shows_in_its_row_alone(subject: Subject, problem: Problem) -> None:
    """A NaN in Q_i is in every element of O_i and in no other; not in O_i where `hides_nan` says so or it is masked."""
    q, k, v, mask = problem.tensors()
    place = problem.queries // 2
    attends_to_a_key = subject.exact(problem, q, k, v, mask).visible.any(dim=-1)
    poisoned = q.clone()
    poisoned[:, :, place, 0] = float("nan")
    out = subject.attend(problem.placed(poisoned, problem.layout), k, v, **problem.options(mask))
    others = torch.arange(problem.queries, device=subject.device) != place
    if out[:, :, others].isnan().any():
        # What torch's own product does on this machine is no fault of the kernel's.
        subject.blame_the_machine(problem, q, k, v, mask, place)
        raise AssertionError("a NaN in a query reaches another row")
    row = out[:, :, place][attends_to_a_key[:, :, place]]
    hidden = subject.device.type in subject.facts.hides_nan
    # What hides it gives zero; where a mask is given it may show all the same. What looks like an answer is wrong.
    shown = row.isnan() | (row == 0) if hidden else row.isnan()
    assert shown.all(), "a NaN in a query is hidden from its own row"
