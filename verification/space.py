"""A space of problems: the features of a call with what a property fixes, and the two ways to look through it.

A covering array combines the values of the features; hypothesis draws what lies between them.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from verification.covering import Combination, Row
from verification.features import FEATURES, FIELDS, LONGEST, NOT_SHARED, Alternative
from verification.problems import DIMS, EDGES, LAYOUTS, MASKS, SCORES, Problem

# How many numbers the scores, q, k and v of a problem have, about: long ones are narrow. In triples of the formulas,
# in the pairs of all properties; in Triton's interpreter, where a block takes milliseconds.
LARGEST_OF_TRIPLES, LARGEST_OF_PAIRS, LARGEST_INTERPRETED = 250_000, 100_000, 25_000
# queries x keys in the interpreter.
LARGEST_SCORES_INTERPRETED = 17_000
# batch x heads x queries x keys where hypothesis draws.
LARGEST_DRAWN = 9_000
LONGEST_DRAWN = 160
MOST_HEADS = 6

# Every length, for a property that wants two and more: range(2, ANY).
ANY = 1 << 30

# The values of each feature by name.
Values = dict[str, dict[str, list[Alternative]]]


class Space:
    """The problems of a property.

    fixed  by field of Problem: its value, a list of the values it may have, or a range
    """

    def __init__(self, **fixed: Any) -> None:
        self.fixed = fixed

    def allows(self, field: str, value: Any) -> bool:
        """Whether the field may have that value."""
        if field not in self.fixed:
            return True
        given = self.fixed[field]
        return value in given if isinstance(given, list | range) else value == given

    def values(self, *, interpreted: bool = False, longest: bool = False) -> Values:
        """What a covering array combines: of each feature the values that are allowed.

        longest  with the problems that take a tenth of a second and more
        """
        found: Values = {}
        for feature, values in FEATURES.items():
            kept = {label: self._allowed(alternatives) for label, alternatives in values.items()}
            if feature == "lengths":
                kept = {
                    label: [one for one in alternatives if not interpreted or _size(one) <= LARGEST_SCORES_INTERPRETED]
                    for label, alternatives in kept.items()
                    if longest or label != LONGEST
                }
            kept = {label: alternatives for label, alternatives in kept.items() if alternatives}
            if feature == "mask shared" and list(found["mask"]) == ["none"]:
                kept = {NOT_SHARED: [{"mask_shared": ""}]}
            found[feature] = kept or {"fixed": [self._simplest(FIELDS[feature])]}
        for field, given in self.fixed.items():
            if isinstance(given, list) and not any(field in names for names in FIELDS.values()):
                found[field] = {label: [{field: one} for one in values] for label, values in _grouped(field, given)}
        return found

    def _allowed(self, alternatives: list[Alternative]) -> list[Alternative]:
        return [one for one in alternatives if all(self.allows(field, value) for field, value in one.items())]

    def _simplest(self, names: tuple[str, ...]) -> Alternative:
        return {name: getattr(self.smallest(), name) for name in names}

    def smallest(self) -> Problem:
        """The simplest problem: of each field the default where it is allowed, or the first value that is."""
        chosen = {
            field: given[0] if isinstance(given, list | range) else given
            for field, given in self.fixed.items()
            if not self.allows(field, getattr(Problem(), field))
        }
        problem = replace(Problem(), **chosen)
        return replace(problem, heads=max(problem.heads, problem.kv_heads))

    def strategy(self) -> st.SearchStrategy[Problem]:
        """Draws problems of this space.

        One in three is self-attention as every kernel has it: as many queries as keys, no mask, the default scale, one
        kv head a head, the usual widths. A kernel that can do nothing else would be asked one in hundreds otherwise.
        """

        @st.composite
        def draw_problem(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Problem:
            usual = draw(st.sampled_from([False, False, True]))

            def drawn(name: str, strategy: st.SearchStrategy[Any], highest: int = ANY) -> Any:
                given = self.fixed.get(name)
                if isinstance(given, list):
                    return draw(st.sampled_from(given))
                if isinstance(given, range):
                    return draw(st.integers(given.start, max(given.start, min(given.stop - 1, highest))))
                if name in self.fixed:
                    return given
                return _USUAL[name] if usual and name in _USUAL else draw(strategy)

            queries = drawn("queries", _DRAWN_LENGTHS, LONGEST_DRAWN)
            keys = drawn("keys", st.just(queries) if usual else _DRAWN_LENGTHS, LONGEST_DRAWN)
            room = min(MOST_HEADS, max(1, LARGEST_DRAWN // max(1, queries * keys)))
            batch = drawn("batch", st.integers(1, min(3, room)), min(3, room))
            most = min(3, max(1, room // max(1, batch)))
            kv_heads = drawn("kv_heads", st.integers(1, most), most)
            group = 1 if usual else draw(st.integers(1, min(3, max(1, room // max(1, batch * kv_heads)))))
            mask = drawn("mask", st.sampled_from([None, *MASKS]))
            return Problem(
                batch=batch,
                heads=drawn("heads", st.just(kv_heads * group)),
                kv_heads=kv_heads,
                queries=queries,
                keys=keys,
                dim=drawn("dim", st.sampled_from([1, 2, 16, 32, 64, 128]) if usual else _DRAWN_WIDTHS, max(DIMS)),
                value_dim=drawn("value_dim", st.one_of(st.just(0), _DRAWN_WIDTHS)),
                dtype=drawn("dtype", st.sampled_from(["float32", "float16", "bfloat16"])),
                causal=drawn("causal", st.booleans()),
                mask=mask,
                mask_shared="" if mask is None else drawn("mask_shared", st.sampled_from(_SHARED)),
                scale=drawn("scale", st.sampled_from([None, 1.0, 0.25, -0.5, 0.0])),
                scores=drawn("scores", st.sampled_from(list(SCORES))),
                layout=drawn("layout", st.sampled_from(list(LAYOUTS))),
                grad_layout=drawn("grad_layout", st.just("contiguous")),
                wanted=drawn("wanted", st.just("QKV")),
                seed=drawn("seed", st.integers(0, 999)),
            )

        return draw_problem()


def problems(**fixed: Any) -> Space:
    """The problems of a property: what is named is that value, one of a list, or in a range; the rest is free."""
    return Space(**fixed)


_DRAWN_LENGTHS = st.one_of(st.integers(1, 9), st.integers(1, LONGEST_DRAWN), st.sampled_from(EDGES))
_DRAWN_WIDTHS = st.one_of(st.integers(1, 9), st.sampled_from(DIMS))
_USUAL = {"mask": None, "value_dim": 0, "scale": None, "layout": "contiguous"}
_SHARED = ["", "b", "h", "q", "bh", "bq", "hq", "bhq"]


def _grouped(field: str, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The values of a field that is no feature of every call; which inputs want a gradient by how many they are."""
    if field == "wanted":
        for count, among in itertools.groupby(sorted(values, key=len), key=len):
            yield f"{count} gradients", [*among]
    else:
        yield from ((str(value), [value]) for value in values)


class Rows:
    """From rows of a covering array to problems; alternatives of a value take turns.

    most  how many numbers the scores, q, k and v of a problem have, about
    """

    def __init__(self, values: Values, space: Space, most: int) -> None:
        self.features = list(values)
        self.labels = [list(values[feature]) for feature in self.features]
        self.most = most
        self._values, self._smallest = values, space.smallest()
        self._turn: dict[tuple[str, str], int] = {}

    @property
    def sizes(self) -> list[int]:
        """How many values each feature has."""
        return [len(labels) for labels in self.labels]

    def problem(self, row: Row, seed: int) -> Problem:
        """The problem of a row: narrow where it is long."""
        chosen = {f: self._values[f][self.labels[at][row[at]]] for at, f in enumerate(self.features)}
        turns = {f: self._next(f, self.labels[at][row[at]]) for at, f in enumerate(self.features)}
        picked = {f: alternatives[turns[f] % len(alternatives)] for f, alternatives in chosen.items()}
        for feature in ("batch", "heads", "lengths", "widths"):
            if _elements(self.built(picked, seed)) > self.most:
                picked[feature] = min(chosen[feature], key=lambda one: math.prod(n for n in one.values() if n))
        return self.built(picked, seed)

    def turns(self, values: Combination) -> int:
        """In how many turns each alternative of these values occurs."""
        return max(len(self._values[self.features[at]][self.labels[at][value]]) for at, value in values)

    def _next(self, feature: str, label: str) -> int:
        self._turn[feature, label] = self._turn.get((feature, label), -1) + 1
        return self._turn[feature, label]

    def built(self, picked: Mapping[str, Alternative], seed: int) -> Problem:
        """The simplest problem with those alternatives."""
        changes = {field: value for alternative in picked.values() for field, value in alternative.items()}
        problem = replace(self._smallest, **changes, seed=seed)
        return problem if problem.mask else replace(problem, mask_shared="")

    def impossible(self) -> frozenset[Combination]:
        """Pairs of values that no problem has: too large together, or a shared axis of a mask that is not there."""

        def smallest(at: int, value: int) -> int:
            alternatives = self._values[self.features[at]][self.labels[at][value]]
            return min(map(_size, alternatives))

        def shares_no_mask(*values: tuple[str, str]) -> bool:
            chosen = dict(values)
            return chosen.get("mask") == "none" and chosen.get("mask shared", NOT_SHARED) != NOT_SHARED

        every = [(at, value) for at, labels in enumerate(self.labels) for value in range(len(labels))]
        return frozenset(
            (one, other)
            for one, other in itertools.combinations(every, 2)
            if one[0] != other[0]
            and (
                (smallest(*one) * smallest(*other) > self.most and smallest(*one) > 1 and smallest(*other) > 1)
                or shares_no_mask(*((self.features[at], self.labels[at][value]) for at, value in (one, other)))
            )
        )


def _elements(problem: Problem) -> int:
    """Numbers in the scores, and in q, k and v as if each query head had its own."""
    widths = problem.dim + (problem.value_dim or problem.dim)
    per_head = problem.queries * problem.keys + (problem.queries + problem.keys) * widths
    return problem.batch * problem.heads * per_head


def _size(alternative: Alternative) -> int:
    """What these fields contribute to batch x heads x queries x keys."""
    return math.prod(alternative.get(name, 1) for name in ("batch", "heads", "queries", "keys"))
