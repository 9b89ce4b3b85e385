"""The record of what became of a property: as JSON and back, the verdict that follows, and the columns of the table."""

import json
import math
from typing import Any

import pytest

from reports import verdicts
from verification import outcome as outcomes
from verification.outcome import GRADIENT_FORMULA, OUTPUT_FORMULA, Evidence, Failure, Outcome, from_json, verdict
from verification.summary import MOST_REASONS, lines, short_names

ALL = {"values": (60, 60), "pairs": (1204, 1204), "triples": (9020, 9020)}
PAIRS = {"values": (60, 60), "pairs": (7, 9)}


def result(property: str = OUTPUT_FORMULA, outcome: Any = "pass", **evidence: Any) -> Outcome:
    reason = None if outcome == "pass" else f"why {outcome}"
    failure = Failure(f"why {outcome}", "Problem(keys=2)", "AssertionError", "all") if outcome == "fail" else None
    return Outcome("mine", property, outcome, reason, Evidence(**evidence), failure, threads=1, duration_s=0.25)


@pytest.mark.parametrize(
    "kept",
    [
        result(),
        result(outcome="fail", problems=3, calls=9, worst={"float32": {"1-16": math.inf, "17-64": 0.5}}),
        result(outcome="refused", refusals={"no masks": 4, "no heads": 1}),
        result(outcome="stated", stated="leaks", covered=ALL),
        result(outcome="left out", machine=["a product leaks"]),
    ],
    ids=lambda kept: kept.outcome,
)
def test_a_record_comes_back_from_json_as_it_was(kept: Outcome) -> None:
    written = json.dumps(kept.as_json(), allow_nan=False)
    assert from_json(json.loads(written)) == kept


def test_the_worst_error_of_all_lengths_is_null_where_one_is_not_finite() -> None:
    worst = {"float32": {"1-16": 0.5, "17-64": math.inf}, "float16": {"1-16": 0.5, "over 256": 0.75}}
    kept = result(worst=worst).as_json()
    assert kept["worst"] == {"float32": None, "float16": 0.75}
    assert kept["worst_by_length"]["float32"] == {"1-16": 0.5, "17-64": None}


@pytest.mark.parametrize(
    ("found", "name", "reason"),
    [
        (
            [result(problems=1200, covered=ALL), result(GRADIENT_FORMULA, problems=34, covered=ALL)],
            "verified",
            "1,234 problems answered, 1,204 of 1,204 pairs, 9,020 of 9,020 triples",
        ),
        (
            [result(covered=PAIRS)],
            "not verified",
            "the formula for gradients was not asked; 0 problems answered, 7 of 9 pairs",
        ),
        (
            [result(problems=5, covered=PAIRS), result(GRADIENT_FORMULA, "refused")],
            "verified, forward only",
            "5 problems answered, 7 of 9 pairs",
        ),
        (
            [result(problems=5), result(GRADIENT_FORMULA)],
            "mostly refused",
            "nothing but pinned problems was covered; 5 problems answered",
        ),
        (
            [result(problems=5, covered={"values": (29, 60)}), result(GRADIENT_FORMULA)],
            "mostly refused",
            "29 of 60 values of the features of a call are taken; 5 problems answered",
        ),
        ([result("test_x", problems=7)], "not verified", "the formula for outputs was not asked; 7 problems answered"),
        ([result(outcome="refused")], "not verified", "the formula for outputs was refused; 0 problems answered"),
        ([result(), result("test_x", "left out")], "unfinished", "1 of 2 properties were left out"),
        ([result(), result("test_x", "left out"), result("test_y", "fail")], "failing", "1 of 3 properties fail"),
        ([], "not verified", "the formula for outputs was not asked; 0 problems answered"),
    ],
)
def test_a_verdict_follows_from_all_outcomes(found: list[Outcome], name: str, reason: str) -> None:
    assert verdict(found) == (name, reason)


def test_the_page_knows_the_same_verdicts_and_formula() -> None:
    found = [result(covered=ALL), result(GRADIENT_FORMULA)]
    assert verdict(found)[0] == verdicts.VERIFIED
    assert verdicts.OUTPUT_FORMULA == outcomes.OUTPUT_FORMULA


def test_two_files_of_one_name_have_two_columns() -> None:
    assert short_names(["eager", "/a/b/mine.py:attend", "/a/c/mine.py:attend"]) == {
        "eager": "eager",
        "/a/b/mine.py:attend": "b/mine.py:attend",
        "/a/c/mine.py:attend": "c/mine.py:attend",
    }
    assert short_names(["a.py:f", "b/a.py:f", "mya.py:f"])["b/a.py:f"] == "b/a.py:f"
    assert len(set(short_names(["a.py:f", "b/a.py:f"]).values())) == 2


def test_the_terminal_names_what_was_answered_and_the_verdict() -> None:
    found = [
        result(problems=1200, covered=ALL, worst={"float32": {"1-16": 0.5}}),
        result("test_x", "refused"),
        result(GRADIENT_FORMULA, "refused"),
    ]
    said = "\n".join(lines({one.property: {"title": one.property} for one in found}, found, {"leaks": "17"}, {}))
    assert "problems answered" in said
    assert "1,200" in said
    assert "mine  verified, forward only: 1,200 problems answered, 1,204 of 1,204 pairs" in said
    assert "refused: mine: why refused" in said
    assert "machine: leaks: 17; no failure of a backend" in said


def test_a_backend_with_many_reasons_does_not_fill_the_terminal() -> None:
    reasons = {f"no width of {width}": 1 for width in range(20)}
    found = [result(outcome="refused", refusals=reasons), result("test_x", "refused", refusals=reasons)]
    said = lines({one.property: {"title": one.property} for one in found}, found, {}, {})
    refused = [line for line in said if line.startswith("refused: ")]
    assert refused[0] == "refused: mine: no width of 0"
    assert refused[-1] == f"refused: {20 - MOST_REASONS} more reasons are in the results file"
    assert len(refused) == MOST_REASONS + 1
