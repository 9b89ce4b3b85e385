"""What a mask hides has no influence, and what it leaves is untouched."""

from dataclasses import replace

import torch
from torch import Tensor

from verification.judge import Subject, assert_no_leak, assert_same_bits, one_may_be_refused
from verification.problems import MASKS, OWN_NUMBERS, Problem
from verification.property import for_all
from verification.space import problems


@for_all(
    problems(mask=None, causal=False),
    Problem(queries=3, keys=5, dim=4),
    Problem(queries=2, keys=1100, dim=2),
    Problem(batch=3, heads=2, kv_heads=2, queries=3, keys=70, dim=8),
    Problem(batch=2, queries=2, keys=130, dim=8, dtype="float16"),
)
def test_masking_keys_is_deleting_them(subject: Subject, problem: Problem) -> None:
    """Each sample with a mask over its own part of the keys = that sample alone with the other keys taken away."""
    q, k, v, _ = problem.tensors()
    keys = problem.keys
    for kept in (torch.arange(keys // 2, keys), torch.arange(0, keys, 2), torch.tensor([keys - 1])):
        # Each sample keeps its own keys: those of the first, moved on by one for each further sample.
        places = [(kept + sample) % keys for sample in range(problem.batch)]
        mask = torch.zeros(problem.batch, 1, 1, keys, dtype=torch.bool)
        for sample, place in enumerate(places):
            mask[sample, ..., place] = True
        out = subject.attend(q, k, v, mask=mask.to(subject.device), scale=problem.scale)
        for sample, place in enumerate(places):
            place = place.sort().values.to(subject.device)
            one = slice(sample, sample + 1)
            left = q[one], k[one][:, :, place], v[one][:, :, place]
            masked = subject.exact(problem, q[one], k[one], v[one], mask[one].to(subject.device))
            allowed = subject.budget(problem, q[one], k[one], v[one], masked)
            right = subject.exact(problem, *left, None).output
            subject.compare(problem, f"output of sample {sample}", out[one], right, allowed)


@for_all(
    problems(mask=list(MASKS), layout=OWN_NUMBERS),
    Problem(queries=2, keys=3, mask="random"),
    Problem(queries=2, keys=40, dim=4, mask="masked start"),
    Problem(queries=2, keys=3, mask="random", dtype="float16"),
    Problem(queries=2, keys=3, mask="one key", dtype="float16", scores="large"),
    Problem(queries=33, keys=70, dim=8, causal=True, mask="padding", dtype="bfloat16"),
    Problem(queries=3, keys=5, dim=2, scores="very negative", mask="random"),
)
def test_what_lies_in_a_masked_place_does_not_matter(subject: Subject, problem: Problem) -> None:
    """V_j = c and K_j = c / (1 + dim) in keys that no query of the group attends to change no bit of O.

    c is +-1e6, in float16 +-6e4.
    """
    q, k, v, mask = problem.tensors()
    attended = subject.exact(problem, q, k, v, mask).visible.any(dim=2)  # (batch, heads, keys)
    attended = attended.unflatten(1, (problem.kv_heads, -1)).any(dim=2)[..., None]
    out = subject.attend(q, k, v, **problem.options(mask))

    def with_garbage(garbage: float, at: Tensor) -> Tensor:
        # In the same layout: another one may take another path through a library, and round differently.
        other_k = problem.placed(torch.where(at, garbage / (1 + problem.dim), k), problem.layout)
        other_v = problem.placed(torch.where(at, garbage, v), problem.layout)
        return subject.attend(q, other_k, other_v, **problem.options(mask))

    place = torch.arange(problem.keys, device=subject.device)[:, None]
    largest = 6e4 if problem.dtype == "float16" else 1e6
    for garbage in (-largest, largest):
        message = f"with {garbage:g} in masked places the output changed"
        changed = with_garbage(garbage, ~attended)
        keys = range(problem.keys)
        assert_no_leak(changed, out, message, keys, lambda key, g=garbage: with_garbage(g, ~attended & (place == key)))


@for_all(
    problems(causal=True, mask=list(MASKS)),
    Problem(queries=2, keys=2, causal=True, mask="random", seed=2),
    Problem(queries=65, keys=65, dim=8, causal=True, mask="random"),
    Problem(queries=40, keys=70, dim=8, causal=True, mask="left padding"),
)
def test_a_mask_and_the_causal_flag_intersect(subject: Subject, problem: Problem) -> None:
    """mask with causal=True is the one mask that is their intersection: both calls agree with the same formula."""
    q, k, v, mask = problem.tensors()
    subject.assert_right(problem, q, k, v, mask, "output under mask and flag")
    both = subject.exact(problem, q, k, v, mask).visible
    subject.assert_right(replace(problem, causal=False), q, k, v, both, "output under their intersection")


@for_all(
    problems(mask=list(MASKS), mask_shared=["b", "h", "q", "bh", "bq", "hq", "bhq"]),
    Problem(batch=2, heads=2, kv_heads=2, queries=2, keys=2, mask="random", mask_shared="h"),
    Problem(batch=2, heads=2, kv_heads=2, queries=2, keys=2, mask="random", mask_shared="b"),
    Problem(batch=3, heads=3, kv_heads=3, queries=3, keys=3, mask="random", mask_shared="hq"),
    Problem(batch=3, heads=3, kv_heads=3, queries=3, keys=3, mask="random", mask_shared="bq"),
    Problem(batch=2, heads=2, kv_heads=1, queries=2, keys=2, mask="random", mask_shared="bh"),
    Problem(batch=3, heads=3, kv_heads=3, queries=3, keys=3, mask="random", mask_shared="bh", causal=True),
    calls=2,
)
def test_a_broadcast_mask_is_the_expanded_one(subject: Subject, problem: Problem) -> None:
    """An axis of 1 stands for all of that axis, whether it is written out, left as 1, or, in front, left away; and
    however the mask lies in memory. Gradients likewise, where axes are left away.
    """
    q, k, v, mask = problem.tensors()
    assert mask is not None
    full = (problem.batch, problem.heads, problem.queries, problem.keys)
    forms = {"as drawn": mask, "a view": mask.expand(full), "written out": mask.expand(full).contiguous()}
    forms["stored by columns"] = mask.mT.contiguous().mT
    forms["in every other place"] = torch.stack([mask, ~mask], dim=-1).flatten(-2)[..., ::2]
    shorter = mask
    while shorter.ndim > 1 and shorter.shape[0] == 1:
        shorter = shorter[0]
    forms["without leading axes"] = shorter
    right = subject.right(problem, q, k, v, mask)
    for name, form in forms.items():
        with one_may_be_refused():
            subject.assert_right(problem, q, k, v, form, f"output with the mask {name}", right)
    with one_may_be_refused():
        label = " with the mask without leading axes"
        subject.assert_gradients_right(problem, q, k, v, shorter, problem.grad_out(), label)


@for_all(
    problems(mask="fully masked row"),
    Problem(queries=3, keys=4, mask="fully masked row"),
    Problem(batch=2, heads=2, kv_heads=2, queries=3, keys=3, mask="fully masked row", causal=True),
)
def test_a_mask_of_one_column_shows_all_keys_or_none(subject: Subject, problem: Problem) -> None:
    """The axis of the keys may be 1 as well: a row then attends to every key or none, and so for a mask of no axis."""
    q, k, v, mask = problem.tensors()
    assert mask is not None
    forms = {"of one column": mask[..., :1]}
    forms |= {f"of one {value}": torch.tensor(value, device=subject.device) for value in (True, False)}
    for name, form in forms.items():
        with one_may_be_refused():
            subject.assert_right(problem, q, k, v, form, f"output with a mask {name}")


@for_all(
    problems(mask="fully masked row"),
    Problem(queries=2, keys=2, mask="fully masked row"),
    Problem(queries=3, keys=1, causal=True),
    Problem(queries=40, keys=70, dim=8, mask="fully masked row", dtype="float16"),
)
def test_a_fully_masked_row_has_no_gradient(subject: Subject, problem: Problem) -> None:
    """dQ_i = 0 exactly of fully masked rows, and every gradient of the others is finite."""
    q, k, v, mask = problem.tensors()
    fully_masked = ~subject.exact(problem, q, k, v, mask).visible.any(dim=-1)
    grads = subject.gradients(problem, q, k, v, mask, problem.grad_out())
    assert_same_bits(
        grads[0][fully_masked], torch.zeros_like(grads[0][fully_masked]), "a fully masked row has a gradient"
    )
    for name, grad in zip("QKV", grads, strict=True):
        wrong = ~grad.isfinite()
        assert_same_bits(wrong, torch.zeros_like(wrong), f"the gradient of {name} is not finite")
