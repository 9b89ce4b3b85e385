"""Covering arrays, and the space that they and hypothesis look through."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from verification.covering import Combination, CoveringArray, Row
from verification.features import FEATURES, FIELDS, LONGEST, NOT_SHARED
from verification.problems import DIMS, LAYOUTS, MASKS, Problem
from verification.space import LARGEST_OF_PAIRS, LARGEST_OF_TRIPLES, Rows, Space, problems

SIZES = [(2, 2), (2, 2, 2), (3, 1, 4), (5, 4, 3, 2), (3, 3, 3, 3, 3), (7, 2, 2, 2, 2, 2)]
IMPOSSIBLE = frozenset({((0, 0), (1, 0)), ((0, 1), (2, 2)), ((1, 1), (3, 0)), ((2, 0), (3, 1))})


def rows(array: CoveringArray) -> Iterator[Row]:
    """All rows until nothing is open; each covers something."""
    while (row := array.row()) is not None:
        before = array.open
        array.cover(row)
        assert array.open < before
        yield row


def combinations(row: Row, strength: int) -> set[Combination]:
    return set(itertools.combinations(enumerate(row), strength))


def every(sizes: tuple[int, ...], strength: int, impossible: frozenset[Combination] = frozenset()) -> set[Combination]:
    """By brute force: all that some row without an impossible pair has."""
    possible = [
        row for row in itertools.product(*map(range, sizes)) if not impossible.intersection(combinations(row, 2))
    ]
    return set().union(*(combinations(row, strength) for row in possible))


@pytest.mark.parametrize("strength", [2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_combination_occurs_in_a_row(sizes: tuple[int, ...], strength: int) -> None:
    array, wanted = CoveringArray(sizes, strength), every(sizes, strength)
    if strength > len(sizes):
        assert not wanted
        return
    assert array.open == len(wanted)
    assert set(array.combinations()) == wanted
    found = set().union(*(combinations(row, strength) for row in rows(array)))
    assert found == wanted
    assert array.open == 0
    assert list(array.combinations()) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("strength", [2, 3])
def test_an_impossible_pair_is_in_no_row_and_is_not_counted(strength: int, seed: int) -> None:
    sizes = (3, 3, 3, 3)
    array, wanted = CoveringArray(sizes, strength, IMPOSSIBLE, seed), every(sizes, strength, IMPOSSIBLE)
    assert array.open == len(wanted)
    found = [*rows(array)]
    assert not any(IMPOSSIBLE & combinations(row, 2) for row in found)
    assert set().union(*(combinations(row, strength) for row in found)) == wanted


def test_what_no_row_has_although_each_pair_of_it_is_possible_is_in_no_row() -> None:
    """0 of the first feature and 0 of the second want 0 of the third, and 1 of it."""
    impossible = frozenset({((0, 0), (2, 0)), ((1, 0), (2, 1))})
    array = CoveringArray((2, 2, 2, 2), 2, impossible)
    found = [*rows(array)]
    assert not any(impossible & combinations(row, 2) for row in found)
    assert set().union(*(combinations(row, 2) for row in found)) == every((2, 2, 2, 2), 2, impossible)
    assert array.plain_row(((0, 0), (1, 0)), (1, 1, 1, 1)) is None
    assert array.plain_row(((0, 0), (3, 0)), (1, 1, 0, 1)) == (0, 1, 1, 0)


def test_what_is_closed_is_counted_once_and_never_asked_for() -> None:
    array = CoveringArray((3, 4, 2), 2)
    assert array.open == 12 + 6 + 8
    assert array.close(((0, 1), (1, 2))) == 1
    assert array.close(((0, 1), (1, 2))) == 0
    array.cover((0, 0, 0))
    assert array.open == 26 - 1 - 3
    assert array.close(((2, 0),)) == 3 + 4 - 2  # a single value goes with all of its pairs that are open
    assert array.open == 17
    triples = CoveringArray((3, 4, 2), 3)
    assert triples.close(((0, 1), (1, 2))) == 2
    assert triples.open == 22
    assert not any({(0, 1), (1, 2)} <= set(combination) for combination in triples.combinations())


def test_a_copy_goes_its_own_way() -> None:
    array = CoveringArray((3, 3, 3), 2)
    array.cover((0, 0, 0))
    other = array.copy()
    assert set(other.combinations()) == set(array.combinations())
    assert len(list(rows(other))) >= 8
    assert array.open == 24


def test_a_seed_gives_the_same_rows_and_another_seed_others() -> None:
    first, again, other = ([*rows(CoveringArray((5, 4, 3, 3), 2, seed=seed))] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("strength", [2, 3])
def test_the_features_of_a_call_need_few_rows(strength: int) -> None:
    values = Space().values(longest=strength == 2)
    sizes = [len(labels) for labels in values.values()]
    most = LARGEST_OF_PAIRS if strength == 2 else LARGEST_OF_TRIPLES
    made = Rows(values, Space(), most)
    assert made.sizes == sizes
    least = math.prod(sorted(sizes)[-strength:])
    count = len([*rows(CoveringArray(sizes, strength, made.impossible()))])
    assert 0.7 * least < count <= 1.6 * least  # some of the largest combinations are impossible


# What properties fix: a value, a list of values, a range.
SPACES = [
    Space(),
    problems(causal=True, mask=list(MASKS)),
    problems(mask="fully masked row"),
    problems(queries=1, keys=range(2, 1 << 30), mask=None, value_dim=0),
    problems(kv_heads=1, heads=range(2, 9), batch=range(2, 4)),
    problems(grad_layout=list(LAYOUTS), wanted=["QKV", "Q", "K", "V", "QK"], dtype="float32"),
    problems(**{size: range(1, 7) for size in ("queries", "keys", "dim")}, value_dim=0, scores=["normal", "ties"]),
    problems(mask=list(MASKS), mask_shared=["b", "h", "bhq"], scale=[1.0, 0.25], layout="gaps", seed=7),
]


def assert_allowed(space: Space, problem: Problem) -> None:
    for field in vars(problem):
        shared = field == "mask_shared" and problem.mask is None  # then there is nothing to share
        assert shared or space.allows(field, getattr(problem, field)), (field, problem)
    assert problem.heads % problem.kv_heads == 0


@pytest.mark.parametrize("space", SPACES, ids=lambda space: ", ".join(space.fixed) or "free")
def test_what_a_property_fixes_is_kept_in_every_row_and_drawn_problem(space: Space) -> None:
    assert_allowed(space, space.smallest())
    for strength, most in ((2, LARGEST_OF_PAIRS), (2, 60_000)):
        made = Rows(space.values(interpreted=most == 60_000), space, most)
        seen = list[Problem]()
        for seed, row in enumerate(rows(CoveringArray(made.sizes, strength, made.impossible()))):
            seen.append(made.problem(row, space.fixed.get("seed", seed)))
            assert_allowed(space, seen[-1])
        for feature, labels in space.values(interpreted=most == 60_000).items():
            fields = [*next(iter(labels.values()))[0]]
            got = {tuple(getattr(problem, field) for field in fields) for problem in seen}
            for label, alternatives in labels.items():
                listed = {tuple(alternative.values()) for alternative in alternatives}
                assert got & listed, f"{feature}: {label} is in no problem"

    drawn = list[Problem]()

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(problem=space.strategy())
    def draw(problem: Problem) -> None:
        drawn.append(problem)
        assert_allowed(space, problem)

    draw()
    assert len(set(drawn)) > 20


def test_a_value_no_feature_has_is_the_only_one_where_a_property_fixes_it() -> None:
    values = problems(dim=7, dtype="float64", batch=1).values()
    assert values["widths"] == {"fixed": [{"dim": 7, "value_dim": 0}]}
    assert values["dtype"] == {"fixed": [{"dtype": "float64"}]}
    assert [*values["batch"]] == ["one"]
    assert max(DIMS) > 7


def test_the_gradients_that_are_wanted_and_their_layout_are_features_where_a_property_lists_them() -> None:
    values = problems(grad_layout=["contiguous", "expanded"], wanted=["QKV", "Q", "V", "QK"]).values()
    assert [*values["grad_layout"]] == ["contiguous", "expanded"]
    assert values["wanted"] == {
        "1 gradients": [{"wanted": "Q"}, {"wanted": "V"}],
        "2 gradients": [{"wanted": "QK"}],
        "3 gradients": [{"wanted": "QKV"}],
    }
    assert not {"grad_layout", "wanted"} & Space().values().keys()


def test_the_longest_problems_are_combined_where_they_are_asked_for() -> None:
    assert LONGEST not in Space().values()["lengths"]
    assert LONGEST in Space().values(longest=True)["lengths"]
    longest = max(
        one["queries"] * one["keys"] for v in Space().values(interpreted=True)["lengths"].values() for one in v
    )
    assert longest <= 20_000


def row_of(made: Rows, **labels: str) -> Row:
    """The row with these values and the first of each other feature; spaces of a feature's name are underscores."""
    named = {name.replace("_", " "): label for name, label in labels.items()}
    return tuple(all_of.index(named.get(feature, all_of[0])) for feature, all_of in zip(made.features, made.labels))  # noqa: B905


def test_what_is_long_is_narrow_and_what_is_short_stays_as_it_is() -> None:
    made = Rows(Space().values(longest=True), Space(), LARGEST_OF_TRIPLES)
    for _ in range(12):
        long = made.problem(row_of(made, lengths="few queries, many keys", widths="up to 256", heads="grouped"), 0)
        assert long.keys >= 520
        assert long.dim >= 160
        assert (long.heads, long.kv_heads) in [(4, 2), (6, 2), (6, 3)]
        assert long.heads * (long.queries * long.keys + (long.queries + long.keys) * 2 * long.dim) < 4 * made.most
    turns = {made.problem(row_of(made, lengths="few", heads="many"), 0).heads for _ in range(3)}
    assert turns == {8, 9, 12}
    plain = made.problem(row_of(made), 5)
    assert plain == Problem(seed=5)


def test_a_mask_that_is_not_there_shares_no_axis() -> None:
    made = Rows(Space().values(), Space(), LARGEST_OF_PAIRS)
    mask, shared = made.features.index("mask"), made.features.index("mask shared")
    none = (mask, made.labels[mask].index("none"))
    pairs = {tuple(sorted((none, (shared, at)))) for at, label in enumerate(made.labels[shared]) if label != NOT_SHARED}
    assert len(pairs) == 5
    assert pairs <= made.impossible()
    assert made.problem(row_of(made, mask="none", mask_shared="by all"), 0).mask_shared == ""


def test_the_features_hold_every_value_of_a_problem_that_is_drawn() -> None:
    listed: dict[str, set[Any]] = {}
    for values in FEATURES.values():
        for alternatives in values.values():
            for alternative in alternatives:
                for field, value in alternative.items():
                    listed.setdefault(field, set()).add(value)
    assert listed["layout"] == set(LAYOUTS)
    assert listed["mask"] == {None, *MASKS}
    assert set(FIELDS.values()) >= {("queries", "keys"), ("heads", "kv_heads"), ("dim", "value_dim")}
    assert all(replace(Problem(), **{field: value}) for field, of in listed.items() for value in of)
