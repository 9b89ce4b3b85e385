"""The kill matrix: every property over every mutant."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

from verification.judge import Subject
from verification.mutants import MUTANTS, Mutant, subject_of
from verification.mutants.properties import Property, first_counterexample
from verification.provenance import provenance


def kill_matrix(
    mutants: Sequence[Mutant], properties: Mapping[str, Property], progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """A JSON object; `progress` is called with the row of each mutant as soon as that is known.

    killed_by       properties that the mutant broke: an assertion failed
    crashed         properties under which it raised something else, which no property claims
    only_killer_of  mutants that one property alone kills; only properties with such a mutant
    kills_nothing   properties that kill no mutant
    """
    kinds = {mutant.name: kind for kind, those in MUTANTS.items() for mutant in those}
    rows: list[dict[str, Any]] = []
    with first_counterexample():
        for mutant in mutants:
            # Loaded anew for each property, so that what one left behind in a mutant does not decide another.
            outcomes = {name: _outcome(test, subject_of(mutant)) for name, test in properties.items()}
            row = {
                "name": mutant.name,
                "base": mutant.base,
                "kind": kinds[mutant.name],
                "report": mutant.report,
                "why": mutant.why,
                "named": mutant.killed_by,
                "killed_by": [name for name, outcome in outcomes.items() if outcome == "killed"],
                "crashed": [name for name, outcome in outcomes.items() if outcome == "crashed"],
            }
            rows.append(row)
            progress(row)
    alone: dict[str, list[str]] = {}
    for row in rows:
        if len(row["killed_by"]) == 1:
            alone.setdefault(row["killed_by"][0], []).append(row["name"])
    killers = {name for row in rows for name in row["killed_by"]}
    return {
        "schema": 1,
        "kind": "kill-matrix",
        "provenance": provenance(torch.device("cpu")),
        "properties": list(properties),
        "mutants": rows,
        "only_killer_of": alone,
        "kills_nothing": [name for name in properties if name not in killers],
    }


def _outcome(test: Property, subject: Subject) -> str:
    try:
        test(subject)
    except (Unsatisfiable, UnsatisfiedAssumption):
        return "refused"
    except AssertionError:
        return "killed"
    except Flaky as failure:
        # A mutant with a memory may fail only the first time that a problem is put to it.
        told = failure.exceptions if isinstance(failure, BaseExceptionGroup) else ()
        return "killed" if any(isinstance(error, AssertionError) for error in told) else "crashed"
    except Exception:
        return "crashed"
    return "survived"
