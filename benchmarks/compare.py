"""Is B slower than A? Both in one process, in turns, with A a second time to see what equal sides differ by.

    python -m benchmarks compare online my_kernel.py:attend --seconds 60
    python -m benchmarks compare HEAD~1 HEAD --backend online

A and B are each a spelling, or a commit for the backend that --backend names. The last line is the verdict on B:
SLOWER, FASTER, SAME, UNDECIDED or VOID.
"""

import argparse
import contextlib
import io
import math
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks import interval
from benchmarks.interval import Interval
from benchmarks.processes import LOADING_S, ROOT, Child, ChildError
from benchmarks.sentinel import Sentinel
from benchmarks.workloads import STAGES, TIMED_DTYPE, WORKLOADS, Case

# A difference below this is not called one: code and data that merely lie elsewhere make as much.
LEAST = 0.02

# The interval of SAME lies within this.
SAME_WITHIN = 0.04

# The unit of the interval: long enough to hold turns of every side, and so many that their means are normal.
SEGMENTS, FEWEST_SEGMENTS = 24, 8

# Where A and B cannot be in one process each launch of one is a unit.
LAUNCHES = 5

SIDES = ("A", "A'", "B")

# What is said first where several rows are compared.
VERDICTS = ("SLOWER", "VOID", "UNDECIDED", "FASTER", "SAME")


@dataclass(frozen=True)
class Unit:
    """Seconds of a call of each side in one segment, or one launch, by the judged clock and by the wall's."""

    judged_s: dict[str, float]
    wall_s: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """What B's calls take as a multiple of A's; logarithms, as their errors are alike whichever side is larger."""

    judged: Interval
    wall: Interval
    again: Interval  # of A' to A
    p: float  # of there being no difference
    waiting: float  # wall time over judged time, all sides together
    void: str | None = None

    @property
    def verdict(self) -> str:
        """Without regard to other comparisons made at the same time."""
        return self.verdict_at(significant=True)

    def verdict_at(self, *, significant: bool) -> str:
        """significant  whether the difference is so beside all others that were looked for."""
        least = max(math.log1p(LEAST), abs(self.again.estimate))
        if self.void is not None:
            return "VOID"
        if self.waits:
            return "UNDECIDED"
        if self.judged.low > 0 and self.judged.estimate > least:
            return "SLOWER" if significant else "UNDECIDED"
        if self.judged.high < 0 and self.judged.estimate < -least:
            return "FASTER" if significant else "UNDECIDED"
        within = math.log1p(SAME_WITHIN)
        return "SAME" if -within < self.judged.low and self.judged.high < within else "UNDECIDED"

    @property
    def waits(self) -> bool:
        """Whether the two clocks contradict one another: a side that waits spends no CPU time meanwhile."""
        apart = self.wall.low > self.judged.high or self.wall.high < self.judged.low
        return apart and abs(self.wall.estimate - self.judged.estimate) > math.log1p(LEAST)


def compared(units: Sequence[Unit], void: str | None = None) -> Comparison:
    """Student's interval over the units of the log of the ratio of B's mean time to A's, A and A' taken together."""
    from scipy import stats

    def ratios(times: Callable[[Unit], dict[str, float]]) -> list[float]:
        return [math.log(2 * times(unit)["B"] / (times(unit)["A"] + times(unit)["A'"])) for unit in units]

    judged = ratios(lambda unit: unit.judged_s)
    again = interval.of_mean([math.log(unit.judged_s["A'"] / unit.judged_s["A"]) for unit in units])
    waiting = sum(sum(unit.wall_s.values()) for unit in units) / sum(sum(unit.judged_s.values()) for unit in units)
    if void is None and (again.low > math.log1p(LEAST) or again.high < -math.log1p(LEAST)):
        void = f"A a second time takes {math.exp(again.estimate):.3f} times as long as A"
    return Comparison(
        interval.of_mean(judged),
        interval.of_mean(ratios(lambda unit: unit.wall_s)),
        again,
        float(cast(Any, stats.ttest_1samp(judged, 0.0)).pvalue),
        waiting,
        void,
    )


def significant(p: Sequence[float]) -> list[bool]:
    """Which of several differences there are, with 1 % for one wrong among all of them.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    found = [False] * len(p)
    for rank, at in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[at] > (1 - interval.CERTAINTY) / (len(p) - rank):
            break
        found[at] = True
    return found


class Stop(Exception):
    """The comparison makes no sense or cannot be made; the message says why."""


@dataclass(frozen=True)
class Side:
    """spelling in the package of the work tree, or in that of a commit, which lies in `folder`."""

    given: str
    spelling: str
    folder: Path | None = None

    def to_load(self) -> dict[str, Any]:
        return {"spelling": self.spelling, "package": None if self.folder is None else str(self.folder)}


@dataclass
class Comparing:
    """A, A' and B on one device."""

    a: Side
    b: Side
    device_type: str
    threads: int
    say: Callable[[str], None]

    def run(self, case: Case, seconds: float) -> Comparison:
        """Raises Stop where a side is wrong, refuses, or dies."""
        with self._sentinel(case) as sentinel, self._child() as child:
            answer = self._ask(child, {"load": self._sides()}, LOADING_S[self.device_type])
            if self.a.folder != self.b.folder and answer["registers"]:
                child.close()
                self.say(f"a process a launch: {answer['registers'][0]} can be registered only once in each")
                units = list(self._launches(case, seconds, sentinel))
            else:
                self._check(answer["refused"])
                units = list(self._segments(child, case, seconds, sentinel))
        return compared(units, sentinel.void())

    def _sides(self) -> dict[str, dict[str, Any]]:
        return {"A": self.a.to_load(), "A'": self.a.to_load(), "B": self.b.to_load()}

    def _child(self) -> Child:
        return Child(self.device_type, self.threads)

    def _sentinel(self, case: Case) -> Sentinel:
        return Sentinel(self.device_type, case.dtype, self._child())

    def _check(self, wrong: dict[str, str]) -> None:
        for side in SIDES:
            if side in wrong:
                given = self.b if side == "B" else self.a
                raise Stop(f"{'B' if side == 'B' else 'A'}, {given.given}: {wrong[side]}")

    def _ask(self, child: Child, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        try:
            return child.ask(message, limit_s)
        except ChildError as error:
            raise Stop(f"the process of A and B: {error}") from error

    def _prepared(self, child: Child, case: Case, sides: Sequence[str]) -> float:
        """Seconds of one turn of every side, once each is verified."""
        wanted = {
            "workload": case.workload.name, "seq_len": case.seq_len, "stage": case.stage, "dtype": case.dtype,
            "sides": list(sides),
        }  # fmt: skip
        answer = self._ask(child, {"prepare": wanted}, HUNG_S + LOADING_S[self.device_type])
        self._check({side: _of(answer[side]) for side in sides if answer[side]["status"] != "right"})
        self._turns(child, sides, audited=True)
        return float(self._turns(child, sides)["busy_s"])

    def _turns(self, child: Child, order: Sequence[str], *, audited: bool = False) -> dict[str, Any]:
        answer = self._ask(child, {"turns": {"order": list(order), "audited": audited}}, HUNG_S)
        self._check({side: _of(finding) for side, finding in answer["findings"].items()})
        return answer

    def _segments(self, child: Child, case: Case, seconds: float, sentinel: Sentinel) -> Iterator[Unit]:
        round_s = self._prepared(child, case, SIDES)
        segments = min(SEGMENTS, int(seconds / round_s))
        if segments < FEWEST_SEGMENTS:
            needed = math.ceil(FEWEST_SEGMENTS * round_s)
            raise Stop(f"{case}: a turn of each side takes {round_s:.2g} s; wanted --seconds {needed} or more")
        audited = {random.randrange(segments), segments - 1}
        for at in range(segments):
            sentinel.look()
            rounds = max(1, round(seconds / segments / round_s))
            answer = self._turns(child, [side for _ in range(rounds) for side in random.sample(SIDES, 3)])
            round_s = answer["busy_s"] / rounds
            turns = answer["turns"]
            if at in audited:
                turns = turns + self._turns(child, random.sample(SIDES, 3), audited=True)["turns"]
            yield _unit(turns)
            self.say(".")
        sentinel.look()

    def _launches(self, case: Case, seconds: float, sentinel: Sentinel) -> Iterator[Unit]:
        """Of every side at least LAUNCHES processes; a process has a bias of its own, up to 1.4 % as measured."""
        sides = self._sides()
        for _ in range(LAUNCHES):
            sentinel.look()
            turns: list[dict[str, Any]] = []
            for side in random.sample(SIDES, 3):
                with self._child() as child:
                    answer = self._ask(child, {"load": {side: sides[side]}}, LOADING_S[self.device_type])
                    self._check(answer["refused"])
                    turn_s = self._prepared(child, case, [side])
                    count = max(2, round(seconds / LAUNCHES / 3 / turn_s))
                    turns += self._turns(child, [side] * count)["turns"]
                    turns += self._turns(child, [side], audited=True)["turns"]
            yield _unit(turns)
            self.say(".")
        sentinel.look()


# A turn, or a verification, that has no end after this hangs.
HUNG_S = 300.0


def _of(finding: dict[str, Any]) -> str:
    return f"{finding['status']}: {finding['reason']}"


def _unit(turns: Sequence[dict[str, Any]]) -> Unit:
    """Means over all calls of a side: a slow call counts, however rare."""
    judged: dict[str, float] = {}
    wall: dict[str, float] = {}
    for side in SIDES:
        of_side = [turn for turn in turns if turn["side"] == side]
        count = sum(len(turn["calls_s"]) for turn in of_side)
        judged[side] = sum(sum(turn["calls_s"]) for turn in of_side) / count
        wall[side] = sum(turn["wall_s"] for turn in of_side) / count
    return Unit(judged, wall)


def describe(comparison: Comparison, verdict: str, b: str, a: str) -> str:
    """One line: the verdict, the ratio, and how sure it is."""
    judged, again = comparison.judged, math.exp(comparison.again.estimate)
    because = comparison.void or ""
    if comparison.waits:
        because = f"it waits: by the wall's clock {math.exp(comparison.wall.estimate):.3f}"
    return (
        f"{verdict}: {b} takes {math.exp(judged.estimate):.3f} times as long as {a} "
        f"(99 %: {math.exp(judged.low):.3f} to {math.exp(judged.high):.3f}; "
        f"least difference {100 * LEAST:.0f} %; A'/A {again:.3f})" + (f"; {because}" if because else "")
    )


def side_of(given: str, backend: str | None, folders: contextlib.ExitStack) -> Side:
    """What A or B stands for. Raises Stop where it is neither a spelling nor a commit."""
    import implementations

    if ":" in given or given in implementations.names():
        return Side(given, given)
    commit = _git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")
    if commit is None:
        raise Stop(f"{given}: neither a backend's spelling nor a commit of this repository")
    if backend is None:
        raise Stop(f"{given} is a commit; wanted --backend NAME, the backend that is compared")
    folder = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="attention-")))
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit.decode().strip(), "implementations"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        raise Stop(f"{given}: this commit has no package `implementations`")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Side(given, backend, folder)


def _git(*arguments: str) -> bytes | None:
    ran = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)

    import implementations

    try:
        device = implementations.device(given.device)
        dtype = given.dtype or TIMED_DTYPE[device.type]
        cases = [
            Case(WORKLOADS[workload], given.length, given.stage, dtype)
            for workload in given.workload or ["article-512"]
        ]
        with contextlib.ExitStack() as folders:
            a, b = (side_of(side, given.backend, folders) for side in (given.a, given.b))
            comparing = Comparing(a, b, device.type, given.threads, _say)
            comparisons = []
            for case in cases:
                _say(f"{case}, {dtype} ")
                comparisons.append(comparing.run(case, given.seconds / len(cases)))
                _say("\n")
    except (Stop, ValueError) as error:
        print(f"python -m benchmarks compare: {error}", file=sys.stderr)
        return 2
    found = significant([comparison.p for comparison in comparisons])
    verdicts = [one.verdict_at(significant=is_so) for one, is_so in zip(comparisons, found, strict=True)]
    lines = [describe(one, verdict, given.b, given.a) for one, verdict in zip(comparisons, verdicts, strict=True)]
    if len(lines) > 1:
        print("\n".join(f"{case}: {line}" for case, line in zip(cases, lines, strict=True)))
    first = min(range(len(cases)), key=lambda at: VERDICTS.index(verdicts[at]))
    print(lines[first] if len(lines) == 1 else f"{lines[first]} at {cases[first]}")
    return 1 if "SLOWER" in verdicts else 0


def _say(what: str) -> None:
    print(what, end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="Whether B is slower than A; the last line is the verdict.",
        epilog="Exit status: 1 where B is slower, 2 where the two cannot be compared, otherwise 0.",
    )
    parser.add_argument("a", metavar="A", help="a backend's spelling, or a commit")
    parser.add_argument("b", metavar="B", help="the same")
    parser.add_argument("--backend", metavar="NAME", help="which backend, where A or B is a commit")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, all together (default: 60)")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="repeatable (default: article-512)")
    parser.add_argument("--stage", choices=STAGES, default="forward", help="default: forward")
    parser.add_argument("--length", type=int, default=512, metavar="N", help="of the sequence (default: 512)")
    parser.add_argument("--device", choices=TIMED_DTYPE, help="default: cuda where there is one")
    parser.add_argument("--dtype", help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--threads", type=int, default=1, help="of torch on a CPU (default: 1)")
    return parser
