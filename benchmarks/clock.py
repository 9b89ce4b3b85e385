"""How calls are timed: in turns of a few milliseconds, each call by itself, by the clock that fits the device.

A CPU with one thread has the CPU time of the process for a clock: what other programs take from it is not in that
time. With more threads it is the wall's, since a thread that waits for another spends none. A GPU has events.

torch is imported where it is used: asv imports this module only to look for benchmarks in it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

# Bound before any backend is loaded: whoever replaces them afterwards is named, and changes no time.
_FUNCTIONS = {
    name: getattr(time, name)
    for name in ("monotonic", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "sleep", "time")
}
_wall_ns, _cpu_ns, _sleep = time.perf_counter_ns, time.process_time_ns, time.sleep

# Below it the clocks' own steps show, and what the processor had forgotten of a side since its last turn.
TURN_S = 0.002

# How long a GPU is kept at work before its first sample: it raises its clocks only then.
WARM_UP_S = 0.02

# The longest queue that a turn leaves to a GPU: 1024 launches fill it, and a full queue holds the host up.
MOST_QUEUED = 64

# A launch and a synchronisation, together, take the host less than this.
SYNCHRONISED_S = 30e-6


@dataclass(frozen=True)
class Turn:
    """Calls one after another, in seconds.

    calls_s       of each, by the judged clock
    wall_s        of all, by the wall's clock
    unseen_s      work that went on after the last call, unseen by the judged clock; only of an audited turn
    launch_bound  whether the host needs as long to queue a call as the device to do it; only of an audited turn
    result        of the last of them, only of an audited turn
    """

    calls_s: list[float]
    wall_s: float
    unseen_s: float = 0.0
    launch_bound: bool = False
    result: Any = None


class Clock(Protocol):
    """What a sweep needs of a clock; `renew` makes the next call's inputs, which is not timed."""

    @property
    def name(self) -> str: ...

    def warm_up(self, call: Callable[[], Any], renew: Callable[[], None]) -> float:
        """Seconds of one call, once what happens only at first is over."""
        ...

    def turn(self, call: Callable[[], Any], renew: Callable[[], None], *, audited: bool = False) -> Turn: ...


def of(device: "torch.device", threads: int = 1) -> Clock:
    """The clock for that device; threads are those of torch on a CPU."""
    return CpuClock(threads) if device.type == "cpu" else CudaClock(device)


def replaced() -> list[str]:
    """The functions of Python's clock that somebody has replaced."""
    return [f"time.{name}" for name, function in _FUNCTIONS.items() if getattr(time, name) is not function]


def wall_s() -> float:
    """The wall's clock, in seconds, whatever a backend has made of `time`."""
    return _wall_ns() * 1e-9


class CpuClock:
    """Of a process that is alone with its calls."""

    # How long a thread that goes on after the call is waited for, at a time.
    REST_S = 0.001

    def __init__(self, threads: int = 1) -> None:
        self.name = "CPU time of the process" if threads == 1 else "wall time"
        self._ns = _cpu_ns if threads == 1 else _wall_ns

    def warm_up(self, call: Callable[[], Any], renew: Callable[[], None]) -> float:
        return min(self.turn(call, renew).calls_s)

    def turn(self, call: Callable[[], Any], renew: Callable[[], None], *, audited: bool = False) -> Turn:
        judged_ns, wall_ns, calls_s = 0, 0, []
        result = None
        while judged_ns < TURN_S * 1e9 and wall_ns < 2 * TURN_S * 1e9:
            renew()
            result = None  # its memory is free for the call, as it is in a loop of a user
            wall, judged = _wall_ns(), self._ns()
            result = call()
            taken = self._ns() - judged
            wall_ns += _wall_ns() - wall
            judged_ns += taken
            calls_s.append(taken * 1e-9)
        if not audited:
            return Turn(calls_s, wall_ns * 1e-9)
        return Turn(calls_s, wall_ns * 1e-9, self._unseen_s(), result=result)

    def _unseen_s(self) -> float:
        """CPU time that other threads take while this one rests, until they rest as well."""
        total = 0
        while True:
            before = _cpu_ns()
            _sleep(self.REST_S)
            taken = _cpu_ns() - before
            if taken < 0.3 * self.REST_S * 1e9:  # to sleep and to wake costs a little itself
                return total * 1e-9
            total += taken


class CudaClock:
    """Events before and after each call, in the current stream; caches are overwritten before each.

    host_s and library stand in tests for the host's clock and torch.
    """

    name = "CUDA events"

    def __init__(self, device: "torch.device", *, library: Any = None, host_s: Callable[[], float] = wall_s) -> None:
        if library is None:
            import torch as library
        self._cuda, self._device, self._host_s = library.cuda, device, host_s
        self._synchronize, self._event = library.cuda.synchronize, library.cuda.Event
        # Twice: a cache keeps a part of what it held when it is overwritten just once.
        size = 2 * library.cuda.get_device_properties(device).L2_cache_size
        self._flushed = library.empty(size, dtype=library.uint8, device=device)
        self._estimate_s = math.nan

    def warm_up(self, call: Callable[[], Any], renew: Callable[[], None]) -> float:
        self._synchronize(self._device)
        start = self._host_s()
        while True:
            (self._estimate_s,) = self._timed(call, renew, 1)[0]
            if self._host_s() - start >= WARM_UP_S:
                return self._estimate_s

    def turn(self, call: Callable[[], Any], renew: Callable[[], None], *, audited: bool = False) -> Turn:
        unseen_s, launch_bound = self._alone(call, renew) if audited else (0.0, False)
        count = max(1, min(MOST_QUEUED, math.ceil(TURN_S / max(self._estimate_s, 1e-6))))
        start = self._host_s()
        calls_s, result = self._timed(call, renew, count)
        return Turn(calls_s, self._host_s() - start, unseen_s, launch_bound, result if audited else None)

    def _alone(self, call: Callable[[], Any], renew: Callable[[], None]) -> tuple[float, bool]:
        """Of one call on an idle device: the seconds that its events do not see, and whether it is launch-bound."""
        renew()
        before, after = self._pair()
        self._synchronize(self._device)
        start = self._host_s()
        before.record()
        call()
        after.record()
        queued_s = self._host_s() - start
        self._synchronize(self._device)
        done_s = self._host_s() - start
        seen_s = before.elapsed_time(after) * 1e-3
        # The device works while the host still queues, so the longer of the two is what the whole should take.
        return max(0.0, done_s - max(queued_s, seen_s) - SYNCHRONISED_S), queued_s >= seen_s

    def _timed(self, call: Callable[[], Any], renew: Callable[[], None], count: int) -> tuple[list[float], Any]:
        pairs = [self._pair() for _ in range(count)]
        result = None
        for before, after in pairs:
            renew()
            self._flushed.zero_()
            result = None
            before.record()
            result = call()
            after.record()
        self._synchronize(self._device)
        return [before.elapsed_time(after) * 1e-3 for before, after in pairs], result

    def _pair(self) -> tuple[Any, Any]:
        return self._event(enable_timing=True), self._event(enable_timing=True)


# Below 5 samples a median says little; beyond these it no longer moves.
FEWEST = 5
MOST_CPU = 50
MOST_CUDA = 200

WARMUP_S = 0.02

# Written before each sample on CUDA. Beyond any L2 cache, and 0.2 ms even at 5 TB/s: longer than the host takes to
# queue a call of many kernels behind it.
FLUSHED_BYTES = 1 << 30

# What `samples` reads; it goes into the results, since the two clocks do not measure quite the same thing.
NAME = {"cpu": "time.perf_counter", "cuda": "CUDA events"}


class OverrunError(Exception):
    """The fewest samples would take longer than they may: `needed_s` seconds."""

    def __init__(self, needed_s: float) -> None:
        super().__init__(f"{FEWEST} samples would take about {needed_s:.2g} s")
        self.needed_s = needed_s


def samples(
    call: Callable[[], object], device: "torch.device", *, box_s: float = 0.3, limit_s: float = math.inf
) -> list[float]:
    """Seconds of one call after another, for about `box_s` seconds; the first call is made already.

    On a CPU the inputs stay in cache between calls, on CUDA they do not: there FLUSHED_BYTES are overwritten
    before each sample, which also gives the host time to queue the call, so that its launch is not in the
    sample unless it takes longer than that.

    Raises OverrunError where even the fewest samples would take more than `limit_s` seconds.
    """
    estimate = max(_wall_of(call, device), 1e-6)
    if FEWEST * estimate > limit_s:
        raise OverrunError(FEWEST * estimate)
    for _ in range(int(WARMUP_S / estimate)):
        call()
    if device.type == "cuda":
        return _by_events(call, device, min(MOST_CUDA, max(FEWEST, int(box_s / estimate))))
    # A long call needs no warming up after its first, so the estimate is a sample like the others.
    return _by_wall(call, device, box_s, [estimate] if estimate > WARMUP_S else [])


def _wall_of(call: Callable[[], object], device: "torch.device") -> float:
    """Seconds of one call by the host's clock, until the device is done."""
    start = synced_time(device)
    call()
    return synced_time(device) - start


def synced_time(device: "torch.device") -> float:
    """The host's clock, in seconds, once all that was queued on the device is done."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def _by_wall(call: Callable[[], object], device: "torch.device", box_s: float, taken: list[float]) -> list[float]:
    while len(taken) < FEWEST or (len(taken) < MOST_CPU and sum(taken) < box_s):
        taken.append(_wall_of(call, device))
    return taken


def _by_events(call: Callable[[], object], device: "torch.device", count: int) -> list[float]:
    import torch

    flush = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)
    pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
    torch.cuda.synchronize(device)
    for before, after in pairs:
        flush.zero_()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) * 1e-3 for before, after in pairs]
