"""Calls of the machine's own, timed between all others: where they drift, nothing that was timed meanwhile counts.

A kernel of torch and a matrix product have no reason to become slower. If they do, the machine did: another program,
a virtual machine's neighbour, heat.

On a GPU either of them may not drift. A CPU that is shared drifts by a fifth within seconds, and all that takes turns
drifts with it; that does no harm to a comparison. What would is a drift of one of the two against the other.
"""

import math
import random
import statistics
import subprocess
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from benchmarks import interval
from benchmarks.processes import LOADING_S, Child

PRODUCT, COPY, ATTENTION = "matrix product", "copy", "torch's attention"

# Between the first and the second half of the looks.
MOST_DRIFT = 0.05

# Of wall time to CPU time: beyond it another program has a third of this one's core.
MOST_WAITING = 1.5

# Turns of each call at a look.
TURNS = 4

# What the driver says of a GPU that is slower than its clocks, by the names of nvidia-smi.
THROTTLING = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")

Look = dict[str, list[float]]


def throttled() -> list[str]:
    """Why the driver holds the first GPU's clocks down, by the names of nvidia-smi; its power limit does not count."""
    fields = [f"clocks_event_reasons.{name}" for name in THROTTLING]
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        said = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    states = [state.strip() for state in said.split(",")]
    return [name for name, state in zip(THROTTLING, states, strict=False) if state == "Active"]


class Sentinel:
    """A process of its own, as a context. `driver` says why a GPU is throttled."""

    def __init__(
        self, device_type: str, dtype: str, child: Child, *, driver: Callable[[], list[str]] = throttled
    ) -> None:
        self._device_type, self._dtype, self._child, self._driver = device_type, dtype, child, driver
        self._described = child.ask({"ceilings": {"dtype": dtype}}, LOADING_S[device_type])
        self._described.pop("busy_s")
        self.looks: list[Look] = []
        self._waiting: list[float] = []
        self._throttled: list[list[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.close()

    def look(self, *, copy: bool = False) -> None:
        """Times each call in a few turns; the copy too, where its rate is wanted."""
        order = [PRODUCT, ATTENTION, *([COPY] if copy else [])] * TURNS
        random.shuffle(order)
        answer = self._child.ask({"turns": {"order": order, "audited": False}}, LOADING_S[self._device_type])
        seen: Look = {what: [] for what in order}
        judged_s = wall_s = 0.0
        for turn in answer["turns"]:
            seen[turn["side"]].append(statistics.fmean(turn["calls_s"]))
            judged_s, wall_s = judged_s + sum(turn["calls_s"]), wall_s + turn["wall_s"]
        self.looks.append(seen)
        self._waiting.append(wall_s / judged_s)
        self._throttled.append(self._driver() if self._device_type == "cuda" else [])

    def void(self, since: int = 0) -> str | None:
        """Why what was timed since the look of that number is void, or None."""
        if names := sorted({name for names in self._throttled[since:] for name in names}):
            return f"the driver reports {', '.join(names)}"
        looks, waiting = self.looks[since:], statistics.median(self._waiting[since:])
        if self._device_type == "cpu" and waiting > MOST_WAITING:
            return f"the machine is busy: 1 s of work took the sentinel {waiting:.2g} s"
        if self._device_type == "cuda":
            moves = {what: _between_halves([_log(look[what]) for look in looks]) for what in (PRODUCT, ATTENTION)}
        else:
            against = [_log(look[ATTENTION]) - _log(look[PRODUCT]) for look in looks]
            moves = {f"{ATTENTION} against a {PRODUCT}": drift(against)}
        for what, moved in moves.items():
            if abs(moved) > math.log1p(MOST_DRIFT):
                return f"the sentinel drifts: {what} by {100 * math.expm1(moved):+.0f} %"
        return None

    def moved(self, since: int = 0) -> float:
        """How much longer the slowest look at torch's attention took than the fastest since then, as a share."""
        speeds = [statistics.median(look[ATTENTION]) for look in self.looks[since:]]
        return max(speeds) / min(speeds) - 1

    def rows(self, looks: Sequence[Look]) -> list[dict[str, Any]]:
        """The ceilings as entries of a result file, with all samples of those looks."""
        return [
            {
                "what": what,
                "of": ceiling["of"],
                "dtype": self._dtype if ceiling["flops"] else None,
                "samples_s": [sample for look in looks for sample in look.get(what, ())],
                "flops": ceiling["flops"],
                "bytes": ceiling["bytes"],
            }
            for what, ceiling in self._described.items()
        ]


def drift(values: Sequence[float]) -> float:
    """From the first half of the values to the second; 0 where chance explains it, or there are fewer than four."""
    half = len(values) // 2
    if half < 2:
        return 0.0
    moved = interval.of_difference(values[-half:], values[:half])
    return 0.0 if moved.low <= 0 <= moved.high else moved.estimate


def _between_halves(values: Sequence[float]) -> float:
    half = (len(values) + 1) // 2
    return statistics.median(values[-half:]) - statistics.median(values[:half])


def _log(samples: Sequence[float]) -> float:
    return math.log(statistics.median(samples))
