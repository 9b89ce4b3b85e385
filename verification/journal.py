"""The last problem that a process began, kept where it outlives the process: what a crash or a hang happened in."""

import json
import os
from pathlib import Path
from typing import Any

from verification.problems import Problem

# A folder that the process which collects the results has made; without it nothing is kept.
FOLDER = "ATTENTION_JOURNAL"

_open: int | None = None
_property: dict[str, Any] = {}


def begin_property(test: str, backend: str, described: dict[str, str]) -> None:
    """The property that this process looks at from now on."""
    global _open, _property
    _property = {"test": test, "backend": backend, "property": described, "problem": None}
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    if _open is None:
        _open = os.open(Path(folder) / f"{os.getpid()}.json", os.O_RDWR | os.O_CREAT)
    _write()


def begin(problem: Problem) -> None:
    """The problem that this process looks at from now on."""
    _property["problem"] = repr(problem)
    if _open is not None:
        _write()


def current() -> str | None:
    """The last problem that this process began."""
    return _property.get("problem")


def _write() -> None:
    assert _open is not None
    content = json.dumps(_property).encode()
    os.pwrite(_open, content, 0)
    os.ftruncate(_open, len(content))


def last(folder: Path, test: str) -> dict[str, Any] | None:
    """What the process that died in that test had begun: test, backend, property and problem."""
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        kept = json.loads(path.read_text(encoding="utf-8") or "{}")
        if kept.get("test") == test:
            return kept
    return None
