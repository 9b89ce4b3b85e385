"""A copy of this working tree that stands for a fresh clone: with a history, and with an environment in `.venv`."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What a run leaves behind; git would ignore it.
_LEFT_BEHIND = (
    *(".git", ".venv", ".asv", ".benchmarks", ".hypothesis", ".*_cache", "__pycache__", "build", "*.egg-info"),
    *("data", "html"),
)

# `HEAD~5..HEAD` of the README has to exist, and `main` is a commit behind it.
_COMMITS = 6


def copied(to: Path) -> Path:
    """What a commit of the working tree as it is would hold, in the folder `to`, which must not exist.

    `.venv` there is the environment that runs this test, and newer than pyproject.toml, so that make installs nothing.
    """
    for path in _files():
        if (ROOT / path).is_file():
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, to / path)
    (to / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != "ready":
            (to / ".venv" / entry.name).symlink_to(entry)
    (to / ".venv" / "ready").touch()
    return to


def with_history(tree: Path) -> Path:
    """The same tree, as a repository whose commits all hold it; HEAD is a commit after the branch `main`."""
    git = ["git", "-C", str(tree), "-c", "user.name=Nobody", "-c", "user.email=nobody@example.com"]
    git += ["-c", "commit.gpgsign=false"]

    def run(*arguments: str) -> None:
        subprocess.run([*git, *arguments], check=True, capture_output=True)

    run("init", "--quiet", "--initial-branch=main")
    run("add", "--all")
    for number in range(_COMMITS):
        run("commit", "--quiet", "--allow-empty", "--message", f"Commit {number}")
    run("switch", "--quiet", "--create", "work")
    run("commit", "--quiet", "--allow-empty", "--message", "The work")
    return tree


def _files() -> list[Path]:
    """As git lists them; where the tree is an archive, or git may not read it, all but what a run leaves behind."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(listing, capture_output=True)
        if listed.returncode == 0:
            return [Path(name) for name in listed.stdout.decode().split("\0") if name]
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
    return [path for path in paths if not any(Path(part).match(left) for part in path.parts for left in _LEFT_BEHIND)]
