"""What a run of pytest asks for: which backends, on which device."""

import pytest
import torch

import implementations
from implementations import Backend

_BACKENDS = pytest.StashKey[list[Backend]]()


def device(config: pytest.Config) -> torch.device:
    """That of --device; without it, a GPU if there is one."""
    return torch.device(config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "cpu"))


def backends(config: pytest.Config) -> list[Backend]:
    """Those of --backend, or all that are known by name and can run on the device; loaded once for the run.

    Raises pytest.UsageError, which ends the run with one line, where one that was asked for cannot be had.
    """
    if _BACKENDS not in config.stash:
        asked = config.getoption("--backend")
        try:
            loaded = [implementations.load(spelling) for spelling in asked or implementations.names()]
        except (ValueError, ImportError) as error:
            raise pytest.UsageError(str(error)) from error
        able = [backend for backend in loaded if backend.cannot_run(device(config)) is None]
        if asked and (unable := [backend for backend in loaded if backend not in able]):
            reason = unable[0].cannot_run(device(config))
            raise pytest.UsageError(f"{unable[0].name} cannot run here: {reason}")
        config.stash[_BACKENDS] = able
    return config.stash[_BACKENDS]
