"""Every command that the documentation shows is run, as it stands there, in a fresh copy of the tree.

A command is shortened from outside only: by the environment, by make's own variables, by an option that is put behind
it, by ending it once it has begun to answer. `WAYS` says for each how, and why. A command of the documentation that
is missing there fails, and so does an entry that the documentation no longer shows.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.checkout import ROOT, copied, with_history

PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

_PROGRAMS = r"(?:make|pytest|python3?|mkdir|cp|git|pip|asv|\.venv/bin/[\w-]+|\.ci/\w+)"
COMMAND = re.compile(rf"{_PROGRAMS}(?: .*)?")

# A process that hangs; the slowest command takes some 30 s on two cores.
LIMIT_S = 300


def commands(text: str) -> list[str]:
    """Lines of blocks, without their comments, and what stands between backticks, where it begins with a program."""
    blocks = r"^(?: {4}|\t)[^\n]*$|^```.*?^```$"
    lines = [line.strip() for block in re.findall(blocks, text, flags=re.M | re.S) for line in block.splitlines()]
    sentences = re.findall(r"`([^`]+)`", re.sub(blocks, "", text, flags=re.M | re.S))
    found = [" ".join(re.sub(r"\s+#.*$", "", one).split()) for one in [*lines, *sentences]]
    return [one for one in found if COMMAND.fullmatch(one)]


@dataclass(frozen=True)
class Way:
    """How a command is run here: what makes it short, and what it has to answer."""

    why: str
    says: str
    status: int = 0
    name: str | None = None  # for the NAME that stands in the command
    behind: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    before: str = ""  # run first, by the same shell
    enough: str | None = None  # once the command has said this it is ended
    history: bool = False  # it needs git, and commits


ONE_PROPERTY = "one property and one backend: each has tests of its own"
SHORT = {"PYTEST_ADDOPTS": "-k 'rows_sum_to_one and (eager or online or mine)' --hypothesis-profile quick"}
TIMED = {"PYTEST_ADDOPTS": "-k article-512-512-forward --benchmark-max-time 0.01 --benchmark-min-rounds 1"}
LITTLE = "--max-length 128 --stage forward --workload gpt2 --seconds 20"
# asv is to find a benchmark that costs nothing; by way of make it gets its options from a program of that name.
NO_SWEEP = "a benchmark that measures nothing: the sweep of a commit takes minutes"
TRACK = (
    "printf 'def track_one():\\n    return 1\\n' > benchmarks/bench_nothing.py; .venv/bin/python -m benchmarks.machine"
)
QUICK = "--quick --bench track_one"
SCRIPT = "rm short/{0} && printf '#!/bin/sh\\n{1}\\n' > short/{0} && chmod +x short/{0}"
# The programs as make finds them, but one; Python by a script too, since it looks for its packages beside itself.
INSTEAD = "mkdir short && ln -s $PWD/.venv/bin/* short && " + SCRIPT.format("python", 'exec .venv/bin/python "$@"')
ASV = f'test $1 != run || set -- "$@" --steps 1 {QUICK}; exec .venv/bin/asv "$@"'
RESULTS = (
    "mkdir DIR && .venv/bin/python -m benchmarks.ceilings --size 16 --bytes 64 --seconds 0.01 --out DIR/ceilings.json"
)

WAYS = {
    "make report": Way(
        "one property, and a second for all times: what is left out is on the page as such",
        "wrote",
        environment={**SHORT, "MAKEFLAGS": "SECONDS=1"},
    ),
    "make verify": Way("one property: these tests would run themselves", " passed", environment=SHORT),
    "make lint": Way(
        "pyright says its version only: it takes half a minute, and CI runs it right after the tests",
        "0 broken",
        before=f"{INSTEAD} && {SCRIPT.format('pyright', 'exec .venv/bin/pyright --version')}",
        environment={"MAKEFLAGS": "BIN=short"},
    ),
    ".ci/run": Way(
        "make tells what it would do: `make verify` and `make lint` are run above",
        "lint-imports",
        environment={"MAKEFLAGS": "-n"},
    ),
    "make history COMMITS=HEAD~5..HEAD": Way(
        NO_SWEEP,
        "wrote",
        before=f"{RESULTS} && mv DIR reports/data && {TRACK} && {INSTEAD} && {SCRIPT.format('asv', ASV)}",
        environment={"MAKEFLAGS": "BIN=short"},
        history=True,
    ),
    ".venv/bin/asv run HEAD~2..HEAD": Way(
        NO_SWEEP, "track_one", behind=f"--steps 1 {QUICK}", before=TRACK, history=True
    ),
    ".venv/bin/asv continuous -a rounds=2 main HEAD": Way(
        NO_SWEEP, "BENCHMARKS NOT SIGNIFICANTLY CHANGED", behind=QUICK, before=TRACK, history=True
    ),
    ".venv/bin/python -m benchmarks.machine": Way("it is short", ".asv-machine.json", history=True),
    ".venv/bin/pytest verification/ --backend mine.py:attend": Way(ONE_PROPERTY, "1 passed", environment=SHORT),
    ".venv/bin/pytest verification/ --backend online": Way(ONE_PROPERTY, "1 passed", environment=SHORT),
    ".venv/bin/pytest verification/ --backend NAME": Way(ONE_PROPERTY, "1 passed", name="online", environment=SHORT),
    ".venv/bin/pytest tests/": Way(
        "the tests of one page: these tests would run themselves",
        " passed",
        environment={"PYTEST_ADDOPTS": "-k test_every_property_of_the_documentation_exists"},
    ),
    ".venv/bin/pytest benchmarks/ --backend mine.py:attend --backend eager": Way(
        "one shape, for a moment", "2 passed", environment=TIMED
    ),
    ".venv/bin/python -m benchmarks --backend mine.py:attend --backend sdpa_flash": Way(
        "one row a backend", "2 rows in", behind=LITTLE
    ),
    ".venv/bin/python -m benchmarks --backend eager --backend online --seconds 30": Way(
        "one row a backend", "2 rows in", behind=LITTLE
    ),
    ".venv/bin/python -m benchmarks --backend NAME": Way("one row", "1 rows in", name="online", behind=LITTLE),
    "python -m benchmarks.ceilings": Way("small, for a moment", "copy", behind="--size 16 --bytes 64 --seconds 0.01"),
    "python3 -m benchmarks.gpu_box --out DIR": Way(
        "it needs a GPU and says so", "torch finds no GPU here; --rehearse needs none", status=2
    ),
    "python3 -m benchmarks.gpu_box --out DIR --rehearse": Way(
        "a minute at most: what is left out is on the page as such", "DIR/index.html", behind="--seconds 60"
    ),
    "mkdir -p reports/published/NAME && cp DIR/*.json reports/published/NAME": Way("it is short", "", before=RESULTS),
    ".venv/bin/python -m reports --data reports/published/NAME": Way(
        "the page of one small result",
        "wrote",
        before=f"{RESULTS} && mkdir -p reports/published && mv DIR reports/published/NAME",
    ),
    ".venv/bin/python -m reports": Way(
        "the page of one small result", "wrote", before=f"{RESULTS} && mv DIR reports/data"
    ),
    ".venv/bin/python -m implementations": Way("it is short", "sdpa_flash"),
    ".venv/bin/python -m verification.static": Way(
        "it is ended at its first row: 192 take minutes", "holds", status=-signal.SIGTERM, enough="1 of 192"
    ),
    ".venv/bin/python -m verification.mutants --only NAME": Way(
        "it is ended at that mutant: the whole matrix takes an hour", "killed by", name="output_not_rescaled"
    ),
    ".venv/bin/pre-commit install": Way("it is short", "pre-commit installed at", history=True),
}

# What a sentence mentions is run above in full.
MENTIONS = {
    "make": "make report",
    "make history": "make history COMMITS=HEAD~5..HEAD",
    "asv run": ".venv/bin/asv run HEAD~2..HEAD",
    "python -m reports": ".venv/bin/python -m reports",
    "python -m verification.static": ".venv/bin/python -m verification.static",
    "python -m verification.static [--json FILE]": ".venv/bin/python -m verification.static",
    "python -m verification.mutants": ".venv/bin/python -m verification.mutants --only NAME",
    "pytest verification/ --backend mine.py:attend": ".venv/bin/pytest verification/ --backend mine.py:attend",
}


MINE = """import implementations


def attend(q, k, v, *, mask=None, causal=False, scale=None):
    return implementations.load("eager").attend(q, k, v, mask=mask, causal=causal, scale=scale)
"""


def shown() -> dict[str, str]:
    """Each command of the documentation, with the page that shows it first."""
    found = [(command, page) for page in reversed(PAGES) for command in commands((ROOT / page).read_text("utf-8"))]
    return dict(found)


def test_every_command_of_the_documentation_is_run() -> None:
    """Where this fails, say in WAYS how the new command is run here, or take out what is no longer shown."""
    assert sorted(shown()) == sorted({*WAYS, *MENTIONS})


def test_what_a_sentence_mentions_is_a_command_that_is_run() -> None:
    for mention, whole in MENTIONS.items():
        assert whole in WAYS
        assert whole.removeprefix(".venv/bin/").startswith(mention.partition(" [")[0])


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    page = """
Say `make x`, or `.ci/run`; `makes` and `--only` are none, nor is `pytestmark`.

    make y Z=1   # why
    mine.py

```sh
git status
```
| `verification/` | `.venv/bin/pytest
verification/` |
"""
    assert commands(page) == ["make y Z=1", "git status", "make x", ".ci/run", ".venv/bin/pytest verification/"]


@pytest.mark.parametrize("command", WAYS)
def test_a_command_of_the_documentation_does_what_it_says(command: str, tmp_path: Path) -> None:
    way = WAYS[command]
    _skip_where_it_cannot_run(command, way)
    tree = copied(tmp_path / "tree")
    if way.history:
        with_history(tree)
    (tree / "mine.py").write_text(MINE, encoding="utf-8")
    environment = surroundings(tmp_path, tree) | dict(way.environment)
    if way.before:
        subprocess.run(way.before, shell=True, cwd=tree, env=environment, check=True, capture_output=True)
    typed = " ".join([command.replace("NAME", way.name) if way.name else command, way.behind]).strip()
    status, said = run(typed, tree, environment, tmp_path / "said.txt", way.enough)
    assert status == way.status, f"{typed}\n{said}"
    assert way.says in said, f"{typed}\n{said}"
    assert "Traceback" not in said, said


def surroundings(home: Path, tree: Path) -> dict[str, str]:
    """Of somebody who has just cloned: a home of one's own, and nothing of the pytest that runs this test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE", "ATTN_"))}
    path = os.pathsep.join([str(tree / ".venv" / "bin"), os.environ.get("PATH", os.defpath)])
    return kept | {"HOME": str(home), "PATH": path}


def run(typed: str, tree: Path, environment: Mapping[str, str], log: Path, enough: str | None) -> tuple[int, str]:
    """Exit status and output of a shell's command; it is ended, with its children, when it has said what is enough."""
    with log.open("wb") as output:
        shell = subprocess.Popen(
            typed,
            shell=True,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = time.monotonic() + LIMIT_S
        while shell.poll() is None and time.monotonic() < end:
            if enough and enough in log.read_text("utf-8", errors="replace"):
                break
            time.sleep(0.1)
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGTERM)
        status = shell.wait()
    return status, log.read_text("utf-8", errors="replace")


def _skip_where_it_cannot_run(command: str, way: Way) -> None:
    for program in ["git"] * way.history + ["make"] * command.startswith(("make", ".ci/run")):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    if "gpu_box" in command and torch.cuda.is_available():
        pytest.skip("there is a GPU: it would be measured for minutes")
