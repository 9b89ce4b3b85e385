"""What a covering array asks of kernels that refuse much, what is said of it, and which faults it reaches unpinned."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

import implementations
from verification.coverage import Covered, cover
from verification.domain import Domain
from verification.features import LONGEST, NOT_SHARED
from verification.judge import Subject
from verification.mutants import MUTANTS, subject_of
from verification.mutants.properties import first_counterexample
from verification.outcome import GRADIENT_FORMULA, OUTPUT_FORMULA, Evidence, Outcome, verdict
from verification.problems import LAYOUTS, Problem
from verification.property import for_all
from verification.space import Space, Values, problems
from verification.test_agreement import test_the_output_agrees_with_the_formula as agreement
from verification.test_gradients import test_the_gradients_agree_with_the_formula as gradients

eager = implementations.load("eager")

# The formulas without what is pinned.
_OUTPUT = for_all(problems(), strength=3)(agreement.at)
_GRADIENTS = for_all(problems(grad_layout=list(LAYOUTS), wanted=["QKV", "Q", "K", "V", "QK", "QV", "KV"]), strength=3)(
    gradients.at
)

Refuses = Callable[[Problem], bool]


def _square_halves_only(call: Problem) -> bool:
    plain = call.mask is None and call.scale is None and call.causal and call.dtype == "float16"
    same = call.queries == call.keys and call.value_dim in (0, call.dim)
    return not (plain and same and call.keys % 64 == 0)


def _narrower(call: Problem) -> bool:
    return 0 < call.value_dim < call.dim


REFUSES: dict[str, Refuses] = {
    "nothing": lambda call: False,
    "float32": lambda call: call.dtype == "float32",
    "dims that are no multiples of 16": lambda call: bool(call.dim % 16 or call.value_dim % 16),
    "a mask together with causal": lambda call: call.mask is not None and call.causal,
    "grouped heads with narrower values": lambda call: call.heads != call.kv_heads and _narrower(call),
    "grouped heads with values that are not wider": lambda call: (
        call.heads != call.kv_heads and 0 < call.value_dim <= call.dim
    ),
    "one query of several kv heads in rows of 300 and more": lambda call: (
        call.kv_heads > 1 and call.queries == 1 and call.keys >= 300
    ),
    "all but square halves": _square_halves_only,
}


def problem_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Problem:
    """What a kernel can see of its call."""
    return Problem(
        *(len(q), q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3]),
        value_dim=v.shape[3] if v.shape[3] != q.shape[3] else 0,
        dtype=str(q.dtype).removeprefix("torch."),
        causal=causal,
        mask=None if mask is None else "random",
        scale=scale,
    )


def subject(refuses: Refuses, answer: Callable[..., Tensor] = eager.attend) -> Subject:
    def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
        if refuses(problem_of(q, k, v, mask, causal, scale)):
            raise NotImplementedError("it does not take this")
        return answer(q, k, v, mask=mask, causal=causal, scale=scale)

    return Subject(replace(eager, attend=attend))


def zeros(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return q.new_zeros(*q.shape[:3], v.shape[3])


class Recorded:
    """Asks a kernel, and keeps which problems it answered and how many it refused."""

    def __init__(self, answers: Callable[[Problem], bool]) -> None:
        self.answers, self.answered, self.refused = answers, list[Problem](), 0

    def __call__(self, problem: Problem) -> bool:
        if self.answers(problem):
            self.answered.append(problem)
            return True
        self.refused += 1
        return False


def labels_of(problem: Problem, values: Values) -> tuple[str, ...]:
    """The value of each feature that a problem has."""
    return tuple(
        next(
            label
            for label, alternatives in labels.items()
            if any(all(getattr(problem, field) == value for field, value in one.items()) for one in alternatives)
        )
        for labels in values.values()
    )


def combinations(labels: tuple[str, ...], strength: int) -> Iterator[tuple[tuple[int, str], ...]]:
    return itertools.combinations(enumerate(labels), strength)


@pytest.mark.parametrize("refuses", REFUSES)
def test_the_pairs_that_are_covered_are_those_that_were_answered_and_none_is_left_out(refuses: str) -> None:
    kernel, values = subject(REFUSES[refuses], zeros), Space().values()

    def answers(problem: Problem) -> bool:
        q, k, v, mask = problem.tensors()
        try:
            kernel.attend(q, k, v, **problem.options(mask))
        except UnsatisfiedAssumption:
            return False
        return True

    asked = Recorded(answers)
    _, pairs = cover(Space(), 2, asked, kernel.domain.takes, interpreted=False, seed=0)
    answered = set[Any]().union(*(combinations(labels_of(problem, values), 2) for problem in asked.answered))
    assert pairs.answered == len(answered)
    assert pairs.of == pairs.answered
    assert str(pairs) == f"{len(answered):,} of {len(answered):,} pairs"
    assert len(asked.answered) + asked.refused < 1500

    plain = kernel.domain.plain
    assert plain is not None
    features = [*values]
    for (one, first), (two, second) in itertools.combinations(enumerate(values.values()), 2):
        for a, b in itertools.product(first, second):
            if {features[one], features[two]} == {"mask", "mask shared"} and a == "none" and b != NOT_SHARED:
                continue
            taken = [
                problem
                for x, y in itertools.product(first[a], second[b])
                if _size(problem := _with(plain, x | y)) <= 150_000 and not REFUSES[refuses](problem)
            ]
            assert not taken or ((one, a), (two, b)) in answered, taken[0]


def _with(plain: Problem, fields: dict[str, Any]) -> Problem:
    changed = replace(plain, **fields)
    return replace(changed, mask="random") if changed.mask_shared and not changed.mask else changed


def _size(problem: Problem) -> int:
    """As in a row: with one head and one sample, where they are not asked for, but wide enough to be taken."""
    widths = problem.dim + (problem.value_dim or problem.dim)
    return problem.batch * problem.heads * (problem.queries * problem.keys + (problem.queries + problem.keys) * widths)


@pytest.mark.parametrize("refuses", ["nothing", "float32", "a mask together with causal", "all but square halves"])
def test_the_triples_that_are_covered_were_answered(refuses: str) -> None:
    asked = Recorded(lambda problem: not REFUSES[refuses](problem))
    found = cover(Space(), 3, asked, Domain(asked.answers).takes, interpreted=False, seed=0)
    one, pairs, triples = found
    values = Space().values(longest=True)
    lengths = [*values].index("lengths")
    every = [labels_of(problem, values) for problem in asked.answered]
    assert pairs.answered == pairs.of
    assert triples.answered == triples.of
    without = [labels for labels in every if labels[lengths] != LONGEST]
    # Those of the search for pairs, which are answered too, may hold a triple that no row of the other has.
    answered = len(set[Any]().union(*(combinations(labels, 3) for labels in without)))
    assert triples.answered <= answered
    assert triples.answered > 0.99 * answered
    assert one == Covered(
        1, sum(len(set(column)) for column in zip(*every, strict=True)), sum(map(len, values.values()))
    )
    # None of the triples is lost but what the kernel refuses.
    if refuses == "nothing":
        assert triples.of == answered > 27_000


def test_what_is_mostly_refused_is_not_verified() -> None:
    kernel = subject(REFUSES["all but square halves"])
    found: list[Outcome] = []
    with first_counterexample():
        for name, judged in ((OUTPUT_FORMULA, _OUTPUT), (GRADIENT_FORMULA, _GRADIENTS)):
            kernel = Subject(kernel.backend)
            judged(kernel)
            found.append(Outcome("mine", name, "pass", None, kernel.evidence, None, 1, 0.0))
    name, reason = verdict(found)
    assert name == "mostly refused"
    taken, values = found[0].evidence.covered["values"]
    assert reason.startswith(f"{taken} of {values} values of the features of a call are taken; ")


@pytest.mark.parametrize("refuses", ["float32", "a mask together with causal"])
def test_what_refuses_one_value_or_one_pair_is_verified(refuses: str) -> None:
    kernel = subject(REFUSES[refuses])
    with first_counterexample():
        _OUTPUT(kernel)
    found = Outcome("mine", OUTPUT_FORMULA, "pass", None, kernel.evidence, None, 1, 0.0)
    refused = Outcome("mine", GRADIENT_FORMULA, "refused", "no gradients", Evidence(), None, 1, 0.0)
    assert verdict([found, refused])[0] == "verified, forward only"
    assert verdict([found, replace(found, property=GRADIENT_FORMULA)])[0] == "verified"


def test_what_refuses_everything_is_asked_only_few_times() -> None:
    asked = Recorded(lambda problem: False)
    assert cover(Space(), 3, asked, Domain(asked.answers).takes, interpreted=False, seed=0) == []
    assert asked.refused == 0
    # Plain calls are taken and all that a property asks is refused.
    found = cover(Space(), 3, asked, lambda alternative: True, interpreted=False, seed=0)
    assert [one.answered for one in found[1:]] == [0, 0]
    assert asked.refused < 100


# Faults where two or three features of a call meet, and the property that reaches them without a pinned problem.
# block_wholly_in_the_future_over_4096_keys is missing: one key among 4096 shows in float32 only, the longest problems
# are combined in pairs, and so the triple of them, float32 and the causal flag is left to the pinned problem.
REACHED = {
    "silent_window_of_512_keys": _OUTPUT,
    "decode_from_1024_keys_takes_the_wrong_kv_head": _OUTPUT,
    "mask_ignored_past_key_512_with_one_query": _OUTPUT,
    "head_dim_over_256_read_in_part": _OUTPUT,
    "block_that_nobody_attends_to_leaves_a_maximum_of_zero": _OUTPUT,
    "product_overflows_before_it_is_scaled": _OUTPUT,
    "uniform_weights_in_half": _OUTPUT,
    "mask_of_the_first_query_block": _OUTPUT,
    "cached_keys_skipped": _OUTPUT,
    "block_taken_for_full_by_its_corners": _OUTPUT,
    "half_block_of_masked_keys_gives_nan_in_dq": _GRADIENTS,
    "gradient_of_wide_packed_values_lost": _GRADIENTS,
    "gradients_from_head_dim_160": _GRADIENTS,
    "one_query_with_a_low_log_sum_exp_gives_nan": _GRADIENTS,
}


@pytest.fixture
def _default_strength(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triples, as a run of the judge has them, without making the first counterexample small."""
    monkeypatch.setattr("verification.profiles._STRENGTH", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with first_counterexample():
        yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_default_strength")
@pytest.mark.parametrize("name", REACHED)
def test_a_fault_where_features_meet_is_found_without_pinned_problems(name: str) -> None:
    (mutant,) = (mutant for group in MUTANTS.values() for mutant in group if mutant.name == name)
    with pytest.raises(AssertionError, match=r"wrong (output|gradient)"):
        REACHED[name](subject_of(mutant))
