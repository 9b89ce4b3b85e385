"""One process per backend, so that a crash or a hang costs that backend and no other."""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from benchmarks.sweep import Finding, Plan, as_row

# In addition to its seconds: to start Python, torch and the device, and on CUDA to compile a row's kernels.
GRACE_S = {"cpu": 60.0, "cuda": 300.0}

Row = dict[str, Any]


def sweep(
    backend: str,
    plan: Plan,
    seconds: float,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    at_limit: str = "crashed",
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """A row for every case of the plan, from a process of its own that measures for about `seconds` seconds.

    `command` starts the sweep and takes the arguments of `benchmarks.sweep`. Cases that the process did not
    reach come back as "crashed" where it died, and with the status `at_limit` where it had not ended after `limit_s`
    seconds: a hang, unless the limit is a tight one.
    """
    limit_s = seconds + GRACE_S[plan.device_type] if limit_s is None else limit_s
    rows: list[Row] = []
    place = "before its first row"

    def end(row: Row) -> None:
        rows.append(row)
        if on_row is not None:
            on_row(row)

    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            [*command, backend, *plan.arguments(), "--seconds", str(seconds)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=None if environment is None else {**environment},
        )
        assert process.stdout is not None
        try:
            for line in _lines(process.stdout, time.monotonic() + limit_s):
                said = json.loads(line)
                if "row" in said:
                    end(said["row"])
                else:
                    place = f"in {said['begin']}"
            hung = process.poll() is None and _still_runs(process)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        cause = f"stopped after {limit_s:.0f} s without an end" if hung else _end_of(process.returncode, stderr)
    reached = {(row["workload"], row["seq_len"], row["stage"]) for row in rows}
    for case in plan.cases():
        if (case.workload.name, case.seq_len, case.stage) not in reached:
            row = as_row(backend, plan.device_type, case, Finding(at_limit if hung else "crashed", f"{cause}, {place}"))
            end(row)
    return rows


def _lines(stream: IO[bytes], deadline: float) -> Iterator[bytes]:
    """The lines of a pipe until it ends or the deadline on time.monotonic() has passed."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            chunk = os.read(stream.fileno(), 1 << 16)
            if not chunk:
                return
            *complete, pending = (pending + chunk).split(b"\n")
            yield from complete


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    """Whether it goes on although its output ended: a process that is about to exit gets a moment for it."""
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return True
    return False


def _end_of(returncode: int, stderr: IO[bytes]) -> str:
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    stderr.seek(0)
    said = [line for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    return f"ended with status {returncode}: {said[-1].strip()}" if said else f"ended with status {returncode}"
