"""The sweep under asv: the commit's own `implementations`, by today's judge, clock and workloads.

Run by path and with `python -P`, so that the repository is not on the import path while the package is
imported; it comes first on that path afterwards. The other way round every commit would be measured as the
work tree.
"""

import importlib
import os
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def import_subject() -> str | None:
    """Imports the commit's package; returns the reason where the commit has none.

    Raises RuntimeError where Python finds the work tree's package instead.
    """
    try:
        subject = importlib.import_module("implementations")
    except ModuleNotFoundError as error:
        if error.name != "implementations":
            raise
        return "this commit has no package `implementations`"
    folders = [Path(folder).resolve() for folder in subject.__path__]
    commit = os.environ.get("ASV_COMMIT")
    if ROOT / "implementations" in folders:
        raise RuntimeError(
            f"asv asked for commit {commit or '(none)'}, but Python finds the work tree's package "
            f"in {folders[0]}; wanted one installed from the commit"
        )
    # Only a managed environment has ASV_COMMIT. What lies outside it was not installed by asv.
    if commit and not any(folder.is_relative_to(Path(sysconfig.get_path("purelib")).resolve()) for folder in folders):
        return "this commit has no package `implementations`"
    return None


if __name__ == "__main__":
    reason = import_subject()
    sys.path.insert(0, str(ROOT))
    from benchmarks.sweep import main

    main(sys.argv[1:], unavailable=reason)
