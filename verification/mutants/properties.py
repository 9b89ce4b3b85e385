"""The properties by name, and what becomes of a backend that is put to one of them."""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings

import verification
from verification import profiles as profiles
from verification.judge import Subject

Property = Callable[[Subject], None]

# The first problem that refutes a property is enough: none is made smaller.
settings.register_profile("mutants", settings.get_profile("quick"), phases=[Phase.generate])


@contextmanager
def first_counterexample() -> Iterator[None]:
    """Inside, the first problem that refutes a property is not made smaller."""
    before = settings.get_current_profile_name()
    settings.load_profile("mutants")
    try:
        yield
    finally:
        settings.load_profile(before)


@functools.cache
def properties() -> dict[str, Property]:
    """Every test of `verification` that takes a subject, as a function of that subject alone, in the files' order."""
    found: dict[str, Property] = {}
    for path in sorted(Path(verification.__path__[0]).glob("test_*.py")):
        module = importlib.import_module(f"{verification.__name__}.{path.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and "subject" in inspect.signature(test).parameters:
                found[name] = functools.partial(_with_all_parameters, test)
    return found


def _with_all_parameters(test: Callable[..., None], subject: Subject) -> None:
    """One call for each combination of what the test is parametrised with."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            name, values = mark.args
            axes.append([{name: value} for value in values])
    for chosen in itertools.product(*axes):
        test(subject, **{name: value for one in chosen for name, value in one.items()})
