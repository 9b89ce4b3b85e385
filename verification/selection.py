"""What a run of pytest asks for: which backends, on which device."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import implementations
from implementations import Backend
from verification.surroundings import undone

_BACKENDS = pytest.StashKey[list[Backend]]()
_LEFT_OUT = pytest.StashKey[dict[str, str]]()
_MESSAGES = pytest.StashKey[list[str]]()


def device(config: pytest.Config) -> torch.device:
    """That of --device; without it, a GPU if there is one. Raises pytest.UsageError where there is none to be had."""
    try:
        return implementations.device(config.getoption("--device"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def backends(config: pytest.Config) -> list[Backend]:
    """Those of --backend, or all that are known by name and can run on the device; loaded once for the run.

    Raises pytest.UsageError, which ends the run with one line, where one that was asked for cannot be had.
    """
    if _BACKENDS not in config.stash:
        asked, place = config.getoption("--backend"), device(config)
        messages = config.stash.setdefault(_MESSAGES, [])
        able = [_asked_for(spelling, place, messages) for spelling in asked or ()]
        out: dict[str, str] = {}
        if not asked:
            with _in_one_line("a backend known by name"):
                for name, backend, reason in implementations.survey(place):
                    if backend is None or reason:
                        out[name] = str(reason)
                    else:
                        able.append(backend)
        config.stash[_BACKENDS], config.stash[_LEFT_OUT] = able, out
    return config.stash[_BACKENDS]


def left_out(config: pytest.Config) -> dict[str, str]:
    """The backends known by name that were not asked for and cannot run here, each with the reason."""
    backends(config)
    return config.stash[_LEFT_OUT]


def twins(config: pytest.Config) -> dict[str, list[str]]:
    """Of each backend those that come after it and differ in their projection alone: one judgement serves them all.

    What is judged of a layer is their own.
    """
    every = backends(config)
    return {
        one.name: [
            other.name
            for other in every[at + 1 :]
            if (other.attend, other.facts, other.cannot_run) == (one.attend, one.facts, one.cannot_run)
        ]
        for at, one in enumerate(every)
    }


def messages(config: pytest.Config) -> list[str]:
    """What is to be said of the backends that were loaded: a line each."""
    backends(config)
    return config.stash[_MESSAGES]


def is_built_in(spelling: str) -> bool:
    """Whether a backend of that spelling is a file of this project."""
    return spelling in implementations.built_in()


def _asked_for(spelling: str, place: torch.device, messages: list[str]) -> Backend:
    with undone(thoroughly=True) as changed, _in_one_line(spelling):
        backend = implementations.load(spelling)
        reason = backend.cannot_run(place)
    if changed:
        messages.append(f"{spelling} changed {', '.join(changed)} when it was loaded; that was undone")
    if reason:
        raise pytest.UsageError(f"{spelling} cannot run here: {reason}")
    return backend


@contextmanager
def _in_one_line(spelling: str) -> Iterator[None]:
    """Whatever goes wrong while a backend is loaded, as a pytest.UsageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # an error in this project's tests, but the file may be another's
            yield
    except ImportError as error:
        raise pytest.UsageError(f"{spelling} cannot run here: {error}") from error
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        raise pytest.UsageError(f"{spelling} cannot be loaded: {reason}") from error
