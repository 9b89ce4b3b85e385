"""Failures grouped by cause: what one fault breaks is one finding, and what another breaks is another."""

from verification.causes import causes
from verification.outcome import OUTPUT_FORMULA, Evidence, Failure, Outcome
from verification.problems import Problem

WRONG = "wrong output at (0, 0, 0, 0)"


def failed(
    property: str,
    problem: Problem | None,
    reason: str = WRONG,
    exception: str = "AssertionError",
    backend: str = "mine",
) -> Outcome:
    failure = Failure(reason, repr(problem) if problem else None, exception, f"{reason}\nand more")
    return Outcome(backend, property, "fail", reason, Evidence(), failure, threads=1, duration_s=0.1)


def grouped(*outcomes: Outcome) -> list[tuple[str | None, tuple[str, ...]]]:
    return [(cause.problem, cause.properties) for cause in causes(outcomes)]


def test_a_wrong_corner_is_one_cause_with_all_its_properties_under_the_smallest_problem() -> None:
    corner = Problem(queries=2, causal=True)
    others = [
        Problem(queries=3, keys=2, dim=4, causal=True, dtype="bfloat16"),
        Problem(queries=2, keys=5, causal=True, mask="padding"),
        Problem(heads=2, queries=129, keys=64, causal=True, scores="ties"),
    ]
    (found,) = causes(
        [failed(f"test_{number}", problem) for number, problem in enumerate([*others, corner])],
    )
    assert (found.backend, found.problem, found.reason) == ("mine", repr(corner), WRONG)
    assert found.properties[0] == "test_3"
    assert set(found.properties) == {"test_0", "test_1", "test_2", "test_3"}


def test_two_faults_are_two_causes_the_smaller_first() -> None:
    window, corner = Problem(keys=513, dtype="float16", mask="padding"), Problem(queries=2, causal=True)
    assert grouped(failed("test_long", window), failed("test_corner", corner)) == [
        (repr(corner), ("test_corner",)),
        (repr(window), ("test_long",)),
    ]


def test_a_gradient_failure_without_features_does_not_swallow_a_forward_failure() -> None:
    plain, corner = Problem(), Problem(queries=2, causal=True)
    found = grouped(failed("test_gradients", plain, "wrong gradient of K at (0,)"), failed("test_corner", corner))
    assert found == [(repr(plain), ("test_gradients",)), (repr(corner), ("test_corner",))]


def test_a_plain_failure_beside_the_outputs_explains_no_wrong_output_that_needs_more() -> None:
    corner, padded = Problem(queries=2, causal=True), Problem(queries=2, keys=3, causal=True, mask="padding")
    trace = failed("test_a_call_leaves_no_trace", Problem(), "q was changed by the call")
    assert grouped(trace, failed(OUTPUT_FORMULA, corner), failed("test_masks", padded)) == [
        (repr(corner), (OUTPUT_FORMULA, "test_masks")),
        ("Problem()", ("test_a_call_leaves_no_trace",)),
    ]


def test_a_property_that_sets_the_feature_itself_belongs_to_the_same_cause() -> None:
    flag = failed("test_causal_flag", Problem(keys=2), "wrong output under the causal flag at (0, 0, 0, 0)")
    future = failed("test_future", Problem(queries=2), "the future reaches the past: 1 of 2 elements differ")
    assert len(causes([future, failed(OUTPUT_FORMULA, Problem(keys=2, causal=True)), flag])) == 1


def test_a_wrong_output_in_a_plain_problem_explains_all() -> None:
    corner = failed("test_corner", Problem(queries=2, causal=True))
    assert grouped(corner, failed(OUTPUT_FORMULA, Problem(keys=2))) == [
        ("Problem(keys=2)", (OUTPUT_FORMULA, "test_corner"))
    ]


def test_a_forward_failure_explains_the_gradients_that_need_as_much() -> None:
    corner = Problem(queries=2, causal=True)
    found = grouped(failed("test_corner", corner), failed("test_gradients", corner, "wrong gradient of Q at (0,)"))
    assert found == [(repr(corner), ("test_corner", "test_gradients"))]


def test_another_exception_or_backend_is_another_cause() -> None:
    plain = Problem(keys=2)
    raised = failed("test_y", plain, "KeyError: 'oh'", "KeyError")
    elsewhere = failed("test_x", plain, backend="yours")
    assert len(causes([failed("test_x", plain), raised, elsewhere])) == 3


def test_what_failed_without_a_problem_is_grouped_by_its_reason_and_comes_last() -> None:
    changed, other = "it changed the default dtype", "the process died"
    assert grouped(
        failed("test_a", None, changed),
        failed("test_b", None, other),
        failed("test_c", None, changed),
        failed("test_d", Problem()),
    ) == [("Problem()", ("test_d",)), (None, ("test_a", "test_c")), (None, ("test_b",))]


def test_nothing_that_holds_has_a_cause() -> None:
    assert causes([Outcome("mine", "test_x", "refused", "no masks", Evidence(), None, 1, 0.1)]) == []
