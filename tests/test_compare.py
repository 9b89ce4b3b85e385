"""The verdict of `python -m benchmarks compare`: on times that are made up, and on pieces of work that are counted."""

import contextlib
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare, interval
from benchmarks.compare import SEGMENTS, Comparison, Stop, Unit, compared, side_of, significant

ROOT = Path(__file__).parents[1]

# One head after another, and then some of them again: 103 pieces are exactly 3 % more than 100.
PIECES = """
import torch

def pieces(count):
    def attend(q, k, v, *, mask=None, causal=False, scale=None):
        def head(at):
            one = (t[:, at % q.shape[1], None] for t in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(*one, is_causal=causal, scale=scale)

        return torch.cat([head(at) for at in range(count)][: q.shape[1]], 1)

    return attend

attend_100, attend_130 = pieces(100), pieces(130)
"""


def made_up(
    ratio: float, *, spread: float = 0.005, wall: float | None = None, again: float = 1.0, segments: int = SEGMENTS
) -> list[Unit]:
    """Units whose sides take 1, `again` and `ratio` ms, give or take `spread`, on a machine whose speed drifts."""
    draw = random.Random(0)

    def unit(at: int) -> Unit:
        speed = 1e-3 * (1 + 0.5 * at / segments)
        judged = {side: speed * times * math.exp(draw.gauss(0, spread)) for side, times in of_sides.items()}
        return Unit(judged, judged if wall is None else {**judged, "B": judged["A"] * wall})

    of_sides = {"A": 1.0, "A'": again, "B": ratio * (1 + again) / 2}
    return [unit(at) for at in range(segments)]


@pytest.mark.parametrize(
    ("units", "verdict"),
    [
        (made_up(1.0), "SAME"),
        (made_up(1.03), "SLOWER"),
        (made_up(0.97), "FASTER"),
        (made_up(1.015), "SAME"),  # a true difference, and less than the least
        (made_up(1.1, spread=0.3), "UNDECIDED"),
        (made_up(1.0, spread=0.15), "UNDECIDED"),
        (made_up(1.0, wall=1.5), "UNDECIDED"),
        (made_up(1.2, wall=1.0), "UNDECIDED"),
        (made_up(1.2, again=1.05), "VOID"),
    ],
)
def test_the_verdict_follows_from_the_intervals(units: list[Unit], verdict: str) -> None:
    assert compared(units).verdict == verdict


def test_a_drift_of_the_machine_by_half_changes_nothing() -> None:
    assert math.exp(compared(made_up(1.03)).judged.estimate) == pytest.approx(1.03, abs=0.004)


def test_a_difference_no_larger_than_that_of_equal_sides_is_none() -> None:
    narrow = interval.Interval(0.03, 0.031, 0.032)
    found = Comparison(narrow, narrow, interval.Interval(-0.04, 0.035, 0.08), 1e-9, 1.0)
    assert found.verdict == "SAME"


def test_a_void_machine_has_no_other_verdict() -> None:
    assert compared(made_up(1.5), "the sentinel drifts").verdict == "VOID"


def test_the_reason_of_waiting_is_said() -> None:
    line = compare.describe(compared(made_up(1.0, wall=1.5)), "UNDECIDED", "b", "a")
    assert "it waits: by the wall's clock 1." in line


def test_with_several_rows_each_has_to_stand_beside_the_others() -> None:
    assert significant([0.009]) == [True]
    assert significant([0.009, 0.5]) == [False, False]
    assert significant([0.5, 0.001, 0.009]) == [False, True, False]
    assert significant([0.004, 0.001, 0.008]) == [True, True, True]


def test_the_interval_of_a_median_is_of_two_samples() -> None:
    assert interval.of_median([3.0] * 7) is None
    assert interval.of_median(range(8)) == (0, 7)
    assert interval.of_median(range(12)) == (1, 10)
    # By simulation: the share of samples of 20 whose limits enclose the true median, 0.
    draw = random.Random(0)
    inside = sum(
        low <= 0 <= high
        for low, high in filter(None, (interval.of_median([draw.gauss(0, 1) for _ in range(20)]) for _ in range(2000)))
    )
    assert 0.985 <= inside / 2000 <= 1.0


# What A and B may be

in_a_repository = pytest.mark.skipif(
    compare._git("rev-parse", "HEAD") is None, reason="this tree is an archive: it has no commits"
)


@in_a_repository
def test_a_side_is_a_spelling_or_a_commit() -> None:
    with contextlib.ExitStack() as folders:
        assert side_of("online", None, folders).folder is None
        assert side_of("a.py:attend", None, folders).spelling == "a.py:attend"
        with pytest.raises(Stop, match="neither a backend's spelling nor a commit"):
            side_of("egaer", None, folders)
        with pytest.raises(Stop, match="HEAD is a commit; wanted --backend NAME"):
            side_of("HEAD", None, folders)
        side = side_of("HEAD", "online", folders)
        assert side.folder is not None
        assert (side.folder / "implementations" / "online.py").is_file()
    assert not side.folder.exists()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "compare", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pieces") / "pieces.py"
    path.write_text(PIECES)
    return str(path)


# How long it takes decides no test: 30 % are seen on the busiest machine, and what a busy one is not sure of is not
# called SLOWER either way.


def test_more_pieces_of_work_are_slower_and_the_status_says_so(pieces: str) -> None:
    ran = run(f"{pieces}:attend_100", f"{pieces}:attend_130", "--length", "128", "--seconds", "4")
    assert (ran.returncode == 1) == ran.stdout.splitlines()[-1].startswith("SLOWER: "), ran.stdout + ran.stderr
    assert "99 %" in ran.stdout
    assert "A'/A" in ran.stdout


@in_a_repository
def test_a_commit_is_compared_with_the_work_tree_in_one_process() -> None:
    ran = run("HEAD", "online", "--backend", "online", "--length", "128", "--seconds", "2")
    assert ran.returncode in (0, 1), ran.stderr
    assert ran.stdout.split(":")[0] in compare.VERDICTS


def test_a_wrong_side_is_no_side(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def attend(q, k, v, *, mask=None, causal=False, scale=None):\n    return v.expand_as(q) * 1\n")
    ran = run("eager", f"{path}:attend", "--length", "128")
    assert ran.returncode == 2
    assert "B, " in ran.stderr
    assert "times its budget" in ran.stderr
    assert ran.stdout == ""


def test_what_does_not_fit_is_said_before_it_is_begun() -> None:
    ran = run("eager", "online", "--length", "1024", "--seconds", "0.1")
    assert ran.returncode == 2
    assert "wanted --seconds" in ran.stderr


# Two packages of one name


def test_operators_that_exist_once_make_every_launch_a_unit(tmp_path: Path) -> None:
    folders = []
    for name in ("old", "new"):
        package = tmp_path / name / "implementations"
        package.mkdir(parents=True)
        for path in (ROOT / "implementations").glob("*.py"):
            package.joinpath(path.name).write_text(path.read_text())
        package.joinpath("eager.py").write_text(
            package.joinpath("eager.py").read_text()
            + "\nimport torch\ntorch.library.define('attention_test::once', '(Tensor x) -> Tensor')\n"
        )
        folders.append(tmp_path / name)
    said: list[str] = []
    a, b = (compare.Side(folder.name, "eager", folder) for folder in folders)
    case = compare.Case(compare.WORKLOADS["article-512"], 128, "forward")
    found = compare.Comparing(a, b, "cpu", 1, said.append).run(case, 1.0)
    assert any("can be registered only once" in what for what in said), said
    assert found.verdict in compare.VERDICTS
