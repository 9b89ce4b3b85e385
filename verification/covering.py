"""Covering arrays: few rows of values in which every combination of so many values occurs.

Rows are made one by one, each to cover as many open combinations as it can, so that what becomes of a row may decide
the next: what a subject refuses is taken out, and the rest is covered again.

Written here because covertable takes 6 s for the triples of eight features and cannot be told of a refusal, and
allpairspy leaves triples out. Source of the greedy row: Cohen, Dalal, Fredman and Patton 1997, "The AETG system",
IEEE Transactions on Software Engineering 23(7).
"""

import itertools
from collections.abc import Iterator, Sequence, Set

import numpy as np

# The place of the value in each feature.
Row = tuple[int, ...]
# (feature, value), sorted by feature
Combination = tuple[tuple[int, int], ...]

# In how many orders the other features are chosen before a combination is taken for one that no row has.
TRIES = 5


class CoveringArray:
    """Which combinations of `strength` values are covered, and the row that covers most of the open ones.

    sizes       how many values each feature has
    impossible  pairs of values that cannot stand in one row
    seed        the rows are others for another seed
    """

    def __init__(
        self, sizes: Sequence[int], strength: int, impossible: Set[Combination] = frozenset(), seed: int = 0
    ) -> None:
        self.sizes, self.strength, self.impossible = tuple(sizes), strength, impossible
        self._random = np.random.default_rng(seed)
        self._open: dict[tuple[int, ...], np.ndarray] = {}
        for features in itertools.combinations(range(len(sizes)), self.strength):
            self._open[features] = np.ones([sizes[feature] for feature in features], dtype=bool)
        for pair in impossible:
            self.close(pair)

    def copy(self) -> "CoveringArray":
        """Another with the same open combinations, and the same set of impossible pairs."""
        other = CoveringArray(self.sizes, self.strength, self.impossible, int(self._random.integers(1 << 30)))
        other._open = {features: which.copy() for features, which in self._open.items()}
        return other

    @property
    def open(self) -> int:
        """How many combinations no row has covered."""
        return sum(int(which.sum()) for which in self._open.values())

    def cover(self, row: Row) -> None:
        """The combinations of this row are covered."""
        for features, which in self._open.items():
            which[tuple(row[feature] for feature in features)] = False

    def close(self, values: Combination) -> int:
        """No row is wanted that holds all these values; how many open combinations that takes out."""
        closed = 0
        chosen = dict(values)
        for features, which in self._open.items():
            if not chosen.keys() <= set(features):
                continue
            place = tuple(chosen.get(feature, slice(None)) for feature in features)
            closed += int(which[place].sum())
            which[place] = False
        return closed

    def combinations(self) -> Iterator[Combination]:
        """Those that are open."""
        for features, which in self._open.items():
            for place in zip(*which.nonzero(), strict=True):
                yield tuple((feature, int(value)) for feature, value in zip(features, place, strict=True))

    def row(self) -> Row | None:
        """A row with as many open combinations as a greedy choice finds; None where none is open.

        A combination that no row seems to have, since each value of another feature is impossible with a part of it,
        is closed.
        """
        while self.open:
            first = max(self._open, key=lambda features: int(self._open[features].sum()))
            places = np.argwhere(self._open[first])
            place = places[self._random.integers(len(places))].tolist()
            for _ in range(TRIES):
                row = self._completed(dict(zip(first, place, strict=True)))
                if row is not None:
                    return row
            self.close(tuple(zip(first, place, strict=True)))
        return None

    def _completed(self, chosen: dict[int, int]) -> Row | None:
        for feature in self._random.permutation(len(self.sizes)).tolist():
            if feature not in chosen:
                best = self._best(feature, chosen)
                if best is None:
                    return None
                chosen[feature] = best
        return tuple(chosen[feature] for feature in range(len(self.sizes)))

    def plain_row(self, values: Combination, plain: Row) -> Row | None:
        """The row with those values that is else as plain as can be; None where that needs an impossible pair."""
        chosen = dict(values)
        for feature, preferred in enumerate(plain):
            if feature not in chosen:
                possible = (
                    value
                    for value in (preferred, *range(self.sizes[feature]))
                    if not any(self._is_impossible((one, chosen[one]), (feature, value)) for one in chosen)
                )
                chosen[feature] = next(possible, -1)
        row = tuple(chosen[feature] for feature in range(len(plain)))
        return None if -1 in row else row

    def _best(self, feature: int, chosen: dict[int, int]) -> int | None:
        gain = self._random.random(self.sizes[feature])  # below one: it only decides between equals
        for others in itertools.combinations(sorted(chosen), self.strength - 1):
            features = tuple(sorted((*others, feature)))
            place = tuple(slice(None) if one == feature else chosen[one] for one in features)
            gain += self._open[features][place]
        for value in range(self.sizes[feature]):
            if any(self._is_impossible((one, chosen[one]), (feature, value)) for one in chosen):
                gain[value] = -1.0
        return int(gain.argmax()) if gain.max() >= 0 else None

    def _is_impossible(self, one: tuple[int, int], other: tuple[int, int]) -> bool:
        return bool(self.impossible) and tuple(sorted((one, other))) in self.impossible
