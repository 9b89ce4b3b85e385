"""How one call is timed.

torch is imported where it is used: asv imports this module only to look for benchmarks in it.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
    estimate = max(wall_s(call, device), 1e-6)
    if FEWEST * estimate > limit_s:
        raise OverrunError(FEWEST * estimate)
    for _ in range(int(WARMUP_S / estimate)):
        call()
    if device.type == "cuda":
        return _by_events(call, device, min(MOST_CUDA, max(FEWEST, int(box_s / estimate))))
    # A long call needs no warming up after its first, so the estimate is a sample like the others.
    return _by_wall(call, device, box_s, [estimate] if estimate > WARMUP_S else [])


def wall_s(call: Callable[[], object], device: "torch.device") -> float:
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
        taken.append(wall_s(call, device))
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
