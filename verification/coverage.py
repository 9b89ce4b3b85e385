"""Puts every combination of the features' values to a subject, and says how many of them it answered.

What a subject refuses is taken out and the rest is covered again: single values first, then pairs, each put to it in a
problem that is plain in all else. A combination is covered where a problem that has it was answered.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from verification.covering import CoveringArray, Row
from verification.features import LONGEST, Alternative
from verification.problems import Problem
from verification.space import LARGEST_INTERPRETED, LARGEST_OF_PAIRS, LARGEST_OF_TRIPLES, Rows, Space, Values

# True where the subject answered, False where it refused.
Ask = Callable[[Problem], bool]

# After so many refusals without an answer a subject is asked no more.
PATIENCE = 30
# How often what was refused is taken out and the rest covered again.
ROUNDS = 3

NAMES = {1: "values", 2: "pairs", 3: "triples"}


@dataclass(frozen=True)
class Covered:
    """How many combinations of `strength` values were answered, of how many that the subject takes."""

    strength: int
    answered: int
    of: int

    def __str__(self) -> str:
        return f"{self.answered:,} of {self.of:,} {NAMES[self.strength]}"


def cover(
    space: Space,
    strength: int,
    ask: Ask,
    takes: Callable[[Alternative], bool],
    *,
    interpreted: bool,
    seed: int,
    calls: int = 1,
) -> list[Covered]:
    """Asks problems until every combination is answered or known to be refused; of pairs, and of triples where asked.

    Triples leave out the longest problems, whose pairs are covered.

    calls  made for each problem: the more there are, the narrower is what is long
    takes  whether the subject takes an alternative of one feature where all else is plain
    """
    most = (LARGEST_INTERPRETED if interpreted else LARGEST_OF_TRIPLES if strength > 2 else LARGEST_OF_PAIRS) // calls
    values: Values = {}
    # With gradients the longest take seconds.
    every = space.values(interpreted=interpreted, longest=strength > 2 and "wanted" not in space.fixed)
    for feature, labels in every.items():
        kept = {label: [one for one in alternatives if takes(one)] for label, alternatives in labels.items()}
        values[feature] = {label: alternatives for label, alternatives in kept.items() if alternatives}
        if not values[feature]:
            return []  # it takes nothing that this property needs
    taken, of = (sum(map(len, one.values())) for one in (values, every))
    found = [Covered(1, taken, of), _Search(values, space, 2, ask, most=most, seed=seed).covered()]
    if strength > 2:
        lengths = {label: alternatives for label, alternatives in values["lengths"].items() if label != LONGEST}
        values["lengths"] = lengths or values["lengths"]
        found.append(_Search(values, space, strength, ask, most=most, seed=seed).covered())
    return found


class _Search:
    """Two arrays: `wanted` says what to ask next, `answered` what was answered."""

    def __init__(self, values: Values, space: Space, strength: int, ask: Ask, *, most: int, seed: int) -> None:
        self.rows, self.ask, self.strength = Rows(values, space, most), ask, strength
        self.seeds = itertools.count(seed)
        self.impossible = set(self.rows.impossible())
        self.answered = CoveringArray(self.rows.sizes, strength, self.impossible, seed)
        self.pairs = self.answered if strength == 2 else CoveringArray(self.rows.sizes, 2, self.impossible, seed)
        self.plain: Row | None = None

    def covered(self) -> Covered:
        of = self.answered.open
        self._answers((0,) * len(self.rows.sizes))
        for _ in range(ROUNDS):
            self._ask_all()
            if self.plain is None or not self.answered.open:
                break
            of -= self._close_what_is_refused(self.plain)
        return Covered(self.strength, of - self.answered.open, of)

    def _ask_all(self) -> None:
        wanted, refused = self.answered.copy(), 0
        while (row := wanted.row()) is not None and (self.plain or refused < PATIENCE):
            wanted.cover(row)
            refused += not self._answers(row)

    def _close_what_is_refused(self, plain: Row) -> int:
        """Takes out each pair that is refused in the plain problem too; how many combinations that takes with it."""
        closed = 0
        for pair in list(self.pairs.combinations()):
            row = self.pairs.plain_row(pair, plain)
            if row is None or not any(self._answers(row) for _ in range(self.rows.turns(pair))):
                self.impossible.add(pair)
                closed += self.answered.close(pair)
                self.pairs.close(pair)
        return closed

    def _answers(self, row: Row) -> bool:
        if not self.ask(self.rows.problem(row, next(self.seeds))):
            return False
        self.plain = self.plain or row
        self.answered.cover(row)
        self.pairs.cover(row)
        return True
