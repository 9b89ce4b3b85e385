"""What a run of pytest asks for: which backends, on which device."""

import traceback
import warnings

import pytest
import torch

import implementations
from implementations import Backend

_BACKENDS = pytest.StashKey[list[Backend]]()
_LEFT_OUT = pytest.StashKey[dict[str, str]]()


def device(config: pytest.Config) -> torch.device:
    """That of --device; without it, a GPU if there is one."""
    return torch.device(config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "cpu"))


def backends(config: pytest.Config) -> list[Backend]:
    """Those of --backend, or all that are known by name and can run on the device; loaded once for the run.

    Raises pytest.UsageError, which ends the run with one line, where one that was asked for cannot be had.
    """
    if _BACKENDS not in config.stash:
        asked = config.getoption("--backend")
        able: list[Backend] = []
        out: dict[str, str] = {}
        for spelling in asked or implementations.names():
            try:
                backend = _load(spelling)
                reason = backend.cannot_run(device(config))
            except ImportError as error:
                backend, reason = None, str(error)
            if asked and reason:
                raise pytest.UsageError(f"{spelling} cannot run here: {reason}")
            if backend is None or reason:
                out[spelling] = str(reason)
            else:
                able.append(backend)
        config.stash[_BACKENDS], config.stash[_LEFT_OUT] = able, out
    return config.stash[_BACKENDS]


def left_out(config: pytest.Config) -> dict[str, str]:
    """The backends known by name that were not asked for and cannot run here, each with the reason."""
    backends(config)
    return config.stash[_LEFT_OUT]


def _load(spelling: str) -> Backend:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # an error in this project's tests, but the file may be another's
            return implementations.load(spelling)
    except ImportError:
        raise
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        raise pytest.UsageError(f"{spelling} cannot be loaded: {told}") from error
