"""Writes asv's entry for this machine, with its GPU, without asking: `python -m benchmarks.machine`.

asv has no field for a GPU, but copies keys it does not know into its results and its pages, and draws a line for each
combination of them: after a driver update a new line begins, as it should, since no commit caused the step.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path


def main() -> None:
    # Bare: with any field given asv would store that field and no other.
    subprocess.run([sys.executable, "-m", "asv", "machine", "--yes"], check=True)
    path = Path.home() / ".asv-machine.json"
    machines = json.loads(path.read_text(encoding="utf-8"))
    name = platform.node()
    machines[name].update(gpu())
    path.write_text(json.dumps(machines, indent=4) + "\n", encoding="utf-8")
    print(f"{path}: {name}", *(f"{key}: {value}" for key, value in machines[name].items()), sep="\n    ")


def gpu() -> dict[str, str]:
    """Name and driver of the first GPU, or nothing where there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    name, driver = answer.strip().rsplit(", ", 1)
    return {"gpu": name, "gpu_driver": driver}


if __name__ == "__main__":
    main()
