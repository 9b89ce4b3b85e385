"""A mutant: a built-in backend with one place of its source changed."""

import atexit
import functools
import importlib
import importlib.util
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import implementations
from implementations import Backend
from verification.judge import Subject

_SOURCES = Path(implementations.__file__).parent
_IMPORT = re.compile(rf"\b(from|import) {implementations.__name__}\b")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change to one file of `implementations`, and what becomes of it.

    base       the built-in backend that is changed
    file       the file of `implementations` with the change: the backend's own or one that it uses
    old, new   the text in that file, which occurs there once, and what stands in its place
    why        the fault, or why it is none, in one line
    report     the public reports it models, "owner/repo#number", comma-separated; none for a correct variant
    killed_by  the property that must reject it; None for a correct variant, which none may reject
    """

    name: str
    base: str
    file: str
    old: str
    new: str
    why: str
    report: str = ""
    killed_by: str | None = None

    def applied(self, source: str) -> str:
        """The source with the change. Raises ValueError unless `old` occurs once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutant {self.name!r}: the text it changes occurs {found} times in {self.file}, wanted once; "
                f"the source has moved on, and the mutant has to follow:\n{self.old}"
            )
        return source.replace(self.old, self.new)


def subject_of(mutant: Mutant) -> Subject:
    """The mutant under judgement, with the layer of its own copy of the package."""
    backend = load(mutant)
    package = backend.attend.__module__.partition(".")[0]
    return Subject(backend, layer_type=sys.modules[package].SelfAttention)


def load(mutant: Mutant) -> Backend:
    """The mutant as a backend named `mutant:NAME` that states the facts of its base; each call loads it afresh.

    It is a copy of the whole package under another name: real files, since Triton reads the source of its kernels.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{mutant.name}_", dir=_copies()))
    package = folder.name
    for path in _SOURCES.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        if path.name == mutant.file:
            source = mutant.applied(source)
        (folder / path.name).write_text(_IMPORT.sub(rf"\1 {package}", source))
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])
    changed = importlib.import_module(f"{package}.{mutant.base}")
    return replace(
        implementations.load(mutant.base),
        name=f"mutant:{mutant.name}",
        attend=changed.attend,
        project=changed.project,
        summary=mutant.why,
    )


@functools.cache
def _copies() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mutants_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
