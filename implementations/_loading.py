"""From a spelling to a backend. Every file in this folder without a leading underscore is one.

A spelling is the name of such a file, the name under which an installed package registered its own (entry points in
the group `attention_suite.backends`), `package.module:function`, or `path/to/file.py:function`.

A file or module from elsewhere may hold, beside its function, the names that a file here does: FACTS, project and
cannot_run. Without them its function states nothing, its layer projects by one matrix product, and it runs anywhere.
"""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from implementations._contract import Attend, Facts, Project

ENTRY_POINT_GROUP = "attention_suite.backends"


@dataclass(frozen=True)
class Backend:
    """An attention function and what is known of it.

    name        the spelling it was loaded by
    attend      the function; `implementations._contract` is its contract
    project     how a layer makes q, k and v for it
    facts       what it states about its arithmetic
    cannot_run  why it cannot run on a device, or None
    summary     the first line of its documentation
    """

    name: str
    attend: Attend
    project: Project
    facts: Facts
    cannot_run: Callable[[torch.device], str | None]
    summary: str

    def __repr__(self) -> str:
        return f"implementations.load({self.name!r})"


def names() -> list[str]:
    """The backends by name: the files of this folder, then what installed packages registered."""
    return [*built_in(), *sorted(_registered())]


def built_in() -> list[str]:
    """The files of this folder that are backends."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def device(name: str | None = None) -> torch.device:
    """The device of that name; without one, a GPU if there is one.

    Raises ValueError where it is cuda and torch finds no GPU, and for a name that means nothing to torch.
    """
    found = torch.cuda.is_available()
    try:
        chosen = torch.device(name or ("cuda" if found else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device {name!r}: {str(error).partition(chr(10))[0]}") from error
    if chosen.type == "cuda" and not found:
        raise ValueError(f"device {name!r}: torch finds no GPU here")
    return chosen


def survey(device: torch.device) -> Iterator[tuple[str, Backend | None, str | None]]:
    """Of each built-in and registered backend its name, itself, and why it cannot run on the device.

    None for a backend that cannot be loaded because something it needs is not installed, and for the reason of one
    that can run.
    """
    for name in names():
        backend = None
        try:
            backend = load(name)
            reason = backend.cannot_run(device)
        except ImportError as error:
            reason = str(error)
        yield name, backend, reason


def load(spelling: str) -> Backend:
    """The backend of that spelling.

    Raises ValueError for a name, file or function that does not exist (the nearest names are shown) and for FACTS of
    another type, and ImportError where something that the backend needs is not installed.
    """
    if ":" in spelling:
        place, _, function = spelling.rpartition(":")
        module = _run_file(spelling, Path(place)) if place.endswith(".py") else _import(spelling, place)
        return _backend(spelling, module, _function_of(module, function, place))
    if spelling in built_in():
        module = _import(spelling, f"{__package__}.{spelling}")
        return replace(_backend(spelling, module, module.attend), summary=_first_line(module))
    if spelling in _registered():
        return _from_entry_point(spelling, _registered()[spelling])
    raise ValueError(
        f"no backend is named {spelling!r}{_nearest(spelling, names())}. "
        f"Known: {', '.join(names())}; or give path/to/file.py:function or package.module:function"
    )


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _backend(name: str, module: ModuleType, attend: Attend) -> Backend:
    # Here, so that this package can be imported at a commit that has not every backend.
    from implementations.fused_qkv import project

    facts = getattr(module, "FACTS", Facts())
    if not isinstance(facts, Facts):
        raise ValueError(f"{name!r}: FACTS is a {type(facts).__name__}; wanted an implementations.Facts")
    return Backend(
        name,
        attend,
        getattr(module, "project", project),
        facts,
        getattr(module, "cannot_run", _runs_anywhere),
        _first_line(attend),
    )


def _from_entry_point(name: str, point: EntryPoint) -> Backend:
    try:
        loaded = point.load()
    except ImportError as error:
        raise ImportError(f"backend {name!r}, registered as {point.value}, cannot be loaded: {error}") from error
    if isinstance(loaded, ModuleType):
        return _backend(name, loaded, _function_of(loaded, "attend", loaded.__name__))
    return _backend(name, sys.modules[point.module], loaded)


def _import(spelling: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ValueError(f"{spelling!r}: there is no module {error.name!r} on the import path") from error
        raise _lacks(spelling, error) from error


def _lacks(spelling: str, error: ModuleNotFoundError, folder: Path | None = None) -> ImportError:
    name = str(error.name).partition(".")[0]
    if folder is not None and ((folder / f"{name}.py").exists() or (folder / name).is_dir()):
        return ImportError(f"backend {spelling!r} imports {name}, which lies beside it: set PYTHONPATH={folder}")
    return ImportError(f"backend {spelling!r} needs {error.name}, which is not installed: pip install {error.name}")


def _run_file(spelling: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r} (looked in {Path.cwd()})")
    name = f"_backend_file_{os.fsencode(path.resolve()).hex()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise _lacks(spelling, error, path.parent) from error
        raise
    return module


def _function_of(module: ModuleType, function: str, place: str) -> Attend:
    found: Any = getattr(module, function, None)
    if callable(found):
        return cast(Attend, found)
    functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    problem = "has no function" if found is None else f"has a {type(found).__name__}, not a function,"
    raise ValueError(f"{place} {problem} {function!r}{_nearest(function, functions)}. It has: {', '.join(functions)}")


def _nearest(wanted: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _runs_anywhere(device: torch.device) -> str | None:
    return None
