"""Result files, and what produced them: commit, device, versions, time, command."""

import importlib.metadata
import json
import platform
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
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def provenance(device: torch.device) -> dict[str, Any]:
    """A JSON object that belongs to every result file."""
    cuda = device.type == "cuda"
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": _dirty(),
        "subject": _git("log", "-1", "--format=%s"),
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
    """What git says, or None outside a checkout."""
    try:
        said = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return said.stdout.strip()


def _dirty() -> bool | None:
    status = _git("status", "--porcelain", "--untracked-files=no")
    return None if status is None else bool(status)


def _processor() -> str:
    """The processor's model; platform.processor() is empty on most Linux machines."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return said.stdout.split("\n")[0].strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
