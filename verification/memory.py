"""How much memory one call takes beside its result."""

import gc
import json
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def with_extra_bytes(call: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """The result of one call, and how many bytes it held at its worst beside that result.

    What torch's allocator hands out counts, inside kernels too; what a library takes from elsewhere does not.
    """
    result, peak = _peak_on_cuda(call, device) if device.type == "cuda" else _peak_on_cpu(call)
    return result, max(0, peak - _bytes(result))


def _peak_on_cuda(call: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    call()  # a first call may tune itself, and may leave a workspace behind as cuBLAS does
    gc.disable()  # or it may release during this call what an earlier one left in a cycle, in this one's favour
    try:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        torch.cuda.synchronize(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    finally:
        gc.enable()


def _peak_on_cpu(call: Callable[[], Result]) -> tuple[Result, int]:
    # A CPU has no peak counter, but the profiler logs each allocation and release.
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        with open(file.name, encoding="utf-8") as trace:
            events = json.load(trace)["traceEvents"]
    moves = [event for event in events if event["name"] == "[memory]"]
    moves.sort(key=lambda event: event["ts"])
    return result, _peak((event["args"]["Addr"], event["args"]["Bytes"]) for event in moves)


def _peak(moves: Iterable[tuple[int, int]]) -> int:
    """The most bytes held at once, from (address, bytes) of each allocation and, with negative bytes, each release.

    A release of what was not allocated among them is of an earlier call and does not count: Python's collector comes
    when it will.
    """
    held: dict[int, int] = {}
    total = most = 0
    for address, size in moves:
        if size > 0:
            held[address] = size
            total += size
            most = max(most, total)
        else:
            total -= held.pop(address, 0)
    return most


def _bytes(result: Any) -> int:
    return sum(tensor.nbytes for tensor in (result if isinstance(result, tuple) else (result,)))
