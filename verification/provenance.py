"""Result files, and what produced them: commit, device, versions, time, command."""

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).parents[1]


def write(path: Path, kind: str, device: torch.device, **content: Any) -> None:
    """A result file of that kind, as JSON, in a folder that is made where there is none.

    Raises ValueError where a number is not finite: JSON knows none.
    """
    result = {"schema": 1, "kind": kind, "provenance": provenance(device), **content}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_bytes(_utf8(text + "\n"))


def _utf8(text: str) -> bytes:
    """Its UTF-8; what Python read as bytes, since the locale is another, becomes what it was, or a question mark."""

    def as_it_was(raw: re.Match[str]) -> str:
        return raw[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    return re.sub("[\udc80-\udcff]+", as_it_was, text).encode("utf-8", "replace")


def provenance(device: torch.device) -> dict[str, Any]:
    """A JSON object that belongs to every result file."""
    cuda = device.type == "cuda"
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _dirty(),
        "subject": _subject(),
        "date": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "device": {
            "type": device.type,
            "name": torch.cuda.get_device_name(device) if cuda else _processor(),
            "driver": _driver() if cuda else None,
        },
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": _version("triton"),
            "cuda": torch.version.cuda if cuda else None,
        },
        "command": _command(),
    }


def _command() -> str:
    """As it was typed: `python -m benchmarks ...` leaves only a file's name in sys.argv."""
    if sys.orig_argv[1:2] == ["-m"]:
        return " ".join(["python", *sys.orig_argv[1:]])
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _git(*arguments: str) -> str | None:
    """What git says, or None outside a checkout that it may read."""
    return _said("git", "-C", str(_ROOT), *arguments)


def _said(*command: str) -> str | None:
    """What a program says, or None where it is not there, may not be started, or fails."""
    try:
        said = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.stdout.decode("utf-8", "replace").strip()  # whatever the locale is


def _subject() -> str | None:
    return _git("log", "-1", "--format=%s")


def _dirty() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _processor() -> str:
    """The processor's model; platform.processor() is empty on most Linux machines."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system, or one that keeps it to itself
        cpuinfo = ""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    said = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return None if said is None else said.partition("\n")[0].strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
