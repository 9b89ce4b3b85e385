"""Latency over commits: their order, and which steps count as a change."""

import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.frames import groups, records

CHANGE_RATIO = 1.05
SERIES = ["machine", "env", "setup", "benchmark", "case", "backend"]


@dataclass(frozen=True)
class CommitOrder:
    commits: list[str]
    subjects: dict[str, str]
    by_date: bool  # git does not know the commits
    elsewhere: int  # measured commits that are not on this line of history, left out


def first_parents(root: Path) -> dict[str, str]:
    """Commit -> subject along the first parents of HEAD, oldest first; empty where git knows no history."""
    command = ["git", "log", "--first-parent", "--reverse", "--format=%H%x09%s"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        # The page says "in order of their dates" then.
        return {}
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


def order_commits(rows: pd.DataFrame, subjects: dict[str, str]) -> CommitOrder:
    """The measured commits, oldest first: as `subjects` lists them, or by date where it lists none."""
    dates = dict(zip(rows["commit"], rows["date"], strict=True))
    measured = sorted(dates, key=lambda commit: dates[commit])
    on_line = [commit for commit in subjects if commit in dates]
    if not on_line:
        return CommitOrder(measured, {}, by_date=True, elsewhere=0)
    return CommitOrder(on_line, subjects, by_date=False, elsewhere=len(measured) - len(on_line))


def judge(rows: pd.DataFrame, commits: list[str]) -> pd.DataFrame:
    """Rows in commit order with `ratio` (to the level before) and `verdict`: slower, faster, or nothing.

    A commit changes a latency when its 99 % interval does not overlap the one of the current level and the
    ratio is over CHANGE_RATIO. The level is the first commit after the last change, not the neighbour, so that a
    slow drift is found as well. Without an interval nothing is judged.
    """
    position = {commit: index for index, commit in enumerate(commits)}
    judged = []
    for _, series in groups(rows, SERIES):
        level = None
        on_line = [row for row in records(series) if row["commit"] in position]
        for row in sorted(on_line, key=lambda row: position[row["commit"]]):
            step = {"position": position[row["commit"]], "ratio": math.nan, "verdict": ""}
            # A comparison with NaN is false: rows without a time or an interval drop out here.
            if row["seconds"] > 0 and row["low_s"] <= row["high_s"]:
                if level is not None:
                    step |= {"ratio": row["seconds"] / level["seconds"], "verdict": _verdict(level, row)}
                if level is None or step["verdict"]:
                    level = row
            judged.append(row | step)
    return pd.DataFrame.from_records(judged, columns=[*rows.columns, "position", "ratio", "verdict"])


def _verdict(level: dict[str, Any], row: dict[str, Any]) -> str:
    if row["low_s"] > level["high_s"] and row["seconds"] > CHANGE_RATIO * level["seconds"]:
        return "slower"
    if row["high_s"] < level["low_s"] and level["seconds"] > CHANGE_RATIO * row["seconds"]:
        return "faster"
    return ""
