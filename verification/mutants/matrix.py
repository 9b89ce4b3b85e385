"""The kill matrix: every property over every mutant."""

import functools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

from verification.judge import Subject
from verification.mutants import MUTANTS, Mutant, subject_of
from verification.mutants.properties import first_counterexample, properties


def kill_matrix(
    mutants: Sequence[Mutant],
    names: Sequence[str],
    progress: Callable[[dict[str, Any]], None],
    processes: int = 1,
) -> dict[str, Any]:
    """A JSON object for these mutants and the properties of these names; so many mutants are judged side by side.

    `progress` is called with the row of each mutant as soon as that is known.

    killed_by       properties that the mutant broke: an assertion failed
    crashed         properties under which it raised something else, which no property raises
    only_killer_of  mutants that one property alone kills; only properties with such a mutant
    kills_nothing   properties that kill no mutant
    """
    judge = functools.partial(_row, names=tuple(names))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(judge, mutant) for mutant in mutants]
        for done in as_completed(waiting):
            progress(done.result())
    rows = [done.result() for done in waiting]
    alone: dict[str, list[str]] = {}
    for row in rows:
        if len(row["killed_by"]) == 1:
            alone.setdefault(row["killed_by"][0], []).append(row["name"])
    killers = {name for row in rows for name in row["killed_by"]}
    return {
        "properties": list(names),
        "mutants": rows,
        "only_killer_of": alone,
        "kills_nothing": [name for name in names if name not in killers],
    }


def _row(mutant: Mutant, names: Sequence[str]) -> dict[str, Any]:
    torch.set_num_threads(1)  # the problems are small: threads would wait for one another
    with first_counterexample():
        # Loaded anew for each property, so that what one left behind in a mutant does not decide another.
        outcomes = {name: _outcome(name, subject_of(mutant)) for name in names}
    return {
        "name": mutant.name,
        "base": mutant.base,
        "kind": next(kind for kind, those in MUTANTS.items() if mutant in those),
        "report": mutant.report,
        "why": mutant.why,
        "named": mutant.killed_by,
        "killed_by": [name for name, outcome in outcomes.items() if outcome == "killed"],
        "crashed": [name for name, outcome in outcomes.items() if outcome == "crashed"],
    }


def _outcome(name: str, subject: Subject) -> str:
    try:
        properties()[name](subject)
    except (Unsatisfiable, UnsatisfiedAssumption):
        return "refused"
    except AssertionError:
        return "killed"
    except Flaky as failure:
        # A mutant with a memory may fail only the first time that a problem is put to it.
        causes = failure.exceptions if isinstance(failure, BaseExceptionGroup) else ()
        if any(isinstance(error, AssertionError) for error in causes):
            return "killed"
        return _crashed(name, subject, failure)
    except Exception as error:
        return _crashed(name, subject, error)
    return "survived"


def _crashed(name: str, subject: Subject, error: Exception) -> str:
    print(f"{subject.backend.name}: {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return "crashed"
