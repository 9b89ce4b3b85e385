"""How much memory one call takes beside its result."""

import json
import tempfile
from collections.abc import Callable
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
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    return result, torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(call: Callable[[], Result]) -> tuple[Result, int]:
    # A CPU has no peak counter, but the profiler logs each allocation and release with the running total.
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        with open(file.name, encoding="utf-8") as trace:
            events = json.load(trace)["traceEvents"]
    moves = [event for event in events if event["name"] == "[memory]"]
    if not moves:
        return result, 0
    first = min(moves, key=lambda event: event["ts"])["args"]
    before = first["Total Allocated"] - first["Bytes"]
    return result, max(event["args"]["Total Allocated"] for event in moves) - before


def _bytes(result: Any) -> int:
    return sum(tensor.nbytes for tensor in (result if isinstance(result, tuple) else (result,)))
