"""One backend, row by row in a process of its own: each row is verified and then timed, or has a reason.

    python -m benchmarks.sweep online --device cpu --workload gpt2 --stage forward --length 512 --seconds 10

Every row goes to standard output as a line of JSON as soon as it is known, after a line that says which row
is begun: a process that dies leaves the rows that it had finished, and the name of the one that it died in.
"""

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import clock, interpreter
from benchmarks.workloads import TIMED_DTYPE, WORKLOADS, Case

if TYPE_CHECKING:
    import torch

    from implementations import Backend

# Of physical memory, on a CPU. Beyond it an allocation fails, and one row with it; otherwise the machine would swap.
MEMORY_SHARE = 0.6

HEADLINE_SHARE = 2 / 3

# One row may sample for half of an even share of the time, within these bounds.
LEAST_BOX_S, MOST_BOX_S = 0.05, 0.25


@dataclass(frozen=True)
class Plan:
    """Which rows are wanted of a backend; device_type is "cpu" or "cuda"."""

    device_type: str
    workloads: tuple[str, ...]
    stages: tuple[str, ...]
    lengths: tuple[int, ...]

    def chains(self) -> list[list[Case]]:
        """The cases by workload and stage, lengths rising: the time of each predicts that of the next."""
        return [
            [Case(WORKLOADS[name], length, stage) for length in sorted(self.lengths)]
            for name in self.workloads
            for stage in self.stages
        ]

    def cases(self) -> list[Case]:
        return [case for chain in self.chains() for case in chain]

    def arguments(self) -> list[str]:
        """The plan as `main` reads it."""
        lengths = map(str, self.lengths)
        return [
            *("--device", self.device_type, "--workload", *self.workloads),
            *("--stage", *self.stages, "--length", *lengths),
        ]


@dataclass(frozen=True)
class Finding:
    """What measuring says of a row: status "timed" and samples, or a reason in their place."""

    status: str
    reason: str | None = None
    samples_s: list[float] | None = None
    extra_bytes: int | None = None
    error_over_budget: float | None = None
    verified_rows: int = 0


@dataclass(frozen=True)
class Cost:
    """Seconds a row took: in one call once warm, and in all else that a longer row pays for again."""

    call_s: float
    rest_s: float

    def of_longer(self, growth: float, box_s: float) -> float:
        """Seconds expected of a row with `growth` times the work."""
        call_s = growth * self.call_s
        return growth * self.rest_s + call_s + max(clock.FEWEST * call_s, box_s)


def as_row(backend: str, device_type: str, case: Case, finding: Finding) -> dict[str, Any]:
    """One entry of "rows" in the result file."""
    w = case.workload
    return {
        "backend": backend,
        "workload": w.name,
        "model": w.model,
        "batch": w.batch,
        "heads": w.heads,
        "kv_heads": w.kv_heads,
        "head_dim": w.head_dim,
        "seq_len": case.seq_len,
        "causal": w.causal,
        "dtype": TIMED_DTYPE[device_type],
        "stage": case.stage,
        "flops": case.flops,
        **vars(finding),
    }


def sweep(
    backend: "Backend",
    plan: Plan,
    device: "torch.device",
    deadline: float,
    begin: Callable[[Case], None],
) -> Iterator[tuple[Case, Finding]]:
    """Each case and what was found, until `deadline` on time.monotonic().

    Two thirds of the time are for the first workload and stage, the headline. In the rest the row that is expected to
    be cheapest comes next: all have their short lengths before any has its long ones, and most rows are timed.
    """
    start = time.monotonic()
    waiting = plan.chains()
    if owner := _owner_of_attend(backend):
        for case in plan.cases():
            if case.stage != "layer":
                yield case, Finding("left out", f"its attend is that of {owner}, timed there; only its layer differs")
        waiting = [chain for chain in waiting if chain[0].stage == "layer"]
    headline = waiting[0] if waiting else []
    box_s = max(LEAST_BOX_S, min(MOST_BOX_S, (deadline - start) / len(plan.cases()) / 2))
    expected: dict[int, float] = {}
    s_per_flop = 0.0  # the best so far

    def expected_s(chain: list[Case]) -> float:
        return expected.get(id(chain), s_per_flop * chain[0].flops * (clock.FEWEST + 1))

    while waiting:
        fits = bool(headline) and time.monotonic() + expected_s(headline) <= start + HEADLINE_SHARE * (deadline - start)
        chain = headline if fits else min(waiting, key=expected_s)
        wanted, left = expected_s(chain), deadline - time.monotonic()
        case = chain.pop(0)
        growth = (chain[0].seq_len / case.seq_len) ** 2 if chain else 1.0
        if wanted > left or left <= 0:
            yield case, Finding("left out", _too_long(wanted, left))
            expected[id(chain)] = growth * wanted
        else:
            begin(case)
            finding, cost = measure(backend, case, device, box_s=box_s, limit_s=left)
            yield case, finding
            if finding.reason == interpreter.REFUSAL:
                yield from ((case, finding) for chain in waiting for case in chain)
                return
            expected[id(chain)] = cost.of_longer(growth, box_s)
            if finding.status == "timed":
                s_per_flop = min(s_per_flop or math.inf, cost.call_s / case.flops)
        waiting = [chain for chain in waiting if chain]


def _owner_of_attend(backend: "Backend") -> str | None:
    """The built-in backend whose attend this one takes over unchanged: timing it again would measure nothing new."""
    package, _, owner = getattr(backend.attend, "__module__", "").rpartition(".")
    return owner if package == "implementations" and ":" not in backend.name and owner != backend.name else None


def measure(
    backend: "Backend", case: Case, device: "torch.device", *, box_s: float, limit_s: float
) -> tuple[Finding, Cost]:
    """Verifies a row and, if it is right, times it."""
    import torch

    start = time.monotonic()
    try:
        with interpreter.forbidden(), torch.set_grad_enabled(case.stage == "backward"):
            return _verify_then_time(backend, case, device, box_s, start + limit_s)
    except NotImplementedError as refusal:
        finding = Finding("refused", _reason(refusal))
    except clock.OverrunError as overrun:
        finding = Finding("left out", _too_long(overrun.needed_s, start + limit_s - time.monotonic()))
    except Exception as error:
        if _is_out_of_memory(error):
            finding = Finding("out of memory", _reason(error))
        else:
            finding = Finding("failed", f"{type(error).__name__}: {_reason(error)}")
    if device.type == "cuda":
        # An illegal access makes every later call fail: this raises then, and the process has to end.
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return finding, Cost(0.0, time.monotonic() - start)


def _verify_then_time(
    backend: "Backend", case: Case, device: "torch.device", box_s: float, deadline: float
) -> tuple[Finding, Cost]:
    from verification import memory, spotcheck

    start = time.monotonic()
    call, error_of = prepare(backend, case, device)
    prepared = time.monotonic()
    result, extra_bytes = memory.with_extra_bytes(call, device)
    called = time.monotonic()
    error = error_of(result)
    checked = time.monotonic()
    del result
    finite = error if math.isfinite(error) else None
    if not error <= 1:
        wrong = f"is {error:.3g} times its budget" if finite else "is not finite"
        finding = Finding("failed", f"the error {wrong}", None, None, finite, spotcheck.ROWS)
        return finding, Cost(0.0, checked - start)
    samples = clock.samples(call, device, box_s=box_s, limit_s=deadline - checked)
    # The first call is not counted: it may have compiled a kernel, and a longer row will not.
    cost = Cost(min(samples), (prepared - start) + (checked - called))
    return Finding("timed", None, samples, extra_bytes, finite, spotcheck.ROWS), cost


def prepare(backend: "Backend", case: Case, device: "torch.device") -> tuple[Callable[[], Any], Callable[[Any], float]]:
    """What is timed, and the judge of its result: the worst error over budget on a sample of query rows.

    Inputs are standard normal, from a fixed seed. Gradients must be enabled for the stage "backward", and
    only there.
    """
    import torch

    from implementations import SelfAttention
    from verification import spotcheck

    w = case.workload
    factory: dict[str, Any] = {"device": device, "dtype": getattr(torch, TIMED_DTYPE[device.type])}
    torch.manual_seed(case.seq_len)
    if case.stage == "layer":
        layer = SelfAttention(w.d_model, w.heads, kv_heads=w.kv_heads, backend=backend, **factory)
        x = torch.randn(w.batch, case.seq_len, w.d_model, **factory)
        return (
            lambda: layer(x, causal=w.causal),
            lambda y: spotcheck.layer(layer, x, y, causal=w.causal),
        )
    q = torch.randn(w.batch, w.heads, case.seq_len, w.head_dim, **factory)
    k, v = (torch.randn(w.batch, w.kv_heads, case.seq_len, w.head_dim, **factory) for _ in range(2))
    if case.stage == "forward":
        return (
            lambda: backend.attend(q, k, v, causal=w.causal),
            lambda out: spotcheck.forward(backend, q, k, v, out, causal=w.causal),
        )
    leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    out = backend.attend(*leaves, causal=w.causal)
    grad_out = torch.randn_like(out)
    return (
        lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True),
        # The judge sends its own gradient back, through the same pass.
        lambda _: spotcheck.backward(
            backend,
            *leaves,
            out,
            torch.autograd.grad(out, leaves, spotcheck.gradient(out), retain_graph=True),
            causal=w.causal,
        ),
    )


def bound_memory() -> None:
    """Makes an allocation beyond MEMORY_SHARE of physical memory raise in this process."""
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * page
    limit = mapped + int(MEMORY_SHARE * page * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    allocators = ("can't allocate memory", "not enough memory", "std::bad_alloc", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in allocators)
    )


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or "gives no reason"


def _too_long(wanted_s: float, left_s: float) -> str:
    if left_s <= 0:
        return "its backend's share of the time was used up"
    return f"would take about {wanted_s:.2g} s; {left_s:.2g} s of its backend's share are left"


def main(argv: list[str], *, unavailable: str | None = None) -> None:
    """Sweeps as the arguments say; `unavailable` is a reason to refuse every row without trying.

    The seconds count from when torch and the backend are loaded and a GPU is awake.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep", description="Sweeps one backend; a line of JSON a row."
    )
    parser.add_argument("backend")
    parser.add_argument("--device", required=True, choices=TIMED_DTYPE)
    parser.add_argument("--workload", required=True, nargs="+", choices=WORKLOADS)
    parser.add_argument("--stage", required=True, nargs="+")
    parser.add_argument("--length", required=True, nargs="+", type=int)
    parser.add_argument("--seconds", required=True, type=float)
    given = parser.parse_args(argv)
    plan = Plan(given.device, tuple(given.workload), tuple(given.stage), tuple(given.length))

    # What a backend prints must not get between the rows.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def begin(case: Case) -> None:
        lines.write(json.dumps({"begin": str(case)}) + "\n")

    def end(case: Case, finding: Finding) -> None:
        row = as_row(given.backend, plan.device_type, case, finding)
        lines.write(json.dumps({"row": row}, allow_nan=False) + "\n")

    reason, backend, device = unavailable, None, None
    if reason is None:
        backend, device, reason = _load(given.backend, plan.device_type)
    if backend is None or device is None or reason is not None:
        for case in plan.cases():
            end(case, Finding("refused", reason))
        return
    if device.type == "cpu" and sys.platform == "linux":
        bound_memory()
    if device.type == "cuda":
        _warm_up(backend, device)
    for case, finding in sweep(backend, plan, device, time.monotonic() + given.seconds, begin):
        end(case, finding)


def _warm_up(backend: "Backend", device: "torch.device") -> None:
    """Runs once what the judge computes with, so that the device has loaded it.

    Otherwise the first row would pay for that, and longer rows would be expected to pay more of it.
    """
    import torch

    from verification import budget, oracle

    q, k, v, grad_out = torch.randn(4, 1, 1, 32, 64, device=device, dtype=getattr(torch, TIMED_DTYPE[device.type]))
    _, exact = oracle.gradients(q, k, v, grad_out)
    budget.of_gradients(q, k, v, grad_out, exact, facts=backend.facts)
    budget.of_product(q[0, 0], k[0, 0])
    clock.synced_time(device)


def _load(spelling: str, device_type: str) -> tuple["Backend | None", "torch.device | None", str | None]:
    """The backend and the device, or the reason why there is nothing to time."""
    import torch

    import implementations

    device = torch.device(device_type)
    try:
        backend = implementations.load(spelling)
    except (ValueError, ImportError) as error:
        return None, None, _reason(error)
    return backend, device, backend.cannot_run(device)


if __name__ == "__main__":
    main(sys.argv[1:])
