"""A process with backends in it, which verifies and times what it is told to: one line of JSON in, one out.

    {"load": {"A": {"spelling": "online", "package": null}}}      -> {"ready": ["A"], "refused": {}, "registers": []}
    {"prepare": {"workload": "gpt2", "seq_len": 512, ...}}        -> {"A": {"status": "right", "call_s": 0.01, ...}}
    {"turns": {"order": ["A", "A", "A"], "audited": true}}        -> {"turns": [...], "findings": {}}

It keeps nothing of what it measures, so that all of it is with the parent when this process dies.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from benchmarks import ceilings, clock, interpreter
from benchmarks.workloads import WORKLOADS, Case

if TYPE_CHECKING:
    import torch

    from benchmarks.prepared import Call
    from implementations import Backend

# Of physical memory, on a CPU. Beyond it an allocation fails, and one row with it; otherwise the machine would swap.
MEMORY_SHARE = 0.6

# Of an audited turn's time: threads or streams that go on for longer than this after the call are work of the call.
UNSEEN_SHARE = 0.1

Reply = dict[str, Any]


class Package:
    """The package `implementations` in a folder: that of a commit, in one process with those of others."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._modules: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def imported(self) -> Iterator[None]:
        """Inside, `import implementations` means this one, also from within a function of it."""
        if self._folder is None:
            yield
            return
        others = _take_out()
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        try:
            yield
        finally:
            sys.path.remove(str(self._folder))
            self._modules = _take_out()
            sys.modules.update(others)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "implementations"]
    return {name: sys.modules.pop(name) for name in names}


class Worker:
    """What the process does. `clock` says how calls are timed, and is another on a simulated device."""

    def __init__(self, device: "torch.device", by: clock.Clock) -> None:
        self._device, self._clock = device, by
        self._backends: dict[str, tuple[Package, Backend, Any]] = {}
        self._calls: dict[str, tuple[Package, Call]] = {}
        self._inputs: Any = None  # Inputs, or what stays as it is

    def answer(self, message: dict[str, Any]) -> Reply:
        start = clock.wall_s()
        ((what, content),) = message.items()
        answers = {"load": self.load, "prepare": self.prepare, "ceilings": self.ceilings, "turns": self.turns}
        reply = answers[what](content)
        return {**reply, "busy_s": clock.wall_s() - start}

    def load(self, sides: dict[str, dict[str, Any]]) -> Reply:
        """Loads each side's backend; "refused" has the reasons of those that cannot be had or cannot run here.

        "registers" names the operators that loading added to torch: there can be only one of each in a process.
        """
        import torch

        before = set(torch._C._dispatch_get_all_op_names())
        refused: dict[str, str] = {}
        loaded: dict[tuple[str, str | None], tuple[Package, Backend, Any]] = {}
        for side, wanted in sides.items():
            spelling, folder = wanted["spelling"], wanted["package"]
            # The same again is the same: two sides of one spelling share what was loaded.
            key = (spelling, folder)
            try:
                if key not in loaded:
                    loaded[key] = self._loaded(spelling, Package(Path(folder) if folder else None))
                self._backends[side] = loaded[key]
                reason = loaded[key][1].cannot_run(self._device)
            except (ValueError, ImportError) as error:
                reason = _reason(error)
            except Exception as error:
                reason = f"{type(error).__name__} while it was loaded: {_reason(error)}"
            if reason is not None:
                refused[side] = reason
        added = sorted(set(torch._C._dispatch_get_all_op_names()) - before)
        replaced = clock.replaced()
        for side in sides if replaced else ():
            refused[side] = f"it replaces {', '.join(replaced)}"
        return {"ready": [side for side in sides if side not in refused], "refused": refused, "registers": added}

    def _loaded(self, spelling: str, package: Package) -> "tuple[Package, Backend, Any]":
        with package.imported():
            implementations = importlib.import_module("implementations")
            return package, implementations.load(spelling), implementations.SelfAttention

    def prepare(self, wanted: dict[str, Any]) -> Reply:
        """Verifies each side at a case, and finds out how long a call takes: {side: {"status": ..., ...}}."""
        from benchmarks.prepared import Inputs

        case = Case(WORKLOADS[wanted["workload"]], wanted["seq_len"], wanted["stage"], wanted["dtype"])
        self._release()
        findings: Reply = {}
        for side in wanted["sides"]:
            package, backend, layer_type = self._backends[side]
            try:
                with self._running(package, case.stage):
                    inputs = self._inputs = self._inputs or Inputs(case, self._device)
                    call = inputs.call_of(backend, layer_type)
                    inputs.renew_for_judge()
                    findings[side] = self._verified(call)
                    if findings[side]["status"] == "right":
                        self._calls[side] = package, call
                        findings[side]["call_s"] = self._clock.warm_up(call.call, inputs.renew)
            except Exception as error:
                findings[side] = self._found(error)
        return findings

    def _verified(self, call: "Call") -> Reply:
        from verification import memory, spotcheck

        result, extra_bytes = memory.with_extra_bytes(call.call, self._device)
        wrong = _wrong_result(result)
        error = math.nan if wrong else call.error_of(result)
        finding = {
            "status": "right",
            "reason": wrong,
            "extra_bytes": extra_bytes,
            "error_over_budget": error if math.isfinite(error) else None,
            "verified_rows": spotcheck.ROWS,
        }
        if wrong is None and not error <= 1:
            finding["reason"] = _wrong(error)
        if finding["reason"]:
            finding.update(status="failed", extra_bytes=None)
        return finding

    def ceilings(self, wanted: dict[str, Any]) -> Reply:
        """Prepares what no kernel can exceed, each a side of its own: {side: {"of": ..., "flops": ..., ...}}."""
        self._release()
        self._inputs = ceilings.Steady()
        described: Reply = {}
        for ceiling in ceilings.prepare(self._device, wanted["dtype"]):
            self._calls[ceiling.what] = Package(None), ceiling.call
            described[ceiling.what] = {"of": ceiling.of, "flops": ceiling.flops, "bytes": ceiling.bytes}
            described[ceiling.what]["call_s"] = self._clock.warm_up(ceiling.call.call, self._inputs.renew)
        return described

    def turns(self, wanted: dict[str, Any]) -> Reply:
        """Turns of the sides in that order, and after an audited one what is wrong with its last result."""
        turns: list[Reply] = []
        findings: Reply = {}
        assert self._inputs is not None
        audited = wanted["audited"]
        for side in wanted["order"]:
            if side in findings:
                continue
            package, call = self._calls[side]
            renew = self._inputs.renew_for_judge if audited else self._inputs.renew
            try:
                with self._running(package, self._inputs.stage):
                    turn = self._clock.turn(call.call, renew, audited=audited)
                    reason = self._audit(call, turn) if audited else None
                if reason is not None:
                    findings[side] = {"status": "failed", "reason": reason}
            except Exception as error:
                findings[side] = self._found(error)
                continue
            turns.append(
                {"side": side, "calls_s": turn.calls_s, "wall_s": turn.wall_s, "launch_bound": turn.launch_bound}
            )
        return {"turns": turns, "findings": findings}

    def _audit(self, call: "Call", turn: clock.Turn) -> str | None:
        if replaced := clock.replaced():
            return f"it replaces {', '.join(replaced)}"
        if turn.unseen_s > UNSEEN_SHARE * sum(turn.calls_s):
            return f"it goes on for {turn.unseen_s * 1e3:.3g} ms after it has returned, which no clock of its sees"
        if wrong := _wrong_result(turn.result):
            return wrong
        error = call.error_of(turn.result)
        return None if error <= 1 else f"in a timed call {_wrong(error)}"

    @contextlib.contextmanager
    def _running(self, package: Package, stage: str) -> Iterator[None]:
        import torch

        with interpreter.forbidden(), torch.set_grad_enabled(stage == "backward"), package.imported():
            yield

    def _release(self) -> None:
        """Gives the memory of the last case back, to the machine too."""
        import torch

        self._calls, self._inputs = {}, None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            _trim()

    def _found(self, error: Exception) -> Reply:
        """The finding in place of a result.

        Raises what the device raises: after an illegal access every later call fails, and the process has to end.
        """
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        if isinstance(error, NotImplementedError):
            return {"status": "refused", "reason": _reason(error)}
        if _is_out_of_memory(error):
            return {"status": "out of memory", "reason": _reason(error)}
        return {"status": "failed", "reason": f"{type(error).__name__}: {_reason(error)}"}


def _wrong(error: float) -> str:
    return f"the error is {error:.3g} times its budget" if math.isfinite(error) else "the error is not finite"


def _wrong_result(result: Any) -> str | None:
    """Why a result is not one at all: a subclass may compute what it stands for later, when nobody times it."""
    import torch

    for part in result if isinstance(result, tuple) else (result,):
        if type(part) is not torch.Tensor:
            return f"it returns a {type(part).__name__}; wanted a torch.Tensor"
    return None


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "gives no reason"


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    allocators = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in allocators)
    )


def _trim() -> None:
    """The C library keeps what is freed (the parent asked it to): a row would find the memory of the last one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _die_with_parent() -> None:
    """An orphan would measure on, beside the next run."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def bound_memory() -> None:
    """Makes an allocation beyond MEMORY_SHARE of physical memory raise in this process."""
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * page
    limit = mapped + int(MEMORY_SHARE * page * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main(device_type: str, threads: int) -> None:
    """Answers line after line until standard input ends."""
    _die_with_parent()
    # What a backend prints must not get between the answers.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import torch

    device = torch.device(device_type)
    if device_type == "cpu":
        torch.set_num_threads(threads)
        if sys.platform == "linux":
            bound_memory()
    gc.disable()
    worker = Worker(device, clock.of(device, threads))
    lines.write("started\n")
    for line in sys.stdin:
        lines.write(json.dumps(worker.answer(json.loads(line)), allow_nan=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
